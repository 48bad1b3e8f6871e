"""One child process that only writes: run in a thread, bounded, stoppable, waited for.

It is spawned by the thread that waits for it, so that bubblewrap's --die-with-parent, which follows
the thread, ends it when the daemon dies and never before.
"""

from __future__ import annotations

import contextlib
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
from codespace.runner.stopping import Stop
from codespace.sandbox.spawn import wait_stopped

_BLOCK_BYTES: Final = 262_144
_COMPLAINT_BYTES: Final = 16_384  # kept of stderr: enough for a message, whatever is written


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended. `cut` says why it was ended early; then the return code means nothing."""

    returncode: int | None
    complaint: bytes
    cut: Literal["time", "enough", "stopped"] | None = None


def run(
    argv: Sequence[str], *, fds: Sequence[int], take: Callable[[bytes], bool], stop: Stop, deadline: float
) -> Ending:
    """Run a program with an empty environment and /dev/null as input, and hand over what it writes.

    Args:
        argv: The program first, by its absolute path.
        fds: Descriptors that it inherits under their own numbers.
        take: Gets each block of output; False ends the child.
        stop: Ends the child when said.
        deadline: On time.monotonic().
    Raises: OSError where the program cannot be started.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=fds,
        env={},
        cwd="/",
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaint = bytearray()
    with process.stdout, process.stderr:
        sinks = {process.stdout.fileno(): take, process.stderr.fileno(): _keeping(complaint)}
        try:
            cut = _drain(process.pid, sinks, stop, deadline)
            if cut is None:
                process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            cut = "time"
        finally:
            end(process)
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
    for child in _children(pid):
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
    children = _kill_children(process.pid)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it: it ends when its disk answers
        process.wait(limits.REAP_SECONDS)
    for child in children:
        select.select([child], [], [], max(deadline - time.monotonic(), 0))
        os.close(child)


def _kill_children(pid: int) -> list[int]:
    """Kill the children of a stopped process and return descriptors that say when they are gone."""
    killed: list[int] = []
    for child in _children(pid):
        with contextlib.suppress(OSError):
            killed.append(os.pidfd_open(child))
            signal.pidfd_send_signal(killed[-1], signal.SIGKILL)
    return killed


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as listed:
            return [int(child) for child in listed.read().split()]
    except OSError:
        return []


def _drain(
    pid: int, sinks: dict[int, Callable[[bytes], bool]], stop: Stop, deadline: float
) -> Literal["time", "enough", "stopped"] | None:
    poller = select.poll()
    for fd in (*sinks, stop.fd):
        poller.register(fd, select.POLLIN)
    left = set(sinks)
    unbounded_until = time.monotonic() + limits.SEARCH_UNBOUNDED_SECONDS
    while left:
        now = time.monotonic()
        if now >= deadline:
            return "time"
        if now >= unbounded_until:
            _bound(pid)
            unbounded_until = deadline
        for fd, _ in poller.poll((min(deadline, unbounded_until) - now) * 1000 + 1):
            if fd == stop.fd:
                return "stopped"
            block = os.read(fd, _BLOCK_BYTES)
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
