"""The operator's side of recorded operations: look, settle what waits for a person, forget what is kept.

Works on the database by the same compare-and-set steps as the daemon, whether one runs or not. Work of
a daemon that lives is left to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Protocol

from codespace import limits
from codespace.contract import Workspace
from codespace.drive import Stale
from codespace.errors import Refusal
from codespace.gateway.audit import Audit
from codespace.gateway.event import Event
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger
from codespace.gateway.neighbours import Neighbours
from codespace.gateway.occupancy import Occupancy
from codespace.gateway.opening import open_store
from codespace.gateway.operation import Kind, Operation
from codespace.gateway.operator import COMMAND_LINE
from codespace.gateway.settlement import Hands, Settlement


class OperatorsHands(Hands, Protocol):
    """The verbs of the runner that the operator's decisions take."""

    async def accept(self, operation_id: str, state_dir: str | None = None) -> None: ...


class Records:
    """What one database has recorded."""

    def __init__(
        self, ledger: Ledger, instances: Instances, settlement: Settlement, state_dir: str, hands: OperatorsHands
    ) -> None:
        self._ledger = ledger
        self._instances = instances
        self._settlement = settlement
        self._state_dir = state_dir
        self._hands = hands

    async def operations(self, kind: Kind | None = None, limit: int = limits.LIST_ROWS) -> tuple[Operation, ...]:
        """Return the newest operations, and each older one without an end; newest first."""
        return await self._ledger.list(kind=kind, limit=limit)

    async def count(self, kind: Kind | None = None) -> int:
        """Return how many operations are recorded."""
        return await self._ledger.count(kind)

    async def operation(self, operation_id: str) -> Operation:
        """Return one. Raises: Refusal OPERATION_NOT_FOUND."""
        found = await self._ledger.get(operation_id)
        if found is None:
            raise Refusal("OPERATION_NOT_FOUND", "No such operation is recorded.")
        return found

    async def events(self, operation_id: str) -> tuple[Event, ...]:
        """Return what happened to it, oldest first."""
        return await self._ledger.events(operation_id)

    async def dead_ids(self) -> frozenset[str]:
        """Return which daemons ended without a word: nothing of theirs runs, whatever is recorded."""
        return await self._instances.dead_ids()

    async def state_dir(self, operation: Operation) -> str:
        """Return the state directory in which its journal is, if it is still kept."""
        return await self._instances.state_dir(operation.instance_id) or self._state_dir

    async def settle(self, operation_id: str, *, accept: bool) -> Operation:
        """Give a patch its end that waits for the operator, and return it.

        Args:
            accept: Leave the files as they are and only record that; else they are put back as far as nobody else's
                work is in the way, however old the patch is.
        Raises: Refusal INVALID_ARGUMENT where it has an end, WORKSPACE_BUSY where its daemon lives or its root is in
            use, OUTCOME_UNKNOWN where it still cannot be seen.
        """
        operation = await self.operation(operation_id)
        is_left = operation.finished_at is None and operation.instance_id in await self.dead_ids()
        if operation.kind != "patch" or operation.finished_at is not None:
            what = "a patch" if operation.kind == "patch" else "a command"
            next_step = f"Look at it with `codespace operations show {operation.id}`."
            raise Refusal(
                "INVALID_ARGUMENT",
                f"Only a patch without an end can be settled, and this is {what} that "
                f"{'was' if is_left else 'is'} {operation.state}{' when its daemon ended' if is_left else ''}. "
                "Nothing was done.",
                next_step="Start a daemon: it records that nothing runs." if is_left else next_step,
                operation_id=operation.id,
            )
        if not is_left:
            raise Refusal(
                "WORKSPACE_BUSY",
                "The daemon that began this operation still runs, and settles it itself. Nothing was done.",
                next_step="Stop that daemon first, if it does not.",
                operation_id=operation.id,
            )
        if accept:
            await self._accept(operation)
        else:
            await self._put_back(operation)
        return await self.operation(operation_id)

    async def _put_back(self, operation: Operation) -> None:
        why = (
            "Its root is not registered, its journal is not there, a daemon settles it just now, it took too long, or "
            "CodeSpace met a fault, which the log tells."
        )
        next_step = "Register the root, or look whether it has an end by now."
        try:
            if await self._settlement.settle(operation, await self.state_dir(operation), forced=True):
                return
        except Refusal as refusal:
            why, next_step = refusal.message, refusal.next_step or next_step
        raise Refusal(
            "OUTCOME_UNKNOWN",
            f"It cannot be settled now: {why}",
            next_step=f"{next_step} Or close it as it is with --accept.",
            operation_id=operation.id,
        )

    async def _accept(self, operation: Operation) -> None:
        state_dir = await self.state_dir(operation)
        try:
            await self._settlement.accept(operation, partial(self._hands.accept, operation.id, state_dir), state_dir)
        except Stale as stale:
            raise Refusal(
                "WORKSPACE_BUSY",
                f"A daemon works on it and has recorded it as {stale.actual} just now. Nothing was done.",
                next_step=f"Look at it with `codespace operations show {operation.id}`.",
                operation_id=operation.id,
            ) from stale

    async def tidy(self, operation: Operation) -> None:
        """Throw away what a patch with an end may have left set aside, unless its daemon lives and does so itself."""
        if operation.kind == "patch" and not await self._instances.lives(operation.instance_id):
            await self._settlement.tidy(operation, await self.state_dir(operation))

    async def note_forgotten(self, operation_id: str) -> None:
        """Record that the operator had a snapshot removed."""
        await self._ledger.note("snapshot", operation_id, "forgotten", "The operator had the bytes before removed.")


@asynccontextmanager
async def open_records(
    database: str,
    state_dir: str,
    workspaces: Mapping[str, Workspace],
    wall_clock: Callable[[], float],
    hands: OperatorsHands,
) -> AsyncIterator[Records]:
    """Open the database.

    Args:
        hands: What looks at journals and files.
    Raises: Refusal STORE_UNAVAILABLE.
    Cancel: what was recorded stays recorded.
    """
    async with open_store(database) as store:
        ledger = Ledger(store, wall_clock, COMMAND_LINE, Audit(wall_clock, COMMAND_LINE))
        instances = Instances(store, wall_clock, state_dir, ())
        with closing(Occupancy(Neighbours(ledger, COMMAND_LINE).occupant)) as occupancy:
            settlement = Settlement(ledger, occupancy, hands, workspaces.values(), wall_clock)
            yield Records(ledger, instances, settlement, state_dir, hands)
