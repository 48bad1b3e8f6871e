"""Finds what was left unfinished and has it settled: by dead daemons at the start, by faults while this one lives.

A root that is busy, gone or not registered stays as it is and is tried again. It decides no outcome;
`settlement` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from codespace import limits
from codespace.drive import Step
from codespace.errors import Refusal
from codespace.gateway.holds import Holds
from codespace.gateway.instances import Instance, Instances
from codespace.gateway.ledger import Ledger, Operation, Unsettled
from codespace.gateway.occupancy import Occupant
from codespace.gateway.settlement import Settlement

log = structlog.get_logger("codespace.recovery")


class Leftovers:
    """Where this daemon's drivers say that their work left something unfinished."""

    def __init__(self) -> None:
        self._told = trio.Event()
        self._none = trio.Event()
        self._none.set()

    def tell(self) -> None:
        self._told.set()
        if self._none.is_set():
            self._none = trio.Event()

    def settled(self) -> None:
        """Say that nothing is left of what was told before the last return of `wait`."""
        if not self._told.is_set():
            self._none.set()

    async def wait_none(self) -> None:
        """Return once all that was told is settled."""
        await self._none.wait()

    async def wait(self) -> None:
        """Return once something was told since the last return. Cancel: it stays told."""
        await self._told.wait()
        self._told = trio.Event()


