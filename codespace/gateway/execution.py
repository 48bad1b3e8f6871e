"""Drives a command through its machine: spawn, watch, and record how it ended.

Works in the daemon's own nursery: a request only waits for it, and the process outlives the
request. The verbs are the runner's; this module decides, records and remembers which process
belongs to whom.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from codespace import ids, limits
from codespace.contract import Caller, Encoding, ProcessState, Runner, Spawned, SpawnRequest, Stream, Workspace
from codespace.drive import Motion
from codespace.errors import Refusal
from codespace.gateway import lasting, policy
from codespace.gateway.holds import Hold
from codespace.gateway.ledger import KeyTaken, Ledger, Operation
from codespace.gateway.occupancy import Lease, Occupancy, Occupant
from codespace.gateway.polls import Polls
from codespace.gateway.request import Request, require_same
from codespace.gateway.ticket import Ticket
from codespace.gateway.view import chunk_view, process_view
from statemachines.execution import Execution as Law

log = structlog.get_logger("codespace.execution")


@dataclass(slots=True)
class _Run:
    """One process, from before its start until it is forgotten."""

    process_id: str
    operation_id: str
    request: Request
    hold: Hold | None
    lease: Lease
    started: Ticket = field(default_factory=Ticket)
    spawned: Spawned | None = None
    recorded: trio.Event = field(default_factory=trio.Event)
    """Set once its end is in the ledger, or never will be."""

    @property
    def workspace(self) -> Workspace:
        return self.request.workspace


class Execution:
    """The driver of exec_command and the book of this daemon's processes."""

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        occupancy: Occupancy,
        nursery: trio.Nursery,
        wall_clock: Callable[[], float],
        instance_id: str,
        polls: Polls,
        retention_seconds: float = limits.RETENTION_SECONDS,
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._occupancy = occupancy
        self._nursery = nursery
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._polls = polls
        self._retention_seconds = retention_seconds
        self._runs: dict[str, _Run] = {}

    # --- what Admission asks for ---

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        policy.require_write(workspace)
        facts = await self._runner.describe(workspace)
        policy.require_exec(workspace, facts["command_sandbox"])
        self._runner.check(arguments["command"], arguments["cwd"], arguments["env"])
        return dict(arguments) | {"timeout_seconds": _timeout(workspace, arguments["timeout_seconds"])}

    async def preview(self, request: Request) -> dict[str, Any]:
        arguments = request.arguments
        bound = await self._runner.resolve_program(request.workspace, arguments["command"], arguments["cwd"])
        shown = ("command", "cwd", "env", "stdin", "open_stdin", "timeout_seconds")
        return {name: arguments[name] for name in shown} | {"bound": dict(bound)}

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Start the command, wait up to wait_seconds for its end, and return what is known then.

        Raises: Refusal WORKSPACE_BUSY or LIMIT_REACHED before anything is recorded,
            PROCESS_SPAWN_FAILED when nothing was started.
        Cancel: the process goes on.
        """
        await self._require_shown(request, hold)
        self._require_room(request.workspace)
        process_id, operation_id = ids.mint(ids.PROCESS), ids.mint(ids.OPERATION)
        occupant = Occupant("process", operation_id, self._wall_clock(), process_id)
        lease = await self._occupancy.enter(request.workspace, occupant)
        run = _Run(process_id, operation_id, request, hold, lease)
        self._runs[process_id] = run
        self._nursery.start_soon(self._drive, run, name=f"process {process_id}")
        outcome = await run.started.wait()
        if "replay" in outcome:
            return dict(outcome["replay"])
        return await self._result(run, replayed=False)

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Return the process that this key started, as it is now; never starts a second one."""
        run = self._runs.get(operation.process_id or "")
        if run is not None:
            await run.started.wait()
            return await self._result(run, replayed=True)
        if operation.state == "spawn_failed" and operation.outcome is not None:
            refusal = Refusal.from_body(operation.outcome)
            refusal.details = (refusal.details or {}) | {"replayed": True}
            raise refusal
        raise Refusal(
            "PROCESS_NOT_FOUND",
            f"The command of this key was started once and is recorded as {operation.state}; its output is not here.",
            next_step="operation_status tells how it ended. Use a new key to run it again.",
            operation_id=operation.id,
            process_id=operation.process_id,
        )

    async def end_all(self, grace_seconds: float, workspace_id: str | None = None) -> None:
        """End every live process of this daemon, or of one workspace, and return once each end is recorded.

        Cancel: the trees still end with the runner; an end that is not recorded is found as `lost`.
        """
        async with trio.open_nursery() as nursery:
            for run in self._runs.values():
                if workspace_id in (None, run.workspace.id):
                    nursery.start_soon(self._end, run, grace_seconds)

    async def _end(self, run: _Run, grace_seconds: float) -> None:
        await run.started.wait_settled()
        if run.spawned is not None:
            with suppress(Refusal):  # it ended meanwhile
                await self._runner.terminate(run.process_id, grace_seconds)
        await run.recorded.wait()

    # --- verbs on a process ---

    async def read(
        self,
        caller: Caller,
        process_id: str,
        *,
        cursor: int,
        stream: Stream,
        wait_seconds: float,
        limit_bytes: int,
        encoding: Encoding,
    ) -> dict[str, Any]:
        """Return output from `cursor` on, waiting up to `wait_seconds` for some.

        Cancel: nothing is consumed.
        """
        run = self._run(process_id)

        async def output_is_there() -> None:
            await self._runner.wait_output(process_id, cursor=cursor, stream=stream)

        await self._wait(caller, wait_seconds, output_is_there)
        chunk = await self._runner.output(
            process_id, cursor=cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding
        )
        await self._let_it_be_recorded(run, chunk.state)
        return chunk_view(chunk, stream)

    async def status(self, process_id: str) -> dict[str, Any]:
        run = self._run(process_id)
        await self._let_it_be_recorded(run, self._runner.process(process_id))
        return self._describe(run)

    def listed(self, workspace_id: str | None) -> list[dict[str, Any]]:
        """Return live and retained processes, oldest first."""
        return [
            self._describe(run)
            for run in self._runs.values()
            if run.spawned is not None and workspace_id in (None, run.workspace.id)
        ]

    async def write_stdin(self, process_id: str, data: str, *, encoding: Encoding, eof: bool) -> int:
        """Write to the process and return how many bytes it was given.

        Raises: Refusal PROCESS_EXITED, INVALID_ARGUMENT (not base64, or stdin was not left open).
        """
        self._run(process_id)
        return await self._runner.write_stdin(process_id, _decoded(data, encoding), eof=eof)

    async def terminate(self, process_id: str, grace_seconds: float) -> dict[str, Any]:
        """End the whole tree and return the final state. Cancel: the tree still ends."""
        run = self._run(process_id)
        state = await self._runner.terminate(process_id, grace_seconds)
        await self._let_it_be_recorded(run, state)
        return self._describe(run)

    async def _let_it_be_recorded(self, run: _Run, state: ProcessState) -> None:
        """Tell of an end only once it is recorded and the root is free for the caller's next request."""
        if state.state == "exited":
            with trio.move_on_after(limits.RECORD_SECONDS):
                await run.recorded.wait()

    # --- the life of a process ---

    async def _drive(self, run: _Run) -> None:
        """Start one command and see it to its end. Never raises: a fault ends this run, not the daemon."""
        try:
            with run.lease:
                await self._live(run)
        except KeyTaken as taken:
            await self._answer_from(run, taken.existing)
        except Refusal as refusal:
            run.started.fail(refusal)
        except Exception:
            log.exception("process driver failed", operation_id=run.operation_id)
            run.started.fail(
                Refusal("INTERNAL", "The command ended by a fault of CodeSpace.", operation_id=run.operation_id)
            )
        finally:
            # Only where the daemon's stop cut the driver off is there no outcome yet.
            run.started.fail(Refusal("SHUTTING_DOWN", "The daemon is stopping.", operation_id=run.operation_id))
            run.recorded.set()
            if run.spawned is None:
                self._runs.pop(run.process_id, None)
        if run.spawned is not None:
            await self._retain(run)

    async def _answer_from(self, run: _Run, existing: Operation) -> None:
        """Another request minted the same key first: answer as its replay."""
        self._runs.pop(run.process_id, None)
        try:
            require_same(run.request, existing.fingerprint, operation_id=existing.id)
            run.started.succeed({"replay": await self.replay(run.request, existing)})
        except Refusal as refusal:
            run.started.fail(refusal)

    async def _live(self, run: _Run) -> None:
        motion = Motion(Law, run.operation_id, "minted", self._ledger.recorder("operation"))
        steps = motion.steps("start_ordered")
        await self._ledger.mint(self._operation(run), also_move=steps)
        motion.adopt(steps)
        try:
            run.spawned = await self._runner.spawn(run.workspace, _spawn_request(run))
        except Refusal as refusal:
            refusal.operation_id = run.operation_id
            await motion.move(
                "start_refused", changes={"outcome": lasting.refusal_body(refusal)}, details={"code": refusal.code}
            )
            raise
        await motion.move("started")
        run.started.succeed({})
        state = await self._runner.wait_exit(run.process_id)
        record = _exit_record(state)
        if state.termination == "lost":
            await motion.move("owner_gone", changes={"outcome": record}, details=record)
        else:
            await motion.move("ended", "drained", changes={"outcome": record}, details=record)

    async def _retain(self, run: _Run) -> None:
        """Keep an ended process readable for the retention time, then forget it."""
        await trio.sleep(self._retention_seconds)
        self._runs.pop(run.process_id, None)
        self._runner.forget(run.process_id)

    # --- views ---

    async def _result(self, run: _Run, *, replayed: bool) -> dict[str, Any]:
        assert run.spawned is not None  # its ticket succeeded

        await self._wait(run.request.caller, run.request.arguments["wait_seconds"], run.recorded.wait)
        chunk = await self._runner.output(
            run.process_id, cursor=0, stream="combined", limit_bytes=limits.OUTPUT_CHUNK_BYTES, encoding="text"
        )
        return {
            **chunk_view(chunk, "combined"),
            "operation_id": run.operation_id,
            "dispatch_status": "confirmed",
            "replayed": replayed,
            "sandbox": run.spawned.sandbox,
            "network": {"policy": run.workspace.network, "enforcement": run.spawned.network, "decisions": []},
            "notes": [*run.spawned.notes, *chunk.state.notes],
        }

    def _describe(self, run: _Run) -> dict[str, Any]:
        return process_view(self._runner.process(run.process_id)) | {
            "workspace_id": run.workspace.id,
            "operation_id": run.operation_id,
            "command": list(run.request.arguments["command"]),
        }

    def _run(self, process_id: str) -> _Run:
        run = self._runs.get(process_id)
        if run is None or run.spawned is None:
            raise Refusal(
                "PROCESS_NOT_FOUND",
                "No process of this id is live or retained by this daemon.",
                process_id=process_id,
            )
        return run

    async def _wait(self, caller: Caller, wait_seconds: float, condition: Callable[[], Awaitable[None]]) -> None:
        """Wait for a condition, at most `wait_seconds`, telling the client now and then that it goes on."""
        begun = trio.current_time()
        with self._polls.wait(wait_seconds):
            while True:
                with trio.move_on_after(limits.PROGRESS_INTERVAL_SECONDS):
                    await condition()
                    return
                if caller.progress is not None:
                    await caller.progress(trio.current_time() - begun, "still running")

    # --- decisions before the start ---

    async def _require_shown(self, request: Request, hold: Hold | None) -> None:
        """Refuse unless program and named files are exactly what the hold showed."""
        if hold is None:
            return
        now = await self.preview(request)
        if now != dict(hold.shown):
            raise Refusal(
                "APPROVAL_CONFLICT",
                "The program or a file named in the command is no longer what the hold showed; nothing was started.",
                approval_id=hold.id,
            )

    def _require_room(self, workspace: Workspace) -> None:
        live = sum(
            1
            for run in self._runs.values()
            if run.workspace.id == workspace.id
            and (run.spawned is None or self._runner.process(run.process_id).state == "running")
        )
        if live >= workspace.limits.processes:
            raise Refusal(
                "LIMIT_REACHED",
                f"{live} processes run in workspace {workspace.id}; nothing was started.",
                next_step="End one with terminate_process, or ask the operator to raise the setting.",
                details={"limit": "processes", "setting": "limits.processes", "maximum": workspace.limits.processes},
            )

    def _operation(self, run: _Run) -> Operation:
        return Operation(
            id=run.operation_id,
            kind="exec",
            tool=run.request.tool,
            workspace_id=run.workspace.id,
            root=run.workspace.root,
            operation_key=run.request.operation_key,
            fingerprint=run.request.fingerprint,
            state="minted",
            instance_id=self._instance_id,
            created_at=self._wall_clock(),
            work_id=run.request.work_id,
            process_id=run.process_id,
            approval_id=run.hold.id if run.hold else None,
        )


