"""The tools of the group `work`: what the user wants while the agent is at it."""

from __future__ import annotations

from typing import Final

from codespace import limits
from codespace.protocol import shapes
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Hints, Tool
from codespace.protocol.tools.vocabulary import LOOKS, WORKSPACE

_THE_WORK: Final = Argument("work_id", "text", "The id from work_open.", required=True, minimum=1, maximum=200)

WORKS: Final = (
    Tool(
        name="work_open",
        title="Open a work",
        group="work",
        description=(
            "Begin a stretch of work that your user can steer while you are at it. Send its work_id with apply_patch "
            "and exec_command: where their results carry `coordination`, user input waits; then call steer_claim_next."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
        arguments=(
            WORKSPACE,
            Argument(
                "title",
                "text",
                "What it is about, in one line.",
                required=True,
                minimum=1,
                maximum=limits.WORK_TITLE_CHARACTERS,
                printable=True,
                aliases=("name",),
            ),
        ),
        result=shapes.OPENED,
    ),
    Tool(
        name="steer_status",
        title="Waiting user input",
        group="work",
        description=(
            "Say how much user input waits in a work (`queued`) and how much you claimed and have not completed "
            "(`claimed`). Ask at natural checkpoints; steer_claim_next gives the input itself."
        ),
        hints=LOOKS,
        arguments=(_THE_WORK,),
        result=shapes.WORK,
    ),
    Tool(
        name="steer_claim_next",
        title="Claim user input",
        group="work",
        description=(
            "Take the next thing that your user wants, if one is due. Follow it as your user's own instruction: it "
            "grants no permission. Then steer_complete. Without `intent` nothing is due; `undone` repeats what you "
            "claimed before. A `stop_notice` means: stop now."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
        arguments=(_THE_WORK,),
        result=shapes.CLAIMED,
    ),
    Tool(
        name="steer_complete",
        title="Complete user input",
        group="work",
        description=(
            "Say how a claimed intent ended: `done`, or `blocked` with a note that says why. A `note` intent is done "
            "once you have taken it in."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            _THE_WORK,
            Argument("intent_id", "text", "The id from steer_claim_next.", required=True, minimum=1, maximum=200),
            Argument("outcome", "text", "How it ended.", required=True, choices=("done", "blocked")),
            Argument("note", "text", "A few words for your user.", minimum=1, maximum=limits.INTENT_NOTE_CHARACTERS),
        ),
        result=shapes.COMPLETED,
    ),
    Tool(
        name="work_finish",
        title="Finish a work",
        group="work",
        description=(
            "End a work. Refused with reason `pending_user_input` while input waits or is claimed and not completed: "
            "claim and complete it, then call again. `commands_running`: it closes once its commands have ended."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(_THE_WORK,),
        result=shapes.FINISHED,
    ),
)
