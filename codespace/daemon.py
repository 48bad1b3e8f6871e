"""Wires the rooms of one daemon together and keeps the order of its start and its stop.

Start: store, instance, runner, recovery, doors. Stop, under one hard deadline: no new work, doors
closed, processes ended, patches finished or left to their journal, store closed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import trio

from codespace import limits
from codespace.contract import DiffPage, Inbox, Runner, Tools
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.admission import Admission, Driver
from codespace.gateway.audit import Audit
from codespace.gateway.brake import Brake
from codespace.gateway.elsewhere import Elsewhere
from codespace.gateway.execution import Execution
from codespace.gateway.feeding import Feeding
from codespace.gateway.gate import Gate
from codespace.gateway.grants import Grants
from codespace.gateway.holds import Holds
from codespace.gateway.inbox import Inbox as GatewayInbox
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger
from codespace.gateway.links import Links
from codespace.gateway.neighbours import Neighbours
from codespace.gateway.occupancy import Occupancy
from codespace.gateway.opening import open_store
from codespace.gateway.operator import Operator
from codespace.gateway.patching import Patching
from codespace.gateway.plans import Plans
from codespace.gateway.polls import Polls
from codespace.gateway.processes import Processes
from codespace.gateway.recovery import Leftovers, Recovery
from codespace.gateway.registry import Registry
from codespace.gateway.request import Fingerprints
from codespace.gateway.runs import Runs
from codespace.gateway.scrubber import Scrubber
from codespace.gateway.settlement import Settlement
from codespace.gateway.snapshots import prune
from codespace.gateway.stops import Stops
from codespace.gateway.store import Store
from codespace.gateway.undo import Undo, plan_patch
from codespace.gateway.works import Works
from codespace.protocol.tools import offered
from codespace.runner import inprocess, uds
from codespace.sandbox import shortage
from codespace.sandbox.box import Sandbox
from codespace.settings import Settings

log = structlog.get_logger("codespace.daemon")

PROTOCOL_VERSIONS = ("2025-11-25", "2026-07-28")


class Daemon:
    """A running daemon, as its doors see it.

    Attributes:
        inbox: What the operator's door calls.
        operator: Decides holds and grants, for the doors of the operator.
        kept_diff: Gives a page of the whole diff of an operation of any daemon, from a cursor on.
        exposed: Groups of tools to offer.
        transports: Doors that are open; workspace_info tells them.
        stopping: Set when the stop begins: doors close.
        polls: Long waits, which the stop ends.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        gate: Gate,
        inbox: Inbox,
        operator: Operator,
        kept_diff: Callable[[str, int], Awaitable[DiffPage]],
        polls: Polls,
        occupancy: Occupancy,
        exposed: tuple[str, ...],
        transports: list[str],
    ) -> None:
        self.settings = settings
        self.tools: Tools = gate
        self.inbox = inbox
        self.operator = operator
        self.kept_diff = kept_diff
        self.exposed = exposed
        self.transports = transports
        self.stopping = trio.Event()
        self._gate = gate
        self.polls = polls
        self._occupancy = occupancy

    def begin_stop(self) -> None:
        """Refuse new work, and answer those who wait with what is known. Does nothing the second time."""
        self.stopping.set()
        self._gate.close()
        self._occupancy.refuse()
        self.polls.end()


