"""The tools of the group `approvals`: holds, their decision and what runs behind a grant."""

from __future__ import annotations

from typing import Final

from codespace.protocol import shapes
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Hints, Tool
from codespace.protocol.tools.vocabulary import LOOKS, wait

_APPROVAL: Final = Argument(
    "approval_id", "text", "The id from APPROVAL_REQUIRED or approval_create.", required=True, minimum=1, maximum=200
)

APPROVALS: Final = (
    Tool(
        name="approval_create",
        title="Ask for approval",
        group="approvals",
        description=(
            "Hold an apply_patch, exec_command or operation_undo for approval without doing it. Then approval_status "
            "with wait_seconds, and operation_resume once it is granted."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            Argument(
                "tool",
                "text",
                "The tool to hold.",
                required=True,
                choices=("apply_patch", "exec_command", "operation_undo"),
            ),
            Argument("arguments", "object", "The arguments of that tool.", required=True),
        ),
        result=shapes.HELD,
    ),
    Tool(
        name="approval_status",
        title="Status of an approval",
        group="approvals",
        description=(
            "Say whether a held request was granted, denied or resumed; with wait_seconds it waits for a decision. "
            "Once granted, call operation_resume."
        ),
        hints=LOOKS,
        arguments=(_APPROVAL, wait(0.0, "How long to wait for a decision.")),
        result=shapes.APPROVAL,
    ),
    Tool(
        name="approval_resolve",
        title="Grant or deny",
        group="approvals",
        description=(
            "Grant or deny a held request, where the workspace lets the caller do so (`confirm`); ask your user first. "
            "Where approvals are `operator` only the operator can."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            _APPROVAL,
            Argument("decision", "text", "What to decide.", required=True, choices=("grant", "deny")),
        ),
        result=shapes.HELD,
    ),
    Tool(
        name="operation_resume",
        title="Run what was granted",
        group="approvals",
        description=(
            "Run a granted request, exactly as it was shown, once; asked again it repeats the stored result. Before a "
            "grant it is refused with APPROVAL_REQUIRED."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=True, open_world=True),
        arguments=(_APPROVAL,),
        result=shapes.RESUMED,
    ),
)
