"""What may be asked of a process that was started: its output and state, its stdin, its end.

It answers from the book of runs and the runner. It starts nothing and records nothing; it only
waits until an end is recorded before it tells of it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog
import trio

from codespace import limits
from codespace.contract import Caller, Chunk, Encoding, ProcessState, Runner, Stream
from codespace.errors import Refusal
from codespace.gateway.elsewhere import Elsewhere
from codespace.gateway.ledger import Operation
from codespace.gateway.polls import Polls
from codespace.gateway.request import Request
from codespace.gateway.runs import Run, Runs
from codespace.gateway.stops import StopRequest
from codespace.gateway.view import chunk_view, process_view, time_notes

log = structlog.get_logger("codespace.processes")
KEPT: Final = "Its operation_key repeats this end: to run it again, send it with a new one."


class Processes:
    """The verbs on processes: from memory where this daemon holds them, else from what is recorded of them."""

    def __init__(self, runner: Runner, runs: Runs, elsewhere: Elsewhere, polls: Polls) -> None:
        self._runner = runner
        self._runs = runs
        self._elsewhere = elsewhere
        self._polls = polls

    async def result(self, run: Run, request: Request, *, replayed: bool) -> dict[str, Any]:
        """Return what exec_command answers for a started process, once it ended or the request has waited enough.

        Cancel: the process goes on.
        """
        assert run.spawned is not None  # its ticket succeeded
        await self._wait(request.caller, request.arguments["wait_seconds"], run.told.wait)
        chunk = await self._runner.output(
            run.process_id, cursor=0, stream="combined", limit_bytes=limits.OUTPUT_CHUNK_BYTES, encoding="text"
        )
        await self._let_it_be_told(run, chunk.state)
        view = chunk_view(chunk, "combined")
        decisions = view.pop("network_decisions", [])
        again = [KEPT] if replayed and request.operation_key and chunk.state.state == "exited" else []
        return {
            **view,
            "operation_id": run.operation_id,
            "dispatch_status": "confirmed",
            "replayed": replayed,
            "sandbox": run.spawned.sandbox,
            "network": {"policy": run.workspace.network, "enforcement": run.spawned.network, "decisions": decisions},
            "notes": [*_notes(run, chunk.state), *run.spawned.notes, *run.notes, *view["notes"], *again],
        }

    async def recorded(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Return what exec_command answers for a process that only ledger and spool know; past its retention only the
        ledger does.

        Raises: Refusal PROCESS_NOT_FOUND.
        Cancel: nothing changes.
        """
        process_id = operation.process_id or ""
        found = await self._elsewhere.recorded(process_id)
        await self._wait(request.caller, request.arguments["wait_seconds"], lambda: self._elsewhere.wait_ended(found))
        found = await self._elsewhere.recorded(process_id)
        output = await self._elsewhere.output(
            found, cursor=0, stream="combined", limit_bytes=limits.OUTPUT_CHUNK_BYTES, encoding="text"
        )
        in_force = await self._elsewhere.in_force(found)
        again = [KEPT] if request.operation_key and output["state"] == "exited" else []
        return {
            **output,
            **(in_force or {}),
            "notes": [*output["notes"], *again],
            "operation_id": found.id,
            "dispatch_status": "unknown" if in_force is None else "confirmed",
            "replayed": True,
        }

    async def serve(self, request: StopRequest) -> None:
        """End a process because another daemon asks, one that is being started once it is; never raises."""
        try:
            run = self._runs.of_process(request.process_id)
            if run is not None:
                await run.started.wait_settled()
            if self._runs.held(request.process_id) is not None:
                await self.terminate(request.process_id, request.grace_seconds)
        except Refusal as refusal:
            log.warning("a process was not ended as asked", process_id=request.process_id, code=refusal.code)
        except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
            log.exception("a process was not ended as asked", process_id=request.process_id)

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

        The first output of a command, and the echo of a key, are answered at once. Later reads let it pause first, so
        that a build of 300 lines is not read in 300 answers, nor the echo of a line for what the program says to it.

        Cancel: nothing is consumed.
        Source: limits.OUTPUT_PAUSE_SECONDS, OUTPUT_GATHER_SECONDS.
        """
        run = self._runs.held(process_id)
        if run is None:
            operation = await self._elsewhere.find(process_id)
            await self._wait(
                caller, wait_seconds, lambda: self._elsewhere.wait_output(operation, cursor=cursor, stream=stream)
            )
            return await self._elsewhere.output(
                await self._elsewhere.find(process_id),
                cursor=cursor,
                stream=stream,
                limit_bytes=limit_bytes,
                encoding=encoding,
            )
        read = partial(
            self._runner.output, process_id, cursor=cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding
        )
        end = trio.current_time() + wait_seconds
        wait = partial(self._runner.wait_output, process_id, stream=stream)
        await self._wait(caller, wait_seconds, partial(wait, cursor=cursor))
        left = min(end - trio.current_time(), limits.OUTPUT_GATHER_SECONDS)
        if run.gathers and left > 0:
            await self._wait(caller, left, lambda: _gather(wait, read, stream))
        chunk = await read()
        run.gathers = run.gathers or chunk.cursor > cursor
        await self._let_it_be_told(run, chunk.state)
        view = chunk_view(chunk, stream)
        return view | {"notes": [*_notes(run, chunk.state), *view["notes"]]}

    async def status(self, process_id: str) -> dict[str, Any]:
        run = self._runs.held(process_id)
        if run is None:
            return await self._elsewhere.state(await self._elsewhere.find(process_id))
        await self._let_it_be_told(run, self._runner.process(process_id))
        return _described(run, self._runner.process(process_id))

    async def listed(self, workspace_id: str | None) -> list[dict[str, Any]]:
        """Return live and retained processes of all daemons on this database: those that run, then the ended ones.

        The newest first in each.
        """
        own = [(run, state) for run, state in self._runs.known() if workspace_id in (None, run.workspace.id)]
        held = frozenset(run.process_id for run in self._runs)
        others = await self._elsewhere.listed(workspace_id, held)
        listed = [*others, *(_described(run, state) for run, state in reversed(own))]
        return sorted(listed, key=lambda each: (each["state"] == "running", each["started_at"]), reverse=True)

    async def run(self, process_id: str) -> Run:
        """Return a process that this daemon holds and may be written to. Raises: Refusal, as write_stdin."""
        run = self._runs.held(process_id)
        if run is None:
            raise await self._elsewhere.refuse_input(process_id)
        return run

    async def write_stdin(self, process_id: str, data: str, *, encoding: Encoding, eof: bool) -> dict[str, Any]:
        """Write to the process and return how many bytes it was given, and how many it did not take in time.

        Raises: Refusal PROCESS_EXITED, INVALID_ARGUMENT (not base64, stdin was not left open, or no key for `eof`),
            TIMEOUT (all was written, and `eof` not taken).
        """
        run = await self.run(process_id)
        block = _decoded(data, encoding)
        run.gathers = block.endswith((b"\n", b"\r"))
        written = await self._runner.write_stdin(process_id, block, eof=eof)
        left = len(block) - written
        return {"bytes_written": written, **({"bytes_left": left} if left else {})}

    async def resize(self, process_id: str, rows: int, cols: int) -> None:
        """Give the process's terminal another size. Raises: Refusal PROCESS_EXITED, INVALID_ARGUMENT: it has none."""
        await self.run(process_id)
        await self._runner.resize(process_id, rows, cols)

    async def terminate(self, process_id: str, grace_seconds: float) -> dict[str, Any]:
        """End the whole tree and return the final state. Cancel: the tree still ends."""
        run = self._runs.held(process_id)
        if run is None:
            return await self._elsewhere.terminate(await self._elsewhere.find(process_id), grace_seconds)
        state = await self._runner.terminate(process_id, grace_seconds)
        await self._let_it_be_told(run, state)
        return _described(run, state)

    async def _let_it_be_told(self, run: Run, state: ProcessState) -> None:
        """Tell of an end only once it is recorded and the root is free for the caller's next request."""
        if state.state == "exited":
            with trio.move_on_after(limits.RECORD_SECONDS):
                await run.told.wait()

    async def _wait(self, caller: Caller, wait_seconds: float, condition: Callable[[], Awaitable[None]]) -> None:
        """Wait for a condition, at most `wait_seconds`, telling the client now and then that it goes on."""
        begun = trio.current_time()
        progress = caller.progress
        with self._polls.wait(wait_seconds):
            while True:
                with trio.move_on_after(limits.PROGRESS_INTERVAL_SECONDS):
                    await condition()
                    return
                if progress is not None:
                    try:
                        await progress(trio.current_time() - begun, "still running")
                    except Exception as problem:  # whatever a broken door raises: the answer does not depend on it
                        log.info("a client takes no progress any more", client=caller.client, problem=repr(problem))
                        progress = None