@asynccontextmanager
async def open_daemon(
    settings: Settings,
    *,
    console: bool = False,
    wall_clock: Callable[[], float] = time.time,
    open_runner: Callable[..., AbstractAsyncContextManager[Runner]] | None = None,
    sandbox: Callable[[str | None], Sandbox | None] = Sandbox,
) -> AsyncIterator[Daemon]:
    """Run a daemon without doors until the block ends.

    Args:
        console: Whether the operator's console will be served: works can be steered then.
        open_runner: Runs another runner than the one that the settings name.
        sandbox: Gives what commands are locked into, for the operator's `bwrap_path`; None for no sandbox at all.
    Raises: Refusal STORE_UNAVAILABLE where database or state dir cannot be used.
    Cancel: the stop is as ordered as a normal one, within limits.STOP_SECONDS.
    """
    async with open_store(settings.database) as store:
        roots = [workspace.root for workspace in settings.workspaces.values()]
        instances = Instances(store, wall_clock, settings.state_dir, roots)
        try:
            await instances.register()
            async with (
                _begun(
                    (open_runner or _runner(settings))(
                        state_dir=settings.state_dir,
                        rg_path=settings.rg_path,
                        bwrap_path=settings.bwrap_path,
                        retention_seconds=settings.retention_seconds,
                        wall_clock=wall_clock,
                        spool_bytes=settings.spool_bytes,
                        process_spool_bytes=settings.process_spool_bytes,
                        sandbox=sandbox(settings.bwrap_path),
                        networked=any(workspace.network == "enabled" for workspace in settings.workspaces.values()),
                    )
                ) as runner,
                _open_gateway(settings, store, instances, runner, wall_clock, _exposed(settings, console)) as daemon,
            ):
                yield daemon
        finally:
            instances.close()


@asynccontextmanager
async def _begun(opening: AbstractAsyncContextManager[Runner]) -> AsyncIterator[Runner]:
    """Run a runner that has to have folders of its own in the state directory. Raises: Refusal STORE_UNAVAILABLE."""
    async with AsyncExitStack() as stack:
        try:
            runner = await stack.enter_async_context(opening)
        except OSError as error:
            place = error.filename or "A folder for commands"
            is_short = shortage.is_behind(error)
            raise Refusal(
                "STORE_UNAVAILABLE",
                f"{place} cannot be made: {error.strerror}. The daemon did not start.",
                next_step=shortage.NEXT_STEP
                if is_short
                else "Give CODESPACE_STATE_DIR a directory that the daemon can write.",
                retryable=is_short,
            ) from error
        yield runner


@asynccontextmanager
async def _open_gateway(
    settings: Settings,
    store: Store,
    instances: Instances,
    runner: Runner,
    wall_clock: Callable[[], float],
    exposed: tuple[str, ...],
) -> AsyncIterator[Daemon]:
    chain = Audit(wall_clock, instances.own.id)
    ledger = Ledger(store, wall_clock, instances.own.id, chain)
    with closing(Occupancy(Neighbours(ledger, instances.own.id).occupant)) as occupancy:
        async with AsyncExitStack() as behind, _open_drivers() as drivers:
            house = _wire(
                settings=settings,
                store=store,
                chain=chain,
                ledger=ledger,
                occupancy=occupancy,
                instances=instances,
                runner=runner,
                drivers=drivers,
                wall_clock=wall_clock,
                exposed=exposed,
            )
            await house.start(drivers)
            behind.push_async_callback(house.say_goodbye)
            try:
                yield house.daemon
            finally:
                house.daemon.begin_stop()
                # Protects the order of the stop: processes end and are recorded, patches finish. What is
                # left at the deadline is cut off: the runner ends trees, journals settle patches.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.STOP_SECONDS):
                    await house.stop()
                runner.cut_off()  # a helper that has not answered by now is not waited for: its journal will tell


