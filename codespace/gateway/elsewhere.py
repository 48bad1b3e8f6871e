"""Processes that this daemon does not hold: of other daemons, of dead ones, and its own that left its memory.

What is told of them stands in the ledger (who runs it, how it ended) and in their spools (what they
wrote). Any daemon of the database may ask; only the owner can end one, and is asked to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import trio

from codespace import duration, limits
from codespace.contract import Encoding, Kept, ProcessState, Runner, Stream
from codespace.errors import Refusal
from codespace.gateway import policy, trail
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.registry import Registry
from codespace.gateway.stops import Stops
from codespace.gateway.view import kept_view, process_view, time_notes

_FINAL: Final = frozenset({"exited", "lost"})
_NEVER_RAN: Final = frozenset({"minted", "spawn_failed"})
_NOTHING: Final = Kept("", "text", 0, True, 0, 0, 0, {"combined": 0, "stdout": 0, "stderr": 0})
THEIRS: Final = "Another daemon runs it: its output can be read and it can be ended from here, but not written to."
STOPPED: Final = (
    "The daemon that ran it stopped then, and ends what it runs. (One that serves stdio stops as its client leaves.)"
)
GONE: Final = "Its daemon is gone, which ended it; how it ended was not seen."


class Elsewhere:
    """The verbs on processes that only ledger and spool know.

    Args:
        registry: A process is told of only where its root is registered here too.
        settle: Gives an operation whose daemon is dead its end.
    """

    def __init__(
        self,
        ledger: Ledger,
        runner: Runner,
        instances: Instances,
        registry: Registry,
        stops: Stops,
        settle: Callable[[Operation], Awaitable[bool | None]],
        wall_clock: Callable[[], float],
        retention_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._runner = runner
        self._instances = instances
        self._registry = registry
        self._stops = stops
        self._settle = settle
        self._wall_clock = wall_clock
        self._retention_seconds = retention_seconds

    async def find(self, process_id: str) -> Operation:
        """Return the operation of a process that can still be asked about. Raises: Refusal PROCESS_NOT_FOUND."""
        operation = await self.recorded(process_id)
        if self._is_past_retention(operation):
            raise Refusal(
                "PROCESS_NOT_FOUND",
                f"The process ended {self._long_ago()}; its output is not kept.",
                next_step="operation_status with its operation_id still tells how it ended.",
                process_id=process_id,
                operation_id=operation.id,
            )
        return operation

    async def recorded(self, process_id: str) -> Operation:
        """Return the operation of a process, however long ago it ended. Raises: Refusal PROCESS_NOT_FOUND."""
        operation = await self._ledger.by_process(process_id)
        if operation is None or operation.state in _NEVER_RAN or self._registry.of_root(operation.root) is None:
            raise Refusal(
                "PROCESS_NOT_FOUND", "No process of this id is known in a workspace of yours.", process_id=process_id
            )
        return operation

    async def state(self, operation: Operation) -> dict[str, Any]:
        """Return what is known of it now, as in process_status."""
        runs = await self._runs(operation)
        kept = _NOTHING
        if "output_total" not in (operation.outcome or {}):
            kept = await self._kept(operation, runs, cursor=0, stream="combined", limit_bytes=1, encoding="base64")
        return self._described(operation, await self._state(operation, runs, kept))

    async def output(
        self, operation: Operation, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding
    ) -> dict[str, Any]:
        """Return output from `cursor` on, as in read_process; past its retention all of it counts as lost."""
        runs = await self._runs(operation)
        kept = await self._kept(
            operation, runs, cursor=cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding
        )
        state = await self._state(operation, runs, kept)
        return kept_view(kept.against(cursor, state.output_total[stream]), state, stream)

    async def wait_output(self, operation: Operation, *, cursor: int, stream: Stream) -> None:
        """Return once there is output behind `cursor`, or the process has ended.

        Cancel: nothing is consumed.
        """
        while True:
            runs = await self._runs(operation)
            kept = await self._kept(operation, runs, cursor=cursor, stream=stream, limit_bytes=4, encoding="text")
            if kept.cursor > cursor or not runs:
                return
            await trio.sleep(limits.NEIGHBOUR_LOOK_SECONDS)
            operation = await self._ledger.get(operation.id) or operation

    async def wait_ended(self, operation: Operation) -> None:
        """Return once the process has ended. Cancel: nothing changes."""
        while await self._runs(operation):
            await trio.sleep(limits.NEIGHBOUR_LOOK_SECONDS)
            operation = await self._ledger.get(operation.id) or operation

    async def in_force(self, operation: Operation) -> dict[str, Any] | None:
        """Return what its program was locked into, as recorded; None where its start is not, and nobody knows."""
        events = await self._ledger.events(operation.id)
        for event in events:
            if event.event == "started":
                network = dict(event.details.get("network", {})) | {"decisions": trail.decisions(events)}
                return {"sandbox": event.details["sandbox"], "network": network} if "sandbox" in event.details else {}
        return None

    async def refuse_input(self, process_id: str) -> Refusal:
        """Return why a process of another daemon takes no input from here. Raises: Refusal PROCESS_NOT_FOUND."""
        operation = await self.find(process_id)
        if await self._runs(operation):
            return Refusal(
                "PROCESS_NOT_FOUND",
                f"{THEIRS} Nothing was written or changed.",
                next_step="Do it at the daemon that started it, or end it here with terminate_process.",
                process_id=process_id,
            )
        return Refusal(
            "PROCESS_EXITED",
            "The process has ended; nothing was written or changed.",
            details={"state": "exited", **(operation.outcome or {})},
            process_id=process_id,
        )

    async def listed(self, workspace_id: str | None, but: frozenset[str]) -> list[dict[str, Any]]:
        """Return live processes and the latest of the ended ones, newest first, but those whose ids are in `but`."""
        found = [
            operation
            for operation in await self._ledger.list(kind="exec")
            if operation.process_id is not None and operation.process_id not in but
            if operation.state not in _NEVER_RAN
            if (workspace := self._registry.of_root(operation.root)) is not None
            and workspace_id in (None, workspace.id)
            if not self._is_past_retention(operation)
        ]
        ended = [operation for operation in found if operation.state in _FINAL]
        left_out = {operation.id for operation in ended[limits.RETAINED_PROCESSES :]}
        return [await self.state(operation) for operation in found if operation.id not in left_out]

    async def terminate(self, operation: Operation, grace_seconds: float) -> dict[str, Any]:
        """End it for an agent, as `end`. Raises: Refusal UNAUTHORIZED where it is read-only here; TIMEOUT."""
        workspace = self._registry.of_root(operation.root)
        assert workspace is not None  # it was found
        policy.require_write(workspace)
        return await self.end(operation, grace_seconds)

    async def end(self, operation: Operation, grace_seconds: float) -> dict[str, Any]:
        """Ask its daemon to end it, in whatever directory it runs, and return the final state once that is recorded.

        Raises: Refusal TIMEOUT where its daemon does not do it.
        Cancel: it may still be ended.
        """
        if operation.state not in _FINAL:
            if await self._instances.lives(operation.instance_id):
                await self._stops.ask(operation.process_id or "", operation.instance_id, grace_seconds)
            with trio.move_on_after(grace_seconds + limits.END_SECONDS + limits.RECORD_SECONDS):
                operation = await self._wait_final(operation)
        if operation.state not in _FINAL:
            raise Refusal(
                "TIMEOUT",
                "The daemon that runs it was asked to end it, and has not recorded an end yet.",
                next_step="Ask process_status later.",
                process_id=operation.process_id,
            )
        return await self.state(operation)

    async def _wait_final(self, operation: Operation) -> Operation:
        while operation.state not in _FINAL:
            if not await self._instances.lives(operation.instance_id):
                await self._settle(operation)
                await self._stops.forget(operation.instance_id)
            await trio.sleep(limits.NEIGHBOUR_LOOK_SECONDS)
            operation = await self._ledger.get(operation.id) or operation
        return operation

    # --- what is known ---

    def _is_past_retention(self, operation: Operation) -> bool:
        ended = operation.finished_at
        return ended is not None and ended < self._wall_clock() - self._retention_seconds

    def _long_ago(self) -> str:
        return f"more than {duration.words(self._retention_seconds)} ago"

    async def _runs(self, operation: Operation) -> bool:
        return operation.state not in _FINAL and await self._instances.lives(operation.instance_id)

    async def _kept(
        self, operation: Operation, runs: bool, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding
    ) -> Kept:
        if operation.spool is None or self._is_past_retention(operation):
            return _NOTHING
        return await self._runner.kept_output(
            operation.spool,
            cursor=cursor,
            stream=stream,
            limit_bytes=limit_bytes,
            encoding=encoding,
            ended=not runs,
        )

    async def _state(self, operation: Operation, runs: bool, kept: Kept) -> ProcessState:
        record = operation.outcome or {}
        theirs = operation.instance_id != self._instances.own.id
        notes = [THEIRS] if runs and theirs else [GONE] if operation.state not in _FINAL and not runs else []
        if self._is_past_retention(operation):
            notes.append(f"It ended {self._long_ago()}: how it ended is recorded, its output is not kept any more.")
        if await self._was_stopped(operation):
            notes.append(STOPPED)
        state = ProcessState(
            process_id=operation.process_id or "",
            state="running" if runs else "exited",
            started_at=record.get("started_at", operation.created_at),
            output_total=record.get("output_total", kept.output_total),
            exit_code=record.get("exit_code"),
            signal=record.get("signal"),
            termination=None if runs else record.get("termination", "lost"),
            ended_at=None if runs else record.get("ended_at", operation.finished_at),
            resources=record.get("resources"),
        )
        workspace = self._registry.of_root(operation.root)
        timed = [] if workspace is None else time_notes(state, workspace, None)
        return replace(state, notes=(*timed, *notes))

    async def _was_stopped(self, operation: Operation) -> bool:
        """Return whether the daemon that ran it said its own end at that time too."""
        record = operation.outcome or {}
        if record.get("termination") != "terminated" or "ended_at" not in record:
            return False
        stopped = await self._instances.ended_at(operation.instance_id)
        return stopped is not None and abs(stopped - record["ended_at"]) <= limits.STOP_SECONDS

    def _described(self, operation: Operation, state: ProcessState) -> dict[str, Any]:
        workspace = self._registry.of_root(operation.root)
        return process_view(state) | {
            "workspace_id": operation.workspace_id if workspace is None else workspace.id,
            "operation_id": operation.id,
        }