async def _gather(wait: Callable[..., Awaitable[None]], read: Callable[[], Awaitable[Chunk]], stream: Stream) -> None:
    """Return once output pauses, more is there than one answer takes, or its process has ended.

    Args:
        wait: Returns once there is output behind a `cursor`.
        read: Takes what an answer would.
    """
    while True:
        chunk = await read()
        if chunk.state.state == "exited" or chunk.state.output_total[stream] > chunk.cursor:
            return
        with trio.move_on_after(limits.OUTPUT_PAUSE_SECONDS) as pause:
            await wait(cursor=chunk.cursor)
        if pause.cancelled_caught:
            return
        await trio.sleep(limits.OUTPUT_STEP_SECONDS)


def _described(run: Run, state: ProcessState) -> dict[str, Any]:
    return process_view(state) | {
        "notes": [*_notes(run, state), *state.notes],
        "workspace_id": run.workspace.id,
        "operation_id": run.operation_id,
        "command": list(run.command),
    }


def _notes(run: Run, state: ProcessState) -> list[str]:
    return time_notes(state, run.workspace, run.timeout_seconds)


def _decoded(data: str, encoding: Encoding) -> bytes:
    if encoding == "text":
        return data.encode("utf-8")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            "INVALID_ARGUMENT", "data is not base64; nothing was written.", details={"argument": "data"}
        ) from None