@dataclass(frozen=True, slots=True, kw_only=True)
class _House:
    """What of a wired daemon is started and stopped, in this order."""

    daemon: Daemon
    settings: Settings
    store: Store
    ledger: Ledger
    instance_id: str
    leftovers: Leftovers
    recovery: Recovery
    works: Works
    stops: Stops
    runs: Runs
    processes: Processes
    holds: Holds
    grants: Grants
    patching: Patching
    execution: Execution
    links: Links
    runner: Runner

    async def start(self, drivers: trio.Nursery) -> None:
        """Settle what was left behind, then have the drivers' nursery tend what goes on by itself."""
        await self.recovery.run()
        await self.works.settle_all()
        await _note(self.store, self.ledger, self.instance_id, "started")
        settings = self.settings
        drivers.start_soon(self.stops.hear, lambda: self.runs.any_live, self.processes.serve, drivers)
        drivers.start_soon(self.holds.tend)
        drivers.start_soon(self.grants.tend)
        drivers.start_soon(self.recovery.tend, self.leftovers)
        drivers.start_soon(self.recovery.watch)
        drivers.start_soon(self.links.count, settings.workspaces.values())
        drivers.start_soon(prune, self.runner, self.ledger, settings.snapshot_bytes, settings.snapshot_age_seconds)

    async def stop(self) -> None:
        """End commands, wait for patches and holds, and end grants. Cancel: the next start settles the rest."""
        await self.execution.end_all(limits.STOP_GRACE_SECONDS)
        await self.patching.wait_idle()
        await self.holds.wait_idle()
        try:
            await self.grants.end_with(self.instance_id)
        except Refusal as refusal:
            log.warning("grants could not be ended with the daemon", instance=self.instance_id, code=refusal.code)

    async def say_goodbye(self) -> None:
        """Record the end of the daemon, behind all that its drivers recorded, also where they had to be cut off."""
        # Protects the record. Where the database takes none, the next start takes this daemon for dead: as good.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.GOODBYE_SECONDS) as goodbye:
            try:
                await _note(self.store, self.ledger, self.instance_id, "stopped")
                await self.recovery.end()
            except Refusal as refusal:
                log.warning("the end of the daemon could not be recorded", instance=self.instance_id, code=refusal.code)
        if goodbye.cancelled_caught:
            log.warning("the end of the daemon could not be recorded in time", instance=self.instance_id)


def _wire(
    *,
    settings: Settings,
    store: Store,
    chain: Audit,
    ledger: Ledger,
    occupancy: Occupancy,
    instances: Instances,
    runner: Runner,
    drivers: trio.Nursery,
    wall_clock: Callable[[], float],
    exposed: tuple[str, ...],
) -> _House:
    """Make the parts of the gateway and give each those that it needs. Starts nothing."""
    own = instances.own.id
    registry = Registry(settings.workspaces)
    polls = Polls()
    leftovers = Leftovers()
    scrubber = Scrubber(store, drivers)
    holds = Holds(
        store,
        ledger,
        chain,
        drivers,
        wall_clock,
        own,
        polls,
        settings.approval_expiry_seconds,
        leftovers.tell,
        scrubber,
    )
    settlement = Settlement(ledger, occupancy, runner, registry, wall_clock)
    recovery = Recovery(instances, ledger, holds, settlement)
    undo = Undo(runner, ledger, instances)
    plans = Plans(runner, {"apply_patch": plan_patch(runner), "operation_undo": undo.plan})
    patching = Patching(runner, ledger, occupancy, drivers, wall_clock, own, leftovers.tell, recovery, plans)
    runs = Runs(runner)
    stops = Stops(store, wall_clock, own)
    elsewhere = Elsewhere(
        ledger, runner, instances, registry, stops, settlement.settle, wall_clock, settings.retention_seconds
    )
    processes = Processes(runner, runs, elsewhere, polls)
    execution = Execution(
        runner, ledger, occupancy, drivers, wall_clock, own, runs, processes, leftovers.tell, recovery
    )
    recovery.under_way = lambda: patching.under_way | execution.under_way
    grants = Grants(store, ledger, chain, wall_clock, own, scrubber, instances.lives)
    acts: dict[str, Driver] = {
        "apply_patch": patching,
        "operation_undo": patching,
        "exec_command": execution,
        "write_stdin": Feeding(processes),
    }
    admission = Admission(registry, ledger, holds, grants, Fingerprints(store.secret("fingerprint")), acts)
    works = Works(store, ledger, chain, wall_clock, store.secret("fingerprint"), settings.workspaces)
    brake = Brake(ledger, execution, elsewhere, own)
    inbox = GatewayInbox(store, chain, works, drivers, brake.stop, wall_clock)
    links = Links(runner)
    transports: list[str] = []
    facts = _server_facts(exposed, transports)
    gate = Gate(registry, runner, ledger, holds, patching, processes, admission, works, links, facts)
    kept_diff = partial(_kept_diff, ledger, instances, runner)
    operator = Operator(store, ledger, holds, grants, settings.workspaces, instances.dead_ids)
    return _House(
        daemon=Daemon(
            settings=settings,
            gate=gate,
            inbox=inbox,
            operator=operator,
            kept_diff=kept_diff,
            polls=polls,
            occupancy=occupancy,
            exposed=exposed,
            transports=transports,
        ),
        settings=settings,
        store=store,
        ledger=ledger,
        instance_id=own,
        leftovers=leftovers,
        recovery=recovery,
        works=works,
        stops=stops,
        runs=runs,
        processes=processes,
        holds=holds,
        grants=grants,
        patching=patching,
        execution=execution,
        links=links,
        runner=runner,
    )


