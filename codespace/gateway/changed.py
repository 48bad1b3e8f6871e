"""A refusal met where a hold is resumed, when it says that the files are no longer what the hold showed.

What was shown could be done when it was held: where it cannot be done any more because of a file, the world has
changed, as much as where it would come to something else. What a setting or the machine refuses stays what it is.
"""

from __future__ import annotations

from typing import Final

from codespace.errors import Refusal
from codespace.gateway.hold import Hold

_OF_FILES: Final = frozenset(
    {
        "INVALID_PATCH",
        "FILE_NOT_FOUND",
        "PATH_NOT_DIRECTORY",
        "NOT_TEXT",
        "SYMLINK_REJECTED",
        "SPECIAL_FILE_REJECTED",
        "ADD_FILE_EXISTS",
        "MOVE_DESTINATION_EXISTS",
        "VERSION_CONFLICT",
    }
)


def since_shown(hold: Hold | None, refusal: Refusal, problem: str) -> Refusal:
    """Return the refusal of the resume: APPROVAL_CONFLICT, with `refusal` as its cause, where that is about files.

    Args:
        hold: What is resumed; without one `refusal` is the answer.
        problem: What is no longer as it was, and what was done: nothing.
    """
    if hold is None or refusal.code not in _OF_FILES:
        return refusal
    return Refusal(
        "APPROVAL_CONFLICT",
        problem,
        next_step="Look at the files again and send a request made for them: it is held anew. `details.cause` says "
        "what stood against this one.",
        details={"cause": refusal.body()},
        approval_id=hold.id,
    )