class Recovery:
    """Sees to it that every operation of a database gets its end."""

    def __init__(self, instances: Instances, ledger: Ledger, holds: Holds, settlement: Settlement) -> None:
        self._instances = instances
        self._ledger = ledger
        self._holds = holds
        self._settlement = settlement
        self.under_way: Callable[[], frozenset[str]] = frozenset
        """The operations that this daemon's drivers still work for, which are left alone; set once they are there."""
        self._tolerated: dict[str, float] = {}
        self._tried: set[str] = set()
        """Daemons that died and left what could not be settled or swept when it was tried."""

    async def run(self) -> None:
        """Settle what dead daemons left within limits.RECOVERY_SECONDS; the rest waits for the next start.

        Raises: Refusal STORE_UNAVAILABLE.
        """
        with trio.move_on_after(limits.RECOVERY_SECONDS) as patience:
            for instance in await self._instances.dead():
                await self._settle_dead(instance)
            await self._tidy(self._instances.own.state_dir)
        if patience.cancelled_caught:
            log.warning("recovery ran out of time; the rest is tried at the next start")

    async def watch(self) -> None:
        """Settle what other daemons leave that die while this one lives, until cancelled.

        Each is tried once, or until the database takes it; what cannot be settled then waits for who enters its root,
        or for the next start.
        """
        while True:
            await trio.sleep(limits.NEIGHBOURS_SECONDS)
            try:
                for instance in await self._instances.dead():
                    if instance.id not in self._tried:
                        await self._settle_dead(instance)
            except Refusal as refusal:
                log.warning("daemons that died could not be looked for yet", code=refusal.code)
            except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
                log.exception("what a dead daemon left could not be settled")

    async def _settle_dead(self, instance: Instance) -> None:
        settled = await self._settle(instance.id, frozenset, instance.state_dir)
        swept = await self._tidy(instance.state_dir, instance.id)
        if settled and (swept or instance.state_dir == self._instances.own.state_dir):  # which every start sweeps
            await self._instances.bury(instance)
        elif settled is not None:
            self._tried.add(instance.id)

    async def mint(self, operation: Operation, also_move: Sequence[Step]) -> None:
        """Record a new command of one who holds the root; a patch that was left unfinished there is settled first.

        One that cannot be settled yet does not stop it: a command may be what clears the way.

        Raises: as Ledger.mint.
        """
        try:
            await self._ledger.mint(operation, also_move, tolerated=self.tolerated())
        except Unsettled as unsettled:
            await self.settle_before(unsettled.operations)
            await self._ledger.mint(operation, also_move)

    async def settle_before(self, operations: Sequence[Operation]) -> Refusal | None:
        """Settle what is left in the root; what can lastingly not be settled is tolerated for a while.

        Returns: WORKSPACE_BUSY where a passing reason keeps one from being settled: it may yet put files back, so no
            patch may be made on top of it.
        """
        own = self._instances.own
        dead = {instance.id: instance for instance in await self._instances.dead()}
        waits: Refusal | None = None
        for operation in operations:
            owner = own if operation.instance_id == own.id else dead.get(operation.instance_id)
            try:
                if owner is None or not await self._settlement.settle(operation, owner.state_dir, entered=True):
                    self._tolerated[operation.id] = trio.current_time() + limits.SETTLE_AGAIN_SECONDS
            except Refusal as passing:
                waits = waits or _is_to_be_settled(operation, passing)
        for instance in {each.instance_id for each in operations} & dead.keys():
            await self._holds.settle(instance, self._ledger)
        return waits

    def tolerated(self) -> frozenset[str]:
        """Return the patches that stop nobody: those under way, and those that could not be settled a moment ago."""
        now = trio.current_time()
        self._tolerated = {name: until for name, until in self._tolerated.items() if until > now}
        return self.under_way() | self._tolerated.keys()

    async def _tidy(self, state_dir: str, instance_id: str | None = None) -> bool:
        """Sweep behind finished patches of daemons that are gone and could not do so themselves.

        Returns: whether nothing is left of those of `instance_id`: nobody looks there again once it is buried.
        """
        leftovers = await self._settlement.leftovers(state_dir)
        clean = leftovers is not None
        for operation_id in leftovers or ():
            operation = await self._ledger.get(operation_id)
            if operation is None or operation.finished_at is None or await self._instances.lives(operation.instance_id):
                continue
            tidied = await self._settlement.tidy(operation, state_dir)
            clean &= tidied or operation.instance_id != instance_id
        return clean

    async def tend(self, leftovers: Leftovers) -> None:
        """Settle this daemon's own leftovers until cancelled; a key must not be stuck until the next start."""
        pause = limits.RECORD_RETRY_SECONDS
        while True:
            await leftovers.wait()
            await trio.sleep(pause)
            if await self._settle_own():
                leftovers.settled()
                pause = limits.RECORD_RETRY_SECONDS
            else:
                pause = min(2 * pause, limits.SETTLE_PAUSE_SECONDS)
                leftovers.tell()

    async def _settle_own(self) -> bool:
        try:
            await self._ledger.wait_written()  # a row whose commit hung is seen once it is there, or is never there
            return bool(await self._settle(self._instances.own.id, self.under_way))
        except Refusal as refusal:
            log.warning("leftovers could not be looked for yet", code=refusal.code)
        except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
            log.exception("leftovers could not be settled")
        return False

    async def end(self) -> None:
        """Say that this daemon has ended, unless it leaves something that its successor must settle."""
        own = self._instances.own.id
        if await self._ledger.unfinished([own]) or await self._holds.resuming(own):
            log.warning("something is left for the next start to settle", instance=own)
        else:
            await self._instances.end(own)

    async def _settle(
        self, instance_id: str, under_way: Callable[[], frozenset[str]], state_dir: str | None = None
    ) -> bool | None:
        """Return whether nothing of the instance is left to be settled; None where the database kept it from that."""
        before = under_way()  # and after: what begins or ends while the rows are read is no leftover
        unfinished = await self._ledger.unfinished([instance_id])
        driven = before | under_way()
        settled = [await self._settlement.settle(each, state_dir) for each in unfinished if each.id not in driven]
        held = await self._holds.settle(instance_id, self._ledger)
        return None if None in settled else held and all(settled)


def _is_to_be_settled(operation: Operation, passing: Refusal) -> Refusal:
    return Refusal(
        "WORKSPACE_BUSY",
        f"An earlier patch ({operation.id}) was cut off, and what is to become of its files cannot be settled yet "
        f"({passing.code}); nothing was done.",
        next_step="Send the same call again in a moment. If it stays so, ask the operator what is in the way of the "
        "earlier patch (the disk, the database); the log names it.",
        details=Occupant("patch", operation.id, operation.created_at).details(),
    )