@asynccontextmanager
async def _open_drivers() -> AsyncIterator[trio.Nursery]:
    """Open the nursery of what outlives requests. Its tasks end with the block, and not by a cancel of the block."""
    # Protects drivers from the cancel that begins a stop: the stop waits for them, to record how they
    # ended. It is lifted behind that, at the stop's own deadline at the latest.
    protection = trio.CancelScope(shield=True)
    opened = list[trio.Nursery]()
    is_open = trio.Event()

    async def keep_open() -> None:
        with protection:
            async with trio.open_nursery() as drivers:
                opened.append(drivers)
                is_open.set()
                await trio.sleep_forever()

    async with trio.open_nursery() as keeper:
        keeper.start_soon(keep_open)
        try:
            await is_open.wait()
            yield opened[0]
        finally:
            protection.cancel()


async def _kept_diff(ledger: Ledger, instances: Instances, runner: Runner, operation_id: str, cursor: int) -> DiffPage:
    """Return a page of an operation's whole diff. Raises: Refusal OPERATION_NOT_FOUND, SNAPSHOT_EXPIRED."""
    operation = await ledger.get(operation_id)
    if operation is None:
        raise Refusal("OPERATION_NOT_FOUND", "No such operation is recorded.")
    return await runner.kept_diff(operation_id, cursor, await instances.state_dir(operation.instance_id))


async def _note(store: Store, ledger: Ledger, instance_id: str, event: str) -> None:
    """Put a start or stop into the chain and its head into the log, so that a cut tail can be found."""
    await ledger.note("daemon", instance_id, event, f"The daemon {event}.")
    head = await store.read(audit.head)
    log.info(f"daemon {event}", instance=instance_id, audit_seq=head.seq, audit_head=head.hash)


def _runner(settings: Settings) -> Callable[..., AbstractAsyncContextManager[Runner]]:
    if settings.runner == "uds":
        return partial(uds.open_runner, runner_dir=settings.runner_dir, log_level=settings.log_level)
    return inprocess.open_runner


def _exposed(settings: Settings, console: bool) -> tuple[str, ...]:
    """Return the groups of tools to offer: approvals where a workspace holds, works where inbox or console can be
    reached, and either by the operator's word."""
    holds = any(workspace.approvals != "off" for workspace in settings.workspaces.values())
    groups = ["files", "exec"]
    if holds or "approvals" in settings.tools:
        groups.append("approvals")
    if console or settings.operator_token is not None or "work" in settings.tools:
        groups.append("work")
    return tuple(groups)


def _server_facts(exposed: tuple[str, ...], transports: list[str]) -> dict[str, Any]:
    return {
        "tools_exposed": [tool.name for tool in offered(exposed)],
        "transports": transports,
        "protocol_versions": list(PROTOCOL_VERSIONS),
    }
