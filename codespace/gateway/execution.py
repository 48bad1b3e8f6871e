"""Drives a command through its machine: spawn, watch, and record how it ended.

Works in the daemon's own nursery: a request only waits for it, and the process outlives the
request. The verbs are the runner's; this module decides and records, and follows a process to its
end also where the database fails meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
import trio

from codespace import ids, limits
from codespace.contract import ProcessState, Runner, SpawnRequest, Workspace
from codespace.drive import Motion, Stale, is_unsure
from codespace.errors import Refusal
from codespace.gateway import lasting, policy
from codespace.gateway.changed import since_shown
from codespace.gateway.ending import Ending
from codespace.gateway.hold import Hold
from codespace.gateway.ledger import KeyTaken, Ledger, Operation
from codespace.gateway.occupancy import Lease, Occupancy, Occupant
from codespace.gateway.processes import Processes
from codespace.gateway.recovery import Recovery
from codespace.gateway.request import Request, require_same
from codespace.gateway.runs import Run, Runs
from codespace.gateway.trail import Trail
from codespace.gateway.view import command_view, network_view
from statemachines.execution import Execution as Law

log = structlog.get_logger("codespace.execution")

_NEVER_STARTED: Final = {"spawning": ("start_refused",)}
_EXITED: Final = {
    "spawning": ("started", "ended", "drained"),  # the database was away when it started
    "running": ("ended", "drained"),
    "draining": ("drained",),
}
_UNSEEN: Final = {"spawning": ("sight_lost", "found_lost")}
# The runner was lost in the middle of the start. It says so only when nothing of it is left.
_LOST: Final = dict.fromkeys(("spawning", "running", "draining"), ("owner_gone",))
_UNRECORDED: Final = "The database could not record the start of this process; operation_status may lag behind."
_NOT_AS_SHOWN: Final = (
    "The program, a file named in the command, its directory or the network is no longer what the hold showed; nothing "
    "was started."
)


class Execution:
    """The driver of exec_command.

    Args:
        runs: The book that it enters every process in.
        processes: Answers about them.
        left_over: Told when a command ended without its end in the ledger, for recovery to see to it.
        predecessors: Settles what dead daemons left in a root before a command has it for itself.
    """

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        occupancy: Occupancy,
        nursery: trio.Nursery,
        wall_clock: Callable[[], float],
        instance_id: str,
        runs: Runs,
        processes: Processes,
        left_over: Callable[[], None],
        predecessors: Recovery,
    ) -> None:
        self._predecessors = predecessors
        self._runner = runner
        self._ledger = ledger
        self._occupancy = occupancy
        self._nursery = nursery
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._runs = runs
        self._processes = processes
        self._left_over = left_over
        self._trail = Trail(runner, ledger)
        self._driven: set[str] = set()

    @property
    def under_way(self) -> frozenset[str]:
        """The operations that a driver still works for."""
        return frozenset(self._driven)

    # --- what Admission asks for ---

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        policy.require_write(workspace)
        policy.require_exec(workspace, await self._runner.command_sandbox(workspace))
        self._runner.check(arguments["command"], arguments["cwd"], arguments["env"])
        return dict(arguments) | {"timeout_seconds": _timeout(workspace, arguments["timeout_seconds"])}

    async def preview(self, request: Request) -> dict[str, Any]:
        arguments = request.arguments
        bound = await self._runner.resolve_program(request.workspace, arguments["command"], arguments["cwd"])
        shown = ("command", "cwd", "env", "stdin", "open_stdin", "tty", "rows", "cols", "timeout_seconds")
        network = network_view(request.workspace)
        return {name: arguments[name] for name in shown} | {"network": network, "bound": dict(bound)}

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Start the command, wait up to wait_seconds for its end, and return what is known then.

        A request of the same key under way is waited for.

        Raises: Refusal WORKSPACE_BUSY or LIMIT_REACHED before anything is recorded,
            PROCESS_SPAWN_FAILED when nothing was started.
        Cancel: nothing is recorded or started where the root is still waited for or looked at, and nobody else waits;
            once its record was begun, the command is started and goes on.
        """
        while (run := self._runs.of_key(request.operation_key)) is not None and run.started.is_given_up:
            await run.started.wait_settled()  # nothing was started, and we are the first; or it went on, and we join
        if run is not None:
            require_same(request, run.fingerprint, operation_id=run.operation_id)
            return await self._again(request, run)
        self._require_room(request.workspace)
        run = Run(
            ids.mint(ids.PROCESS),
            ids.mint(ids.OPERATION),
            request.workspace,
            command_view(request.arguments["command"]),
            request.operation_key,
            request.fingerprint,
            request.arguments["timeout_seconds"],
            stdin_granted=hold is not None and bool(request.arguments["open_stdin"]),
        )
        self._runs.add(run)
        self._nursery.start_soon(self._drive, run, request, hold, name=f"process {run.process_id}")
        outcome = await run.started.wait()
        if "replay" in outcome:
            return dict(outcome["replay"])
        return await self._processes.result(run, request, replayed=False)

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Return the process that this key started, as it is now; never starts a second one."""
        self._runs.tidy()
        run = self._runs.of_process(operation.process_id)
        if run is not None:
            return await self._again(request, run)
        if operation.state == "spawn_failed" and operation.outcome is not None:
            raise lasting.repeated(operation.outcome)
        return await self._processes.recorded(request, operation)

    async def _again(self, request: Request, run: Run) -> dict[str, Any]:
        outcome = await run.started.wait()
        if "replay" in outcome:
            return dict(outcome["replay"])
        return await self._processes.result(run, request, replayed=True)

    async def end_all(self, grace_seconds: float, workspace_id: str | None = None, root: str | None = None) -> bool:
        """End every live process of this daemon, of one workspace or root; return whether the end of each was told.

        One that hangs in the kernel is still being ended, and recorded as what it is: not ended.

        Cancel: the trees still end with the runner; an end that is not recorded is found as `lost`.
        Source: limits.VERB_SECONDS for a start under way, limits.END_SECONDS, limits.RECORD_SECONDS.
        """
        meant = [
            run
            for run in self._runs
            if not run.told.is_set() and workspace_id in (None, run.workspace.id) and root in (None, run.workspace.root)
        ]
        async with trio.open_nursery() as nursery:
            for run in meant:
                nursery.start_soon(self._end, run, grace_seconds)
        return all(run.told.is_set() for run in meant)

    async def _end(self, run: Run, grace_seconds: float) -> None:
        await run.started.wait_settled()
        if run.spawned is None or await self._put_down(run, grace_seconds):
            with trio.move_on_after(limits.RECORD_SECONDS):
                await run.told.wait()

    # --- the life of a process ---

    async def _drive(self, run: Run, request: Request, hold: Hold | None) -> None:
        """Start one command and see it to its end. Never raises: a fault ends this run, not the daemon."""
        self._driven.add(run.operation_id)
        try:
            await self._answer(run, request, hold)
        except Exception:
            log.exception("process driver failed", operation_id=run.operation_id)
            self._left_over()
            run.started.fail(
                Refusal("INTERNAL", "The command ended by a fault of CodeSpace.", operation_id=run.operation_id)
            )
        finally:
            self._driven.discard(run.operation_id)
            run.ended = True
            # Only where the daemon's stop cut the driver off is there no outcome yet.
            run.started.fail(_cut_off(run.operation_id))
            run.told.set()
            if run.spawned is None:
                self._runs.drop(run)

    async def _answer(self, run: Run, request: Request, hold: Hold | None) -> None:
        try:
            with await self._enter(run, request, hold):
                motion = await self._mint(run, request, hold)
                ending = await self._live(run, request, motion)
                run.ended = True
                recorded = await ending.attempt()
        except KeyTaken as taken:
            await self._answer_from(run, request, taken.existing)
        except Refusal as refusal:
            run.started.fail(refusal)
            if run.spawned is not None:  # the runner does not tell its end, and nobody else would give its row one
                self._left_over()
            elif is_unsure(refusal):  # the row may be there, and only this driver knows that nothing was started
                run.ended = True
                run.told.set()
                await self._take_back(run)
        else:
            run.told.set()
            if not recorded:
                await ending.persist()

    async def _answer_from(self, run: Run, request: Request, existing: Operation) -> None:
        """Another daemon minted the same key first: answer as its replay."""
        try:
            require_same(request, existing.fingerprint, operation_id=existing.id)
            run.started.succeed({"replay": await self.replay(request, existing)})
        except Refusal as refusal:
            run.started.fail(refusal)

    async def _enter(self, run: Run, request: Request, hold: Hold | None) -> Lease:
        """Enter the root, and only then look: at the directory to start in, at what the hold showed."""
        occupant = Occupant("process", run.operation_id, self._wall_clock(), run.process_id)
        with run.started.abandonable():
            lease = await self._occupancy.enter(request.workspace, occupant)
            try:
                try:
                    await self._require_directory(request)
                    await self._require_shown(request, hold)
                except Refusal as refusal:
                    raise since_shown(hold, refusal, _NOT_AS_SHOWN) from None
                await trio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                lease.release()
                raise
            return lease
        raise Refusal("TIMEOUT", "The caller went away before the command was started; nothing was done.")

    async def _mint(self, run: Run, request: Request, hold: Hold | None) -> Motion:
        motion = Motion(Law, run.operation_id, "minted", self._ledger.recorder("operation"))
        steps = motion.steps("start_ordered")
        operation = self._operation(run, request, hold)
        if request.workspace.occupancy == "shared":
            await self._ledger.mint(operation, also_move=steps)
        else:
            await self._predecessors.mint(operation, steps)
        motion.adopt(steps)
        return motion

    async def _take_back(self, run: Run) -> None:
        """Record that nothing was started, where the commit of a new row was given up and landed all the same.

        Cancel: the row, if there is one, is found by the next start.
        """
        while True:
            try:
                await self._ledger.wait_written()  # behind it the row is there, or never will be
                operation = await self._ledger.get(run.operation_id)
                break
            except Refusal:
                await trio.sleep(limits.RECORD_RETRY_SECONDS)
        if operation is None:
            return
        refusal = Refusal(
            "STORE_UNAVAILABLE",
            "The database did not record the command in time, so nothing was started.",
            operation_id=operation.id,
        )
        motion = Motion(Law, operation.id, operation.state, self._ledger.recorder("operation"))
        changes = {"outcome": lasting.refusal_body(refusal)}
        await Ending(motion, _NEVER_STARTED, changes=changes, details={"code": refusal.code}).persist()

    async def _live(self, run: Run, request: Request, motion: Motion) -> Ending:
        """Start the command, follow it until none of its tree is left, and return its end, to be recorded."""
        try:
            with trio.fail_after(limits.VERB_SECONDS):
                run.spawned = await self._runner.spawn(run.workspace, _spawn_request(run, request))
        except Refusal as refusal:
            refusal.operation_id = run.operation_id
            if refusal.code == "OUTCOME_UNKNOWN":
                return await self._refused(run, motion, refusal, _UNSEEN, {"termination": "lost"})
            kept = lasting.refusal_body(refusal)
            return await self._refused(
                run, motion, lasting.taking(request.operation_key, refusal), _NEVER_STARTED, kept
            )
        except Exception:
            # Protects the end of a tree that nobody would follow; the runner's own stop ends what is left.
            with trio.move_on_after(limits.VERB_SECONDS, shield=True):
                await self._put_down(run, 0)
            raise
        try:
            network = {"policy": run.workspace.network, "enforcement": run.spawned.network}
            in_force = {"sandbox": run.spawned.sandbox, "network": network}
            await motion.move("started", changes={"spool": run.spawned.spool}, details=in_force)
        except (Refusal, Stale) as problem:  # it runs all the same, and is followed to its end
            log.warning("a start could not be recorded yet", operation_id=run.operation_id, problem=str(problem))
            run.notes = (_UNRECORDED,)
        run.started.succeed({})
        with self._trail.following(run, self._nursery):
            state = await self._wait_exit(run)
        record = _exit_record(state)
        ways = _LOST if record.get("termination") == "lost" else _EXITED
        return Ending(motion, ways, changes={"outcome": record}, details=record | _what_it_did(state))

    async def _refused(
        self,
        run: Run,
        motion: Motion,
        refusal: Refusal,
        ways: Mapping[str, tuple[str, ...]],
        outcome: Mapping[str, Any],
    ) -> Ending:
        ending = Ending(motion, ways, changes={"outcome": dict(outcome)}, details={"code": refusal.code})
        await ending.attempt()  # before the answer, so that the next call finds it
        run.started.fail(refusal)
        return ending

    async def _wait_exit(self, run: Run) -> ProcessState:
        """Return how it ended. A runner that fails to say so is asked to end it: the root must be free behind it."""
        try:
            return await self._runner.wait_exit(run.process_id)
        except Exception:
            # Protects the end of a tree that nobody would follow; the runner's own stop ends what is left.
            with trio.move_on_after(limits.VERB_SECONDS, shield=True):
                await self._put_down(run, 0)
            raise

    async def _put_down(self, run: Run, grace_seconds: float) -> bool:
        """Return whether its end is to be expected now."""
        try:
            await self._runner.terminate(run.process_id, grace_seconds)
        except Refusal as refusal:  # it ended meanwhile, or hangs in the kernel
            log.info("a process was not ended", process_id=run.process_id, code=refusal.code)
            return refusal.code != "TIMEOUT"
        except Exception:
            log.exception("the runner failed to end a process", process_id=run.process_id)
        return True

    # --- decisions before the start ---

    async def _require_directory(self, request: Request) -> None:
        """Refuse a directory that is not there while that still leaves no row and burns no key."""
        cwd = request.arguments["cwd"]
        if cwd != ".":  # the root itself was opened to be entered
            await self._runner.check_directory(request.workspace, cwd)

    async def _require_shown(self, request: Request, hold: Hold | None) -> None:
        """Refuse unless program, named files and network are exactly what the hold showed."""
        if hold is None:
            return
        now = await self.preview(request)
        if now != dict(hold.shown):
            raise Refusal("APPROVAL_CONFLICT", _NOT_AS_SHOWN, approval_id=hold.id)

    def _require_room(self, workspace: Workspace) -> None:
        live = self._runs.live(workspace.id)
        if live >= workspace.limits.processes:
            raise Refusal(
                "LIMIT_REACHED",
                f"{live} processes run in workspace {workspace.id}; nothing was started.",
                next_step="End one with terminate_process, or ask the operator to raise the setting.",
                details={"limit": "processes", "setting": "limits.processes", "maximum": workspace.limits.processes},
            )

    def _operation(self, run: Run, request: Request, hold: Hold | None) -> Operation:
        return Operation(
            id=run.operation_id,
            kind="exec",
            tool=request.tool,
            workspace_id=run.workspace.id,
            root=run.workspace.root,
            operation_key=run.operation_key,
            fingerprint=run.fingerprint,
            state="minted",
            instance_id=self._instance_id,
            created_at=self._wall_clock(),
            work_id=request.work_id,
            process_id=run.process_id,
            approval_id=hold.id if hold else None,
        )


def _spawn_request(run: Run, request: Request) -> SpawnRequest:
    arguments = request.arguments
    stdin = arguments["stdin"]
    return SpawnRequest(
        process_id=run.process_id,
        argv=tuple(arguments["command"]),
        cwd=arguments["cwd"],
        env=arguments["env"],
        timeout_seconds=arguments["timeout_seconds"],
        stdin=None if stdin is None else stdin.encode("utf-8"),
        open_stdin=arguments["open_stdin"],
        tty=arguments["tty"],
        rows=arguments["rows"],
        cols=arguments["cols"],
    )


def _timeout(workspace: Workspace, asked: float | None) -> float:
    if asked is None:
        return workspace.timeout_seconds
    if not 0 < asked <= workspace.max_timeout_seconds:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"`timeout_seconds` must be over 0 and at most {workspace.max_timeout_seconds:g} in this workspace. "
            "Nothing was started.",
            details={"argument": "timeout_seconds", "maximum": workspace.max_timeout_seconds},
        )
    return asked


def _exit_record(state: ProcessState) -> dict[str, Any]:
    record = {
        "exit_code": state.exit_code,
        "signal": state.signal,
        "termination": state.termination,
        "started_at": state.started_at,
        "ended_at": state.ended_at,
        "output_total": dict(state.output_total),
        "resources": state.resources,
    }
    return {name: value for name, value in record.items() if value is not None}


def _what_it_did(state: ProcessState) -> dict[str, Any]:
    """Return what the audit keeps of a sandboxed run beside its end: where it went, and what it left to run later."""
    told: dict[str, Any] = {}
    if state.network_decisions is not None:
        told["network_decisions"] = [dict(each) for each in state.network_decisions]
    if state.planted is not None:
        told["planted"] = list(state.planted)
    return told


def _cut_off(operation_id: str) -> Refusal:
    return Refusal(
        "OUTCOME_UNKNOWN",
        "The daemon stopped while the command was being started; if it was started, it is ended with the daemon.",
        operation_id=operation_id,
    )
