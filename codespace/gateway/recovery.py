"""Settles what dead daemons left unfinished: patches from journal and hashes, commands as lost.

Runs at start, bounded; a root that is busy, gone or not registered stays as it is and is tried
again at the next start. It never starts anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog
import trio

from codespace import limits
from codespace.contract import PatchReport, Runner, Workspace
from codespace.drive import Motion
from codespace.errors import Refusal
from codespace.gateway import lasting
from codespace.gateway.holds import Holds
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.occupancy import Occupancy, Occupant
from codespace.gateway.patching import FOUND, not_applied
from statemachines.execution import Execution
from statemachines.patch import Patch

log = structlog.get_logger("codespace.recovery")

_BEFORE_FIRST_RENAME = frozenset({"minted", "planning", "snapshotting"})


class Recovery:
    """Settles the work of dead instances of one database."""

    def __init__(
        self,
        instances: Instances,
        ledger: Ledger,
        holds: Holds,
        occupancy: Occupancy,
        runner: Runner,
        workspaces: Iterable[Workspace],
        wall_clock: Callable[[], float],
    ) -> None:
        self._instances = instances
        self._ledger = ledger
        self._holds = holds
        self._occupancy = occupancy
        self._runner = runner
        self._by_root = {workspace.root: workspace for workspace in workspaces}
        self._wall_clock = wall_clock

    async def run(self) -> None:
        """Settle what can be settled within limits.RECOVERY_SECONDS; the rest waits for the next start.

        Raises: Refusal STORE_UNAVAILABLE.
        """
        with trio.move_on_after(limits.RECOVERY_SECONDS) as patience:
            for instance in await self._instances.dead():
                unfinished = await self._ledger.unfinished([instance.id])
                settled = [await self._settle(operation) for operation in unfinished]
                await self._holds.settle(instance.id, self._ledger)
                if all(settled):
                    await self._instances.end(instance.id)
        if patience.cancelled_caught:
            log.warning("recovery ran out of time; the rest is tried at the next start")

    async def _settle(self, operation: Operation) -> bool:
        """Return whether the operation has a final state now."""
        if operation.kind == "exec":
            await self._lose(operation)
            return True
        workspace = self._by_root.get(operation.root)
        if workspace is None:
            log.warning("a patch waits for its root to be registered again", operation_id=operation.id)
            return False
        try:
            occupant = Occupant("patch", operation.id, self._wall_clock())
            with await self._occupancy.enter(workspace, occupant):
                return await self._settle_patch(workspace, operation)
        except Refusal as refusal:
            log.warning("a patch could not be settled yet", operation_id=operation.id, code=refusal.code)
            return False

    async def _lose(self, operation: Operation) -> None:
        """The daemon's end took the tree along; nobody saw the exit code."""
        motion = Motion(Execution, operation.id, operation.state, self._ledger.recorder("operation"))
        event = "found_lost" if operation.state == "unknown" else "owner_gone"
        await motion.move(event, changes={"outcome": {"termination": "lost"}})
        log.info("a command of a dead daemon is recorded as lost", operation_id=operation.id)

    async def _settle_patch(self, workspace: Workspace, operation: Operation) -> bool:
        motion = Motion(Patch, operation.id, operation.state, self._ledger.recorder("operation"))
        settled = await self._runner.settle(workspace, operation.id)
        if operation.state in _BEFORE_FIRST_RENAME:
            refusal = Refusal(
                "TIMEOUT",
                "The daemon ended before the first rename; nothing was written.",
                operation_id=operation.id,
                details={"status": "rejected", "changes": [], "replayed": False},
            )
            await motion.move("refused", changes={"outcome": refusal.body()})
            return True
        if operation.state != "unknown":
            await motion.move("sight_lost")
        if settled is None:
            return False
        status, report = settled
        await motion.move(FOUND[status], changes={"outcome": _outcome(operation, status, report)})
        log.info("a patch of a dead daemon was settled", operation_id=operation.id, status=status)
        return True


def _outcome(operation: Operation, status: str, report: PatchReport) -> dict[str, Any] | None:
    if status == "applied":
        return None
    refusal = not_applied(report, report.refusal, report.rescued)
    refusal.operation_id = operation.id
    details = refusal.details or {}
    refusal.details = details | {"status": status, "changes": list(operation.changes), "replayed": False}
    return lasting.refusal_body(refusal)
