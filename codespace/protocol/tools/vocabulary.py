"""What tools of several groups say alike: their arguments and hints."""

from __future__ import annotations

from typing import Final

from codespace import limits
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Hints

LOOKS: Final = Hints(read_only=True, destructive=False, idempotent=True, open_world=False)
WORKSPACE: Final = Argument(
    "workspace_id", "text", "Which registered directory; may be left out when there is only one.", maximum=200
)
KEY: Final = Argument(
    "operation_key",
    "text",
    "Your own unique key: sending the same call with it again repeats the result, never the effect.",
    minimum=1,
    maximum=limits.OPERATION_KEY_CHARACTERS,
    printable=True,
)
WORK: Final = Argument("work_id", "text", "The work (from work_open) that this belongs to.", minimum=1, maximum=200)
ENCODING: Final = Argument(
    "encoding", "text", "`text` (UTF-8) or `base64`.", default="text", choices=("text", "base64")
)


def wait(default: float, what: str) -> Argument:
    return Argument("wait_seconds", "number", what, default=default, minimum=0, maximum=limits.WAIT_SECONDS_MAXIMUM)