def _spawn_request(run: _Run) -> SpawnRequest:
    arguments = run.request.arguments
    stdin = arguments["stdin"]
    return SpawnRequest(
        process_id=run.process_id,
        argv=tuple(arguments["command"]),
        cwd=arguments["cwd"],
        env=arguments["env"],
        timeout_seconds=arguments["timeout_seconds"],
        stdin=None if stdin is None else stdin.encode("utf-8"),
        open_stdin=arguments["open_stdin"],
    )


def _timeout(workspace: Workspace, asked: float | None) -> float:
    if asked is None:
        return workspace.timeout_seconds
    if not 0 < asked <= workspace.max_timeout_seconds:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"timeout_seconds must be over 0 and at most {workspace.max_timeout_seconds:g} in this workspace.",
            details={"argument": "timeout_seconds", "maximum": workspace.max_timeout_seconds},
        )
    return asked


def _decoded(data: str, encoding: Encoding) -> bytes:
    if encoding == "text":
        return data.encode("utf-8")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            "INVALID_ARGUMENT", "data is not base64; nothing was written.", details={"argument": "data"}
        ) from None


def _exit_record(state: ProcessState) -> dict[str, Any]:
    record = {
        "exit_code": state.exit_code,
        "signal": state.signal,
        "termination": state.termination,
        "started_at": state.started_at,
        "ended_at": state.ended_at,
    }
    return {name: value for name, value in record.items() if value is not None}
