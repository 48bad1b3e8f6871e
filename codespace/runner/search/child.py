"""One child process that only writes: run in a thread, bounded, stoppable, waited for.

It is spawned by the thread that waits for it, so that bubblewrap's --die-with-parent, which follows
the thread, ends it when the daemon dies and never before.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from codespace import limits
from codespace.runner.pipes import Pipes
from codespace.runner.search.stopping import Stop
from codespace.sandbox.foreground import wait_stopped
from codespace.sandbox.pidinfo import children

_BLOCK_BYTES: Final = 262_144
_LOOKS: Final = 4  # at a child that may have stalled, before it is said to
_USER_TIME: Final = 11  # its place in /proc/PID/stat behind the name; system time follows
_COMPLAINT_BYTES: Final = 16_384  # kept of stderr: enough for a message, whatever is written


Cut = Literal["time", "enough", "stopped", "stalled"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended. `cut` says why it was ended early; then the return code means nothing."""

    returncode: int | None
    complaint: bytes
    cut: Cut | None = None


def run(
    argv: Sequence[str],
    *,
    fds: Sequence[int],
    take: Callable[[bytes], bool],
    stop: Stop,
    deadline: float,
    stall_seconds: float = math.inf,
) -> Ending:
    """Run a program with an empty environment and /dev/null as input, and hand over what it writes.

    Args:
        argv: The program first, by its absolute path.
        fds: Descriptors that it inherits under their own numbers.
        take: Gets each block of output; False ends the child.
        stop: Ends the child when said.
        deadline: On time.monotonic().
        stall_seconds: Ends a child that writes nothing and whose every thread has slept for so long.
    Raises: OSError where the program cannot be started.
    """
    complaint = bytearray()
    pipes = Pipes(stdin=False)  # our own: where one cannot be had, older subprocess modules keep the others
    try:
        stdin, stdout, stderr = pipes.theirs
        process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=fds, env={}, cwd="/")
        pipes.let_go()
        sinks = {pipes.outputs["stdout"]: take, pipes.outputs["stderr"]: _keeping(complaint)}
        try:
            cut = _drain(process.pid, sinks, stop, deadline, stall_seconds)
            if cut is None:
                process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            cut = "time"
        finally:
            end(process)
    finally:
        pipes.close()
    return Ending(process.returncode, bytes(complaint), cut)


def _bound(pid: int) -> None:
    """Bound the memory of a file that is one endless line, and the time of a child whose daemon was killed.

    Set from outside and for all descendants, since a program that has threads must not run code of its own
    between fork and exec, and bubblewrap has forked before its pid is known here.
    """
    cores = os.cpu_count() or 1
    seconds = int(limits.SEARCH_SECONDS * cores) + 2  # over what the deadline allows: never the first to end it
    with contextlib.suppress(OSError, ValueError):  # it has ended already, or has a stricter limit
        resource.prlimit(pid, resource.RLIMIT_DATA, (limits.SEARCH_MEMORY_BYTES, limits.SEARCH_MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))
    for child in children(pid):
        _bound(child)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and its children, and wait until they are gone; nothing happens where it has ended.

    A bubblewrap killed in its first milliseconds leaves its sandbox behind. Stopped first, it cannot
    make or reap another child while those that it has are killed; once it really stands still, that is: a
    fork that was under way when it was told to stop ends with one more child. The first process of a sandbox
    is gone only when all others in it are.
    """
    if process.poll() is not None:
        return
    deadline = time.monotonic() + limits.REAP_SECONDS
    process.send_signal(signal.SIGSTOP)
    wait_stopped(process.pid, limits.REAP_SECONDS)
    killed: list[int] = []
    try:
        _kill_children(process.pid, killed)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it: it ends when its disk answers
            process.wait(limits.REAP_SECONDS)
        for child in killed:
            gone = select.poll()  # not select.select, which takes no descriptor from 1024 on
            gone.register(child, select.POLLIN)
            gone.poll(max(deadline - time.monotonic(), 0) * 1000)
    finally:
        for child in killed:
            os.close(child)


def _kill_children(pid: int, killed: list[int]) -> None:
    """Kill the children of a stopped process; to `killed` go descriptors that say when they are gone."""
    for child in children(pid):
        with contextlib.suppress(OSError):
            killed.append(os.pidfd_open(child))
            signal.pidfd_send_signal(killed[-1], signal.SIGKILL)


class _Watch:
    """Tells whether a child waits for what may never come, such as a FIFO that it has opened."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.next_look = time.monotonic() + seconds / _LOOKS
        self._pid = pid
        self._seconds = seconds
        self._asleep = 0
        self._used = -1

    def heard(self) -> None:
        """Say that it has written something."""
        self._asleep = 0

    def is_stalled(self) -> bool:
        """Look at all threads; return whether they were asleep at each of the last looks, and did nothing between."""
        self.next_look = time.monotonic() + self._seconds / _LOOKS
        states, used = _threads(self._pid)
        self._asleep = self._asleep + 1 if states == {"S"} and used == self._used else 0
        self._used = used
        return self._asleep >= _LOOKS


def _threads(pid: int) -> tuple[set[str], int]:
    """Return the states of all threads of a child and its descendants, and the CPU time that they have used."""
    states, used = set[str](), 0
    for thread in glob.glob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError), open(thread, encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
            states.add(fields[0])
            used += int(fields[_USER_TIME]) + int(fields[_USER_TIME + 1])
    for child in children(pid):
        below, theirs = _threads(child)
        states, used = states | below, used + theirs
    return states, used


def _drain(
    pid: int, sinks: dict[int, Callable[[bytes], bool]], stop: Stop, deadline: float, stall_seconds: float
) -> Cut | None:
    poller = select.poll()
    for fd in (*sinks, stop.fd):
        poller.register(fd, select.POLLIN)
    left = set(sinks)
    unbounded_until = time.monotonic() + limits.SEARCH_UNBOUNDED_SECONDS
    watch = _Watch(pid, stall_seconds)
    while left:
        now = time.monotonic()
        if now >= deadline:
            return "time"
        if now >= unbounded_until:
            _bound(pid)
            unbounded_until = deadline
        if now >= watch.next_look and watch.is_stalled():
            return "stalled"
        for fd, _ in poller.poll(max(min(deadline, unbounded_until, watch.next_look) - now, 0) * 1000 + 1):
            if fd == stop.fd:
                return "stopped"
            block = os.read(fd, _BLOCK_BYTES)
            watch.heard()
            if not block:
                poller.unregister(fd)
                left.discard(fd)
            elif not sinks[fd](block):
                return "enough"
    return None


def _keeping(kept: bytearray) -> Callable[[bytes], bool]:
    def take(block: bytes) -> bool:
        kept.extend(block[: _COMPLAINT_BYTES - len(kept)])
        return True

    return take
