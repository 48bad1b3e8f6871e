"""The process verbs of the runner: starts commands, answers for them, and leaves none behind.

It decides no policy, knows no ledger and writes no file but private homes and spools. Each command outlives
the request that started it and never outlives the supervisor.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType

import structlog
import trio

from codespace import duration, limits
from codespace.contract import Chunk, Encoding, NetworkNews, ProcessState, Spawned, SpawnRequest, Stream, Workspace
from codespace.errors import Refusal
from codespace.runner import environment, program, quota
from codespace.runner.homes import Homes
from codespace.runner.keeper import Keeper
from codespace.runner.network.proxy import Proxy
from codespace.runner.output.spools import Spools
from codespace.runner.process import Process, exited_refusal
from codespace.runner.starter import Starter
from codespace.runner.stdin import EndNotSaid, StdinClosed, check_size
from codespace.runner.threads import is_shortage, run_patiently
from codespace.sandbox.box import Sandbox

log = structlog.get_logger("codespace.commands")


class Supervisor:
    """Owns every command of the daemon, between `async with` and its end.

    Args:
        state_dir: Where private homes are made; never below a workspace root.
        wall_clock: Gives stored times, seconds since the epoch. Waits use trio's clock.
        retention_seconds: How long an ended process stays readable unless it is forgotten before.
        spool_bytes: Most output of all processes on disk.
        process_spool_bytes: Most output of one process on disk; 0: none.
        umask: Of commands; the daemon's own where left out.
        sandbox: What commands are locked into where it can be had; None for no sandbox at all.
        networked: Whether commands with a network are to be expected: their proxy is loaded before the first needs it.
    At the end of the block all trees get SIGTERM, a short grace, SIGKILL, under limits.STOP_END_SECONDS.
    """

    def __init__(
        self,
        state_dir: str,
        *,
        wall_clock: Callable[[], float] = time.time,
        retention_seconds: float = limits.RETENTION_SECONDS,
        spool_bytes: int = limits.SPOOL_BYTES,
        process_spool_bytes: int = limits.PROCESS_SPOOL_BYTES,
        umask: int | None = None,
        sandbox: Sandbox | None = None,
        networked: bool = False,
    ) -> None:
        self._networked = networked
        self._state_dir = state_dir
        self._wall_clock = wall_clock
        self._retention_seconds = retention_seconds
        self._spool_bytes = spool_bytes
        self._process_spool_bytes = process_spool_bytes
        self._umask = umask
        self._sandbox = sandbox
        self._processes: dict[str, Process] = {}
        self._ended: deque[str] = deque()  # in the order of their ends; forgotten ones may still be in it
        self._starting: set[str] = set()
        self._stopping = False
        self._keeper = Keeper()
        self._proxy = Proxy()
        self._opened = self._open()
        self._removing = trio.CapacityLimiter(limits.REMOVAL_THREADS)

    def __aenter__(self) -> Awaitable[Supervisor]:
        return self._opened.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[bool | None]:
        return self._opened.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Supervisor]:
        self._homes, self._spools = await trio.to_thread.run_sync(self._open_folders)
        self._mechanisms = await trio.to_thread.run_sync(quota.look)
        self._starter = Starter(
            self._homes,
            self._spools,
            self._mechanisms,
            self._keeper,
            self._wall_clock,
            self._umask,
            self._sandbox,
            self._proxy,
        )
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._remove, self._homes.sweep)
                self._nursery.start_soon(self._sweep_spools)
                self._nursery.start_soon(self._make_ready)
                try:
                    yield self
                finally:
                    self._stopping = True
                    # Shields the orderly end of the trees; whatever is left at the deadline is cut off below.
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.STOP_END_SECONDS):
                        await self._end_all()
                    for process in self._processes.values():
                        process.abandon()
                    self._nursery.cancel_scope.cancel()  # tasks that own a tree are shielded and end by themselves
        finally:
            # Shields the end of keeper and proxy and the removal of homes; both are bounded, and what is left
            # of homes is swept at the next start.
            seconds = limits.KEEPER_END_SECONDS + 2 * limits.PROXY_END_SECONDS + limits.HOME_SECONDS
            with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
                await self._proxy.aclose()
                await self._keeper.aclose()
                await run_patiently(self._close_folders)

    def _open_folders(self) -> tuple[Homes, Spools]:
        homes = Homes(self._state_dir)
        try:
            spools = Spools(
                self._state_dir,
                spool_bytes=self._spool_bytes,
                process_spool_bytes=self._process_spool_bytes,
                retention_seconds=self._retention_seconds,
                wall_clock=self._wall_clock,
            )
        except BaseException:
            homes.close()
            raise
        return homes, spools

    def _close_folders(self) -> None:
        self._spools.close()
        self._homes.close()

    async def _sweep_spools(self) -> None:
        while True:
            await self._remove(self._spools.sweep)
            await trio.sleep(limits.SPOOL_SWEEP_SECONDS)

    async def _make_ready(self) -> None:
        """Probe, and load the proxy, before the first command needs them; say loudly where there is no sandbox."""
        if self._sandbox is None:
            return
        try:
            # Waited for at a stop too: a thread that was left to itself would leave its sandbox behind the daemon.
            standing = await run_patiently(self._sandbox.standing, abandon=False)
        except Refusal as refusal:  # asked again by the first command, which is refused as long as it is so
            log.warning("what commands are locked into is not known yet", problem=refusal.message)
            return
        if standing.rung != "linux-sandbox":
            log.warning("there is no sandbox for commands", rung=standing.rung, causes=list(standing.causes))
        elif self._networked:
            await self._warm_proxy()

    async def _warm_proxy(self) -> None:
        try:
            await self._proxy.warm()
            return
        except Refusal as refusal:
            problem = refusal.message
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            problem = str(error)
        # The first networked command tries it again, and is refused where it still fails.
        log.warning("the network proxy could not be started yet", problem=problem)

    async def _end_all(self) -> None:
        processes = list(self._processes.values())
        for process in processes:
            process.terminate("terminated", limits.STOP_GRACE_SECONDS)
        for process in processes:
            await process.ended.wait()

    # --- starting ---

    async def spawn(self, workspace: Workspace, request: SpawnRequest, cwd_fd: int) -> Spawned:
        """Start one command in the directory `cwd_fd` and return once its program runs.

        Args:
            request: What was authorised; `cwd` is for people, `cwd_fd` is what counts.
            cwd_fd: An open directory (O_PATH is enough); closing stays with the caller.
        Raises: Refusal INVALID_COMMAND, PROCESS_SPAWN_FAILED, SANDBOX_UNAVAILABLE, LIMIT_REACHED, SHUTTING_DOWN,
            TIMEOUT where a filesystem does not answer; nothing runs then.
        Cancel: nothing runs, nothing is known under the id.
        Source: DESIGN section 5; the starter bounds it.
        """
        self._admit(request)
        self._starting.add(request.process_id)
        try:
            return await self._spawn(workspace, request, cwd_fd)
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            short = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            raise program.unprepared("No thread could be had for the start", short) from error
        finally:
            self._starting.discard(request.process_id)

    def _admit(self, request: SpawnRequest) -> None:
        if self._stopping:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was started.")
        if request.process_id in self._processes or request.process_id in self._starting:
            raise Refusal("INTERNAL", "This process id is in use. Nothing was started.")
        environment.check_argv(request.argv)
        environment.check(request.env)
        check_size(request.stdin or b"", starting=True)
        self._drop_old()

    async def _spawn(self, workspace: Workspace, request: SpawnRequest, cwd_fd: int) -> Spawned:
        try:
            process = await self._starter.start(workspace, request, cwd_fd)
        except BaseException:
            # Shields the removal of an empty directory; a sweep finds what is left at the deadline.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HOME_SECONDS):
                await self._remove(self._homes.remove, request.process_id)
            raise
        if self._stopping:  # it began to stop meanwhile; the nursery takes no one any more
            process.discard()
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. The command was ended at once.")
        self._processes[request.process_id] = process
        self._nursery.start_soon(self._drive, process, request.process_id)
        return Spawned(
            started_at=process.started_at,
            sandbox=process.sandbox,
            network=process.network,
            spool=process.spool_folder,
        )

    async def _drive(self, process: Process, process_id: str) -> None:
        try:
            await process.run()
        except Exception:  # its tree was ended, and other commands go on
            log.exception("a command was ended by a fault of CodeSpace", process_id=process_id)
        self._ended.append(process_id)
        self._spools.end(process_id)
        # Shields the removal of what no one will look at again; it goes on in its thread at the deadline.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HOME_SECONDS):
            await self._remove(self._homes.remove, process_id)

    async def _remove(self, act: Callable[..., None], *arguments: str) -> None:
        await run_patiently(act, *arguments, limiter=self._removing)

    # --- answering ---

    def process(self, process_id: str) -> ProcessState:
        """Return what is known now. Raises: Refusal PROCESS_NOT_FOUND."""
        return self._find(process_id).state()

    def knows(self, process_id: str) -> bool:
        """Return whether a process is live or still kept."""
        self._drop_old()
        return process_id in self._processes

    def limits(self, workspace: Workspace) -> dict[str, str]:
        """Return what carries each limit of a command outside a sandbox; see quota.carried."""
        return quota.carried(self._mechanisms, workspace)

    def usage(self, process_id: str) -> dict[str, float]:
        """Return cpu_seconds and memory_bytes of the tree, as far as known. Raises: Refusal PROCESS_NOT_FOUND."""
        return dict(self._find(process_id).usage)

    async def wait_exit(self, process_id: str) -> ProcessState:
        """Return once nothing of the tree is left and its output is complete.

        The time limit of the command bounds the wait. Raises: Refusal PROCESS_NOT_FOUND.
        Cancel: nothing changes; ask again.
        """
        process = self._find(process_id)
        await process.ended.wait()
        return process.state()

    async def output(
        self, process_id: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding
    ) -> Chunk:
        """Return output from byte `cursor` on; empty if there is none yet. See output.Output.read.

        At the end of all output it waits for the exit, for limits.EXIT_NEWS_SECONDS at most: whoever reads no further
        would think that it runs.
        """
        process = self._find(process_id)
        limit = min(max(1, limit_bytes), limits.OUTPUT_READ_BYTES)
        piece = await process.output.read(cursor, stream=stream, limit_bytes=limit, encoding=encoding)
        if piece.eof and process.output.is_closed("combined"):
            with trio.move_on_after(limits.EXIT_NEWS_SECONDS):
                await process.ended.wait()
        return Chunk(
            piece.text,
            piece.encoding,
            piece.cursor,
            piece.eof,
            piece.retained_from,
            piece.output_lost,
            process.state(),
            piece.retained_head,
            piece.replaced,
        )

    async def wait_output(self, process_id: str, *, cursor: int, stream: Stream) -> None:
        """Return once there is output behind `cursor`, or, where the stream has ended, the process too.

        Behind the end of a stream only the exit can still come, and its reader is to hear of it. The time
        limit of the command bounds the wait.

        Raises: Refusal PROCESS_NOT_FOUND.
        Cancel: nothing is consumed; ask again with the same cursor.
        """
        process = self._find(process_id)
        await process.output.wait(cursor, stream=stream)
        if process.output.is_closed(stream) and cursor >= process.output.totals[stream]:
            await process.ended.wait()

    async def wait_decisions(self, process_id: str, *, cursor: int) -> NetworkNews | None:
        """Return what a run's network door decided behind `cursor`; None where it has none, or nothing will follow.

        The time limit of the command bounds the wait.
        Raises: Refusal PROCESS_NOT_FOUND.
        Cancel: nothing is consumed; ask again with the same cursor.
        """
        return await self._find(process_id).wait_decisions(cursor)

    # --- acting ---

    async def write_stdin(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """Write `data` to the command's stdin, then with `eof` close it; returns the bytes taken.

        Fewer than all where the process has not read for limits.STDIN_SECONDS; `eof` is not said then.
        Raises: Refusal PROCESS_NOT_FOUND, PROCESS_EXITED (details: the final state), INVALID_ARGUMENT
            where stdin was not asked for or is closed, or its terminal has no end-of-input key; TIMEOUT where all was
            taken but `eof`; LIMIT_REACHED.
        Cancel: a part may have been written.
        """
        process = self._find(process_id)
        check_size(data)
        if process.ended.is_set():
            raise exited_refusal(process.state(), 0)
        if process.stdin is None:
            raise Refusal(
                "INVALID_ARGUMENT",
                "The stdin of this process is /dev/null. Nothing was written.",
                next_step="Start it again with `open_stdin` (or `stdin`, or `tty`) to send it input.",
            )
        try:
            return await process.stdin.write(data, eof=eof)
        except EndNotSaid as problem:
            raise _end_not_said(problem) from None
        except StdinClosed as closed:
            written = closed.written
        with trio.move_on_after(limits.EXIT_NEWS_SECONDS):
            await process.ended.wait()
        if process.ended.is_set():
            raise exited_refusal(process.state(), written)
        raise Refusal(
            "INVALID_ARGUMENT",
            f"The stdin of this process is closed; {written} of these bytes were written.",
            next_step="Read its output with read_process; it takes no more input.",
            details={"bytes_written": written},
        )

    async def resize(self, process_id: str, rows: int, cols: int) -> None:
        """Give its terminal another size, 1 to limits.TERMINAL_SIDE_MAXIMUM each way.

        Raises: Refusal PROCESS_NOT_FOUND, PROCESS_EXITED, INVALID_ARGUMENT where it has no terminal.
        """
        process = self._find(process_id)
        await trio.lowlevel.checkpoint()
        process.resize(rows, cols)

    async def terminate(self, process_id: str, grace_seconds: float) -> ProcessState:
        """End the whole tree: SIGTERM, `grace_seconds`, SIGKILL; returns once it is gone.

        An ended process is answered with its final state.
        Raises: Refusal PROCESS_NOT_FOUND; TIMEOUT where even SIGKILL did not end it in time.
        Cancel: the tree is still ended.
        """
        process = self._find(process_id)
        grace = min(max(0.0, grace_seconds), limits.GRACE_SECONDS_MAXIMUM)
        process.terminate("terminated", grace)
        with trio.move_on_after(grace + limits.END_SECONDS):
            await process.ended.wait()
        if not process.ended.is_set():
            raise Refusal(
                "TIMEOUT",
                "The tree was sent SIGKILL but is not gone yet (a hung disk or network wait). It is still being ended.",
                next_step="Ask process_status later.",
            )
        return process.state()

    def forget(self, process_id: str) -> None:
        """Drop an ended process and its output, also on disk; a live or unknown one is left as it is."""
        process = self._processes.get(process_id)
        if process is not None and process.ended.is_set():
            del self._processes[process_id]
            self._nursery.start_soon(self._remove, self._spools.remove, process_id)

    def _find(self, process_id: str) -> Process:
        self._drop_old()
        try:
            return self._processes[process_id]
        except KeyError:
            raise Refusal(
                "PROCESS_NOT_FOUND",
                f"No process of this id is live, or ended within the last {duration.words(self._retention_seconds)}.",
            ) from None

    def _drop_old(self) -> None:
        """Forget ended processes that are too old or too many; here, so that no task has to wait for it."""
        oldest = trio.current_time() - self._retention_seconds
        while self._ended:
            process = self._processes.get(self._ended[0])
            if process is not None and process.ended_time >= oldest and len(self._ended) <= limits.RETAINED_PROCESSES:
                return
            self._processes.pop(self._ended.popleft(), None)  # its spool stays for its retention: `spools` sees to it


def _end_not_said(problem: EndNotSaid) -> Refusal:
    taken = {"bytes_written": problem.written}
    if problem.has_key:
        return Refusal(
            "TIMEOUT",
            f"The end of input was not taken: the process did not read for {limits.STDIN_SECONDS:g} s. "
            f"{problem.written} bytes were written before.",
            next_step="Look with read_process at what it does; send `eof` with empty `data` once it reads.",
            details=taken,
        )
    return Refusal(
        "INVALID_ARGUMENT",
        "Its program has turned the end-of-input key (Ctrl-D) of the terminal off, so `eof` was not said. "
        f"{problem.written} bytes were written before.",
        next_step="Type what the program itself ends at, or Ctrl-C (\\u0003); or use terminate_process.",
        details=taken,
    )
