"""Settles one unfinished operation that no driver works for any more: from journal and hashes, or as lost.

It never starts anything again. Who asks knows that nobody else is at it: the operation's daemon is
dead, or it is this one and its driver has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import structlog
import trio

from codespace import limits
from codespace.contract import PatchReport, Workspace
from codespace.drive import Motion, Stale
from codespace.errors import Refusal
from codespace.gateway import lasting, outcomes
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.occupancy import Occupancy, Occupant
from statemachines.execution import Execution
from statemachines.patch import Patch

log = structlog.get_logger("codespace.settlement")


_BEFORE_FIRST_RENAME: Final = frozenset({"minted", "planning", "snapshotting"})


class Hands(Protocol):
    """The verbs of the runner that settling takes."""

    async def settle(
        self, workspace: Workspace, operation_id: str, state_dir: str | None = None
    ) -> tuple[str, PatchReport] | None: ...
    async def finish(self, workspace: Workspace, operation_id: str, state_dir: str | None = None) -> PatchReport: ...
    async def leftovers(self, state_dir: str | None = None) -> Sequence[str]: ...


class Settlement:
    """Gives unfinished operations their end."""

    def __init__(
        self,
        ledger: Ledger,
        occupancy: Occupancy,
        runner: Hands,
        workspaces: Iterable[Workspace],
        wall_clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._occupancy = occupancy
        self._runner = runner
        self._by_root = {workspace.root: workspace for workspace in workspaces}
        self._wall_clock = wall_clock

    async def settle(
        self, operation: Operation, state_dir: str | None = None, *, entered: bool = False, forced: bool = False
    ) -> bool | None:
        """Return whether the operation has a final state now; None where the database did not take it just now.

        Args:
            state_dir: Of the daemon that began it; None for this one.
            entered: Whether the caller holds the root.
            forced: Whether the operator wants it put back however old it is.
        Raises: Refusal where `forced`, which says why not, and where `entered`, of what passes. Nothing else: what
            cannot be settled, by whatever fault, keeps neither others nor the daemon waiting.
        Cancel: the operation stays as it is recorded.
        """
        try:
            if operation.kind == "exec":
                return await self._lose(operation)
            return await self._enter_and_settle(operation, state_dir, entered=entered, forced=forced)
        except Stale as stale:
            log.info("another daemon settles an operation", operation_id=operation.id, recorded=stale.actual)
        except Refusal as refusal:
            log.warning(
                "an operation could not be settled yet",
                operation_id=operation.id,
                code=refusal.code,
                reason=refusal.message,
            )
            if forced or (entered and refusal.retryable):
                raise
            return None if refusal.code == "STORE_UNAVAILABLE" else False
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

    async def accept(
        self, operation: Operation, mark: Callable[[], Awaitable[None]], state_dir: str | None = None
    ) -> None:
        """Record that the operator leaves the files as they are; nothing is looked at or put back.

        The root is entered, so that nobody puts back meanwhile; one that is gone or not registered lets nobody in.

        Args:
            mark: Says so in the journal, for who tidies up behind the patch.
            state_dir: Of the daemon that began it; None for this one.
        Raises: Stale; Refusal WORKSPACE_BUSY, STORE_UNAVAILABLE; what `mark` raises.
        """
        workspace = self._by_root.get(operation.root)
        with contextlib.ExitStack() as held:
            if workspace is not None:
                try:
                    held.enter_context(await self._occupancy.enter(workspace, self._occupant(operation)))
                except Refusal as refusal:
                    if refusal.code != "FILE_OPERATION_FAILED" or refusal.retryable:
                        raise
            await mark()
            await self._record_accepted(operation)
            await self.tidy(operation, state_dir)

    async def _record_accepted(self, operation: Operation) -> None:
        motion = self._motion(operation)
        refusal = Refusal(
            "PATCH_PARTIAL",
            "The patch was cut off, and the operator left its files as they are.",
            operation_id=operation.id,
            details={"kept": list(operation.files), "changes": list(operation.changes), "replayed": False},
        )
        if operation.state in _BEFORE_FIRST_RENAME:
            await motion.move("refused", changes={"outcome": _cut_short(operation).body()})
            return
        assert refusal.details is not None
        refusal.details["status"] = "failed_partial"
        ways = outcomes.found("failed_partial")[operation.state]
        await motion.move(*ways, changes={"outcome": lasting.refusal_body(refusal)})

    async def _enter_and_settle(
        self, operation: Operation, state_dir: str | None, *, entered: bool, forced: bool
    ) -> bool:
        workspace = self._by_root.get(operation.root)
        if workspace is None:
            log.warning("a patch waits for its root to be registered again", operation_id=operation.id)
            return await self._lose_sight(operation)
        if not forced and self._waits_for_the_operator(operation):
            log.warning("a patch is too old to be put back unasked", operation_id=operation.id)
            return await self._lose_sight(operation)
        try:
            with contextlib.ExitStack() as held:
                if not entered:
                    held.enter_context(await self._occupancy.enter(workspace, self._occupant(operation)))
                with trio.fail_after(limits.VERB_SECONDS):
                    return await self._settle_patch(workspace, operation, state_dir)
        except Refusal as refusal:
            if refusal.code not in ("WORKSPACE_BUSY", "STORE_UNAVAILABLE"):
                # Protects the record of what cannot be seen as long as that is so; the refusal says what is in the way.
                with trio.move_on_after(limits.RECORD_SECONDS, shield=True):
                    await self._lose_sight(operation)
            raise

    def _occupant(self, operation: Operation) -> Occupant:
        return Occupant("patch", operation.id, self._wall_clock())

    def _waits_for_the_operator(self, operation: Operation) -> bool:
        """Return whether putting back could undo work of many hours that nobody connects with the patch any more."""
        age = self._wall_clock() - operation.created_at
        return operation.state not in _BEFORE_FIRST_RENAME and age > limits.JOURNAL_AGE_SECONDS

    async def _lose_sight(self, operation: Operation) -> bool:
        motion = self._motion(operation)
        if motion.can("sight_lost"):
            await motion.move("sight_lost")
        return False

    async def _settle_patch(self, workspace: Workspace, operation: Operation, state_dir: str | None) -> bool:
        motion = self._motion(operation)
        settled = await self._runner.settle(workspace, operation.id, state_dir)
        if operation.state in _BEFORE_FIRST_RENAME:
            await motion.move("refused", changes={"outcome": _cut_short(operation).body()})
        elif settled is None:
            return await self._lose_sight(operation)
        else:
            status, report = settled
            await motion.move(
                *outcomes.found(status)[operation.state],
                changes={"outcome": _outcome(operation, outcomes.FINAL[status], report)},
            )
        log.info("a patch was settled", operation_id=operation.id, state=motion.state)
        await self._tidy(workspace, operation, state_dir)
        return True

    async def leftovers(self, state_dir: str) -> tuple[str, ...] | None:
        """Return the operations of a daemon that was here whose journals say that they were not tidied up behind.

        Never raises: None where they could not be looked at.
        """
        try:
            with trio.fail_after(limits.TIDY_SECONDS):
                return tuple(await self._runner.leftovers(state_dir))
        except Refusal as refusal:
            log.warning("journals could not be looked at", state_dir=state_dir, reason=refusal.message)
            return None
        except Exception as problem:
            log.warning("journals could not be looked at", exc_info=problem)
            return None

    async def tidy(self, operation: Operation, state_dir: str | None = None) -> bool:
        """Throw away what a patch, whose end is recorded, may have left set aside. Never raises.

        Returns: whether nothing is left of it.
        """
        workspace = self._by_root.get(operation.root)
        return workspace is not None and await self._tidy(workspace, operation, state_dir)

    async def _tidy(self, workspace: Workspace, operation: Operation, state_dir: str | None) -> bool:
        try:
            with trio.fail_after(limits.TIDY_SECONDS):
                report = await self._runner.finish(workspace, operation.id, state_dir)
                await self._ledger.note_rescued(operation.id, report.rescued)
                return report.clean
        except Refusal as refusal:
            log.warning(
                "could not tidy up after a patch", operation_id=operation.id, code=refusal.code, reason=refusal.message
            )
        except Exception as problem:  # it is settled; only what was set aside is still there
            log.warning("could not tidy up after a patch", operation_id=operation.id, exc_info=problem)
        return False

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
