"""Settles one unfinished operation that no driver works for any more: from journal and hashes, or as lost.

It never starts anything again. Who asks knows that nobody else is at it: the operation's daemon is
dead, or it is this one and its driver has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog
import trio

from codespace import limits
from codespace.contract import PatchReport, Runner, Workspace
from codespace.drive import Motion, Stale
from codespace.errors import Refusal
from codespace.gateway import lasting, outcomes
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.occupancy import Occupancy, Occupant
from statemachines.execution import Execution
from statemachines.patch import Patch

log = structlog.get_logger("codespace.settlement")


class Settlement:
    """Gives unfinished operations their end."""

    def __init__(
        self,
        ledger: Ledger,
        occupancy: Occupancy,
        runner: Runner,
        workspaces: Iterable[Workspace],
        wall_clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._occupancy = occupancy
        self._runner = runner
        self._by_root = {workspace.root: workspace for workspace in workspaces}
        self._wall_clock = wall_clock

    async def settle(self, operation: Operation) -> bool:
        """Return whether the operation has a final state now.

        Never raises: what cannot be settled, by whatever fault, keeps neither others nor the daemon waiting.
        Cancel: the operation stays as it is recorded.
        """
        try:
            if operation.kind == "exec":
                return await self._lose(operation)
            return await self._enter_and_settle(operation)
        except Stale as stale:
            log.info("another daemon settles an operation", operation_id=operation.id, recorded=stale.actual)
        except Refusal as refusal:
            log.warning("an operation could not be settled yet", operation_id=operation.id, code=refusal.code)
        except Exception:
            log.exception("settling an operation failed", operation_id=operation.id)
        return False

    async def _lose(self, operation: Operation) -> bool:
        """The end of its daemon or its driver took the tree along; nobody saw the exit code."""
        motion = self._motion(operation)
        event = "found_lost" if operation.state == "unknown" else "owner_gone"
        await motion.move(event, changes={"outcome": {"termination": "lost"}})
        log.info("a command is recorded as lost", operation_id=operation.id)
        return True

    async def _enter_and_settle(self, operation: Operation) -> bool:
        workspace = self._by_root.get(operation.root)
        if workspace is None:
            log.warning("a patch waits for its root to be registered again", operation_id=operation.id)
            return False
        occupant = Occupant("patch", operation.id, self._wall_clock())
        with await self._occupancy.enter(workspace, occupant), trio.fail_after(limits.VERB_SECONDS):
            return await self._settle_patch(workspace, operation)

    async def _settle_patch(self, workspace: Workspace, operation: Operation) -> bool:
        motion = self._motion(operation)
        settled = await self._runner.settle(workspace, operation.id)
        if operation.state in ("minted", "planning", "snapshotting"):
            await motion.move("refused", changes={"outcome": _cut_short(operation).body()})
        elif settled is None:
            if motion.can("sight_lost"):
                await motion.move("sight_lost")
            return False
        else:
            status, report = settled
            await motion.move(
                *outcomes.found(status)[operation.state],
                changes={"outcome": _outcome(operation, outcomes.FINAL[status], report)},
            )
        log.info("a patch was settled", operation_id=operation.id, state=motion.state)
        await self._tidy(workspace, operation)
        return True

    async def tidy(self, operation: Operation) -> None:
        """Throw away what a patch, whose end is recorded, may have left set aside. Never raises."""
        workspace = self._by_root.get(operation.root)
        if workspace is not None:
            await self._tidy(workspace, operation)

    async def _tidy(self, workspace: Workspace, operation: Operation) -> None:
        try:
            with trio.fail_after(limits.TIDY_SECONDS):
                await self._runner.finish(workspace, operation.id)
        except Exception as problem:  # it is settled; only what was set aside is still there
            log.warning("could not tidy up after a patch", operation_id=operation.id, exc_info=problem)

    def _motion(self, operation: Operation) -> Motion:
        law = Patch if operation.kind == "patch" else Execution
        return Motion(law, operation.id, operation.state, self._ledger.recorder("operation"))


def _cut_short(operation: Operation) -> Refusal:
    return Refusal(
        "TIMEOUT",
        "The patch was cut off before the first rename; nothing was written.",
        operation_id=operation.id,
        details={"status": "rejected", "changes": [], "replayed": False},
    )


def _outcome(operation: Operation, status: str, report: PatchReport) -> dict[str, Any] | None:
    if status == "applied":
        return None
    refusal = outcomes.not_applied(report, report.refusal, report.rescued)
    refusal.operation_id = operation.id
    details = refusal.details or {}
    refusal.details = details | {"status": status, "changes": list(operation.changes), "replayed": False}
    return lasting.refusal_body(refusal)
