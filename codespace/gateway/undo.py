"""What an undo is planned from: an applied patch of the ledger, and the journal of the daemon that applied it.

It decides whether there is anything to undo; files and journals are the runner's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from codespace.contract import PatchPlan, Runner, Workspace
from codespace.errors import Refusal
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.view import hides_any


def plan_patch(runner: Runner) -> Callable[[Workspace, str, Mapping[str, Any]], Awaitable[PatchPlan]]:
    """Return what plans an apply_patch."""

    async def plan(workspace: Workspace, operation_id: str, arguments: Mapping[str, Any]) -> PatchPlan:
        return await runner.plan(workspace, operation_id, arguments["patch"], arguments["expected_versions"])

    return plan


class Undo:
    """Plans an operation_undo."""

    def __init__(self, runner: Runner, ledger: Ledger, instances: Instances) -> None:
        self._runner = runner
        self._ledger = ledger
        self._instances = instances

    async def plan(self, workspace: Workspace, operation_id: str, arguments: Mapping[str, Any]) -> PatchPlan:
        """Plan to take back `arguments["operation_id"]`.

        Raises: Refusal OPERATION_NOT_FOUND, INVALID_ARGUMENT where it was not applied, SNAPSHOT_EXPIRED,
            VERSION_CONFLICT, FILE_NOT_FOUND where a file is hidden by now.
        """
        undone = require_undoable(await self._ledger.get(arguments["operation_id"]))
        if undone.root != workspace.root:
            raise Refusal(
                "SNAPSHOT_EXPIRED",
                f"The operation was applied to another directory than workspace {workspace.id} is now; "
                "nothing was written.",
            )
        if hides_any(workspace, undone.changes):
            raise Refusal(
                "FILE_NOT_FOUND",
                "A file that the operation changed does not exist for the tools any more: it is hidden by now. Nothing "
                "was written.",
                next_step="Take back what is left of it with a patch of your own.",
            )
        state_dir = await self._instances.state_dir(undone.instance_id)
        return await self._runner.plan_undo(workspace, operation_id, undone.id, state_dir)


def require_undoable(operation: Operation | None) -> Operation:
    """Return the operation, or refuse one that changed nothing."""
    if operation is None:
        raise Refusal("OPERATION_NOT_FOUND", "No such operation is recorded.")
    if operation.kind != "patch" or operation.state != "applied":
        what = "a command" if operation.kind == "exec" else f"recorded as {operation.state}"
        raise Refusal(
            "INVALID_ARGUMENT",
            f"Only a patch that was applied can be undone, and this operation is {what}. Nothing was written.",
            next_step="Look at operation_status for what it did.",
            details={"argument": "operation_id"},
            operation_id=operation.id,
        )
    return operation
