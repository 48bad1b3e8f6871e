"""One running command: its pipes, its output, its time limit, and how it ended.

A process is `running` until nothing of its tree is left and all that it wrote has been read; only
then is it `exited`. It is driven by one task, `run`, which no cancellation from outside can tear
away from a live tree: it ends with the tree, or lets go of the lifeline, which kills it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from codespace import limits, watches
from codespace.contract import NetworkNews, ProcessState, SpawnRequest, Stream, Termination
from codespace.errors import Refusal
from codespace.runner import hints, quota
from codespace.runner.boxed import Boxed, unseen
from codespace.runner.monitor import Monitor
from codespace.runner.network.wayout import WayOut
from codespace.runner.output.output import Output
from codespace.runner.output.spool import Spool
from codespace.runner.output.spooling import keep
from codespace.runner.pipes import Pipes
from codespace.runner.stdin import Stdin
from codespace.runner.terminal import Terminal
from codespace.runner.threads import run_patiently
from codespace.sandbox.limits import Overruns

STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
LOST_NOTE: Final = "What watched over this process ended or failed first: how the process ended is not known."
STUCK_NOTE: Final = "It was sent SIGKILL but did not end in time (a hung disk or network wait); it may still be there."


class Process:
    """A command that was started."""

    def __init__(
        self,
        request: SpawnRequest,
        monitor: Monitor,
        pipes: Pipes | Terminal,
        wall_clock: Callable[[], float],
        held: quota.Held,
        spool: Spool | None,
        sandbox: str = "none",
        boxed: Boxed | None = None,
        way_out: WayOut | None = None,
    ) -> None:
        self.sandbox = sandbox
        """What it is locked into: `linux-sandbox`, `landlock` or `none`."""
        self.output = Output(spool=spool)
        self.stdin: Stdin | None = pipes.take_stdin(request)
        self.started_at = wall_clock()
        self._begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.ended = trio.Event()
        """Set once nothing of the tree is left and the output is complete."""
        self.ended_time = 0.0
        """Trio's clock, for the retention."""
        self.usage: dict[str, float] = {}
        """cpu_seconds and memory_bytes of the whole tree, once known."""
        self._request = request
        self._monitor = monitor
        self._pipes = pipes
        self._held = held
        self._boxed = boxed
        self._way_out = way_out
        self._planted: tuple[str, ...] = ()
        self._notes_of_planted: list[str] | None = None
        """None until it was looked for."""
        self._overruns = Overruns()
        self._ended_at: float | None = None
        self._code: int | None = None
        self._reason: Termination | None = None
        self._stuck = False
        self._mounts_changed = trio.Event()
        self._bared: tuple[str, ...] = ()
        self._scope = trio.CancelScope(shield=True)

    @property
    def network(self) -> str:
        """What is enforced on its network: `enforced` or `none`."""
        return "none" if self._boxed is None else "enforced"

    @property
    def spool_folder(self) -> str | None:
        """Where its output lies on disk, once there is some."""
        return None if self.output.spool is None else self.output.spool.folder

    async def run(self) -> None:
        """Drive the process to its end. Never raises for what the process does."""
        budget = self._request.timeout_seconds + limits.GRACE_SECONDS + limits.END_SECONDS + limits.DRAIN_SECONDS
        # Shields the tree's only owner. The time limit ends it well before this deadline; at the
        # deadline the lifeline is cut, and the monitor goes on killing alone.
        self._scope.deadline = trio.current_time() + budget + limits.END_SECONDS
        try:
            with self._scope:
                async with trio.open_nursery() as keeping:
                    if self.output.spool is not None:
                        keeping.start_soon(keep, self.output, self.output.spool)
                    await self._live()
                    self._read_rest()
                    await self._settle()
                    # From here the spool ends by itself, in bounded time: nothing more will come.
        except Exception:
            if self._boxed is not None and self._notes_of_planted is None:
                self._planted, self._notes_of_planted = unseen("the run was ended by a fault of CodeSpace.")
            raise
        finally:
            if self._boxed is not None and self._notes_of_planted is None:
                self._planted, self._notes_of_planted = unseen("there was no time left to look.")
            self._finish()

    async def _settle(self) -> None:
        """Close the way out, and look back meanwhile: a door takes milliseconds to say its last."""
        async with trio.open_nursery() as nursery:
            if self._way_out is not None:
                nursery.start_soon(self._way_out.close)
            if self._boxed is not None or self._held.cage.members:
                await run_patiently(self._look_back)

    def _look_back(self) -> None:
        """Learn what the kernel did for the limits, and what a sandboxed run left that runs by itself on the host.

        The tree is gone. Blocks, by limits.SANDBOX_SCAN_SECONDS at most: for a thread.
        """
        if self._boxed is not None:
            self._bared = self._bared or self._boxed.bare()  # whoever was waiting for it may have ended at once
            self._planted, self._notes_of_planted = self._boxed.planted()
            self._boxed.close()  # here, as the kernel takes down all its mounts with the last descriptor of them
        # Last: by now the kernel is more likely to have let the dead go, and a folder can be removed at once.
        self._overruns = self._held.cage.overruns()
        self._held.cage.close()

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            for stream in STREAMS:
                if stream in self._pipes.outputs:
                    nursery.start_soon(self._pump, stream)
                else:
                    self.output.close(stream)
            if self.stdin is not None:
                nursery.start_soon(self.stdin.feed)
            if self._way_out is not None:
                nursery.start_soon(self._way_out.watch)
            if self._boxed is not None:
                nursery.start_soon(self._guard, self._boxed)
            await self._follow()
            with trio.move_on_after(limits.DRAIN_SECONDS):
                await self.output.wait_closed()
            nursery.cancel_scope.cancel()

    def discard(self) -> None:
        """Let go of a process that was never run: the lifeline is cut, all is closed."""
        self._finish()

    def abandon(self) -> None:
        """Stop driving: the lifeline is cut, and whatever is left of the tree is killed."""
        self._scope.cancel()

    def terminate(self, reason: Termination, grace_seconds: float) -> None:
        """Ask the tree to end; the first reason stands, and an exit that is known already."""
        if self.ended.is_set():
            return
        if self._code is None and self._reason is None:
            self._reason = reason
        self._monitor.terminate(grace_seconds)

    def state(self) -> ProcessState:
        """Return what is known now; of its end nothing before all of it is over."""
        over = self.ended.is_set()
        code = self._code if over else None
        return ProcessState(
            process_id=self._request.process_id,
            state="exited" if over else "running",
            started_at=self.started_at,
            output_total=self.output.totals,
            exit_code=code if code is not None and code >= 0 else None,
            signal=_signal_name(-code) if code is not None and code < 0 else None,
            termination=self._termination() if over else None,
            ended_at=self._ended_at if over else None,
            notes=self._notes(),
            resources=self._resources(),
            network_decisions=None if self._way_out is None else self._way_out.rows(),
            planted=self._planted or None,
        )

    async def wait_decisions(self, cursor: int) -> NetworkNews | None:
        """Return what its network door decided behind `cursor`; None where it has none, or nothing will follow."""
        if self._way_out is None:
            await trio.lowlevel.checkpoint()
            return None
        return await self._way_out.wait_news(cursor)

    def _termination(self) -> Termination:
        if self._code is None:
            return "lost"
        if self._reason is None and quota.is_reached(
            self._held, self._code, self.usage.get("cpu_seconds", 0.0), self._overruns
        ):
            return "limit"
        return self._reason or "exited"

    def _notes(self) -> tuple[str, ...]:
        notes = [] if self._boxed is None else [*self._boxed.notes, *self._hints(self._boxed)]
        if self._way_out is not None:
            notes += self._way_out.notes()
        if self._bared:
            notes.append(_bared(self._bared))
        if self.ended.is_set() and self._stuck:
            notes.append(STUCK_NOTE)
        elif self.ended.is_set() and self._code is None:
            notes.append(LOST_NOTE)
        if self.ended.is_set():
            notes += self._notes_of_planted or []
            notes += quota.notes(self._held, self._code, self._overruns)
        spool = self.output.spool
        if spool is not None and spool.failure is not None:
            notes.append(f"Not all of its output could be kept on disk: {spool.failure}. The last of it is in memory.")
        return tuple(notes)

    def _hints(self, boxed: Boxed) -> list[str]:
        """Return why it may be failing, or say nothing for a minute; nothing where it ended well."""
        if self._code == 0:
            return []
        # One that ended or speaks by itself says what it lacks; many ask for news that they can do without.
        is_silent = not self.output.totals["combined"] if self._code is None else self._reason == "timeout"
        tried_network = is_silent and boxed.tried_network()
        workspace, tail = self._held.workspace, self.output.tail(limits.HINT_BYTES)
        return hints.look(
            tail,
            network=workspace.network,
            git=workspace.git,
            read_only=boxed.read_only,
            tried_network=tried_network,
        )

    def _resources(self) -> dict[str, float] | None:
        if not self.usage:
            return None
        return {"cpu_seconds": self.usage["cpu_seconds"], "max_memory_bytes": int(self.usage["memory_bytes"])}

    async def _follow(self) -> None:
        """Return once the tree is gone, or the monitor, or the patience with an unkillable tree."""
        with trio.move_on_after(self._request.timeout_seconds):
            await self._listen()
            return
        self.terminate("timeout", limits.GRACE_SECONDS)
        with trio.move_on_after(limits.GRACE_SECONDS + limits.END_SECONDS) as patience:
            await self._listen()
        self._stuck = patience.cancelled_caught

    async def _guard(self, boxed: Boxed) -> None:
        """End the run once what was protected or hidden in it was replaced: that took the protection along.

        The kernel tells of what is removed or written over; of another name it says nothing, so it is looked again too.
        """
        while not self._bared:
            with trio.move_on_after(limits.SANDBOX_WATCH_SECONDS):
                await self._mounts_changed.wait()
            self._mounts_changed = trio.Event()
            self._bared = await run_patiently(boxed.bare)
        self.terminate("terminated", 0.0)

    async def _listen(self) -> None:
        while event := await self._monitor.event():
            self._hear(event)
            if event["event"] == "gone":
                return

    def _hear(self, event: dict[str, Any]) -> None:
        self.usage = event.get("usage", self.usage)
        if event["event"] == "mounts":
            self._mounts_changed.set()
        if event["event"] == "exited":
            code = int(event["code"])
            self._code = code if self._boxed is None else self._boxed.exit_code(code)
            if not event["asked"]:
                self._reason = None  # it ended by itself before it could hear of the request
            self._ended_at = self._now()

    async def _pump(self, stream: Stream) -> None:
        descriptor = self._pipes.outputs[stream]
        while self._read_in_turn(stream, descriptor):
            await self.output.wait_room()
            await watches.wait_readable(descriptor)
        self.output.close(stream)

    def _read_in_turn(self, stream: Stream, descriptor: int) -> bool:
        """Take what is there, of stdout first: pipes do not tell which came first, and chance must not decide."""
        if stream == "stderr" and not self.output.is_closed("stdout"):
            self._read("stdout", self._pipes.outputs["stdout"], limits.PIPE_READS)  # whose own pump meets its end again
        return self._read(stream, descriptor, limits.PIPE_READS)

    def _read(self, stream: Stream, descriptor: int, most: int) -> bool:
        """Take what is there, by `most` reads of limits.PIPE_READ_BYTES; returns False at the end."""
        for _ in range(most):  # reads, and not bytes: where the writer wants it so, each gives one write
            try:
                block = os.read(descriptor, limits.PIPE_READ_BYTES)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno != errno.EIO:  # a terminal that nobody has open any more
                    raise
                return False
            if not block:
                return False
            self.output.append(stream, block)
        return True

    def _read_rest(self) -> None:
        """Take what the tree still wrote, and say that nothing follows."""
        for stream, descriptor in self._pipes.outputs.items():
            if not self.output.is_closed(stream):
                # An outsider holds it open. What the tree wrote is as much as it can hold at most.
                with contextlib.suppress(OSError):
                    self._read(stream, descriptor, self._pipes.held_reads(stream))
                self.output.close(stream)

    def _finish(self) -> None:
        """Close everything and say that it is over."""
        self._monitor.close()
        if self._boxed is not None:
            self._boxed.close()
        if self._way_out is not None:
            self._way_out.drop()
        if self.stdin is not None:
            self.stdin.close()
        self._read_rest()
        self.output.stop_spooling()
        if self.output.spool is not None:
            self.output.spool.close()
        self._pipes.close()
        self._held.cage.close()  # where it was not looked at: a few system calls on a filesystem in memory
        if self._ended_at is None:
            self._ended_at = self._now()
        self.ended_time = trio.current_time()
        self.ended.set()

    def _now(self) -> float:
        """Return the time of day by a clock that nobody sets and no suspend stops: what is set is read at the start."""
        return self.started_at + time.clock_gettime(time.CLOCK_BOOTTIME) - self._begun

    def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size. Raises: Refusal INVALID_ARGUMENT, PROCESS_EXITED."""
        if self.ended.is_set():
            raise exited_refusal(self.state(), None)
        if not isinstance(self._pipes, Terminal):
            raise Refusal(
                "INVALID_ARGUMENT",
                "This process has no terminal, so it has no size. Nothing was changed.",
                next_step="Start it again with `tty` to give it a terminal.",
            )
        self._pipes.resize(rows, cols)


def _bared(places: tuple[str, ...]) -> str:
    more = f" and {len(places) - limits.SANDBOX_SHOWN} more" if len(places) > limits.SANDBOX_SHOWN else ""
    return (
        f"Something outside this run replaced {', '.join(places[: limits.SANDBOX_SHOWN])}{more} while it ran, and what "
        "kept the run away from that went along. It was ended then, but could have read or changed what is there now: "
        "look at it before anything uses it."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"SIG{number}"


def exited_refusal(state: ProcessState, written: int | None) -> Refusal:
    """Return what who acts on an ended process is told: how it ended, and how much had been taken before."""
    how = state.signal or (f"exit code {state.exit_code}" if state.exit_code is not None else "its end is not known")
    details = {
        "state": state.state,
        "exit_code": state.exit_code,
        "signal": state.signal,
        "termination": state.termination,
    }
    taken = "nothing was changed" if written is None else f"{written} bytes were written before"
    return Refusal(
        "PROCESS_EXITED",
        f"The process has ended ({how}); {taken}.",
        details=details if written is None else details | {"bytes_written": written},
        process_id=state.process_id,
    )
