"""A run in the foreground: who starts it waits for nothing else and sees it to its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.sandbox.pidinfo import children
from codespace.sandbox.plan import Plan
from codespace.sandbox.spawn import Equipment, Launch, NotStarted

_STOPPING_SECONDS: Final = 0.0002
# Between two looks at a process that has been told to stop; SIGCHLD belongs to whoever owns this process.


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    code: int
    """bubblewrap's own: that of the command, 128 and the number for a signal."""
    ended: int | None = None
    """The command's, negative for a signal."""
    cut: bool = False
    """It was ended at the deadline."""


def run(
    equipment: Equipment,
    plan: Plan,
    *,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    seconds: float | None = None,
    until: int | None = None,
    observe: Callable[[Launch], None] | None = None,
) -> Outcome:
    """Run a plan and wait for its end, from a process or thread that waits for nothing else.

    Args:
        stdin, stdout, stderr: Descriptors that the command gets as 0, 1 and 2; no other is inherited.
        seconds: The command's time limit.
        until: A descriptor; once it is readable, the run is ended.
        observe: Called when all is set up and the gate is still shut.
    Raises: NotStarted, OSError, seccomp.Missing; nothing is left then.
    """
    launch = Launch(equipment, plan)
    bubblewrap: int | None = None
    try:
        bubblewrap = start(launch.argv, launch.env, {0: stdin, 1: stdout, 2: stderr, **launch.inherited})
        launch.let_go()
        deadline = time.monotonic() + limits.SANDBOX_START_SECONDS
        _walk(launch.started(bubblewrap), deadline, until)
        _walk(launch.ready(), deadline, until)
        launch.seal()
        if observe is not None:
            observe(launch)
        launch.release()
        cut = not _ended(bubblewrap, seconds, until)
        if cut:
            end(bubblewrap)
        _, status = os.waitpid(bubblewrap, 0)
        bubblewrap = None
        code = os.waitstatus_to_exitcode(status)
        return Outcome(code, launch.exit_code(code), cut)
    except NotStarted as problem:
        if bubblewrap is not None and _ended(bubblewrap, limits.SANDBOX_CLOSING_SECONDS, until):
            problem.code = os.waitstatus_to_exitcode(os.waitpid(bubblewrap, 0)[1])
            bubblewrap = None
        raise
    finally:
        if bubblewrap is not None:
            end(bubblewrap)
            os.waitpid(bubblewrap, 0)
        _wait_gone(launch.pidfd)
        launch.close()


def start(command: Sequence[str], env: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
    """Start a program with exactly these descriptors, numbered as said; returns its pid. Raises: OSError."""
    open_now = [int(name) for name in os.listdir("/proc/self/fd")]
    taken = {*descriptors, *descriptors.values(), *open_now}
    free = (number for number in itertools.count() if number not in taken)  # as low as can be, for RLIMIT_NOFILE
    # First all are moved out of the way of each other's numbers, then to their own; the rest is closed.
    moved = dict(zip(descriptors, free, strict=False))
    actions: list[tuple[int, int, int]] = [
        (os.POSIX_SPAWN_DUP2, descriptors[number], moved[number]) for number in moved
    ]
    actions += [(os.POSIX_SPAWN_DUP2, moved[number], number) for number in moved]
    # What no program inherits is not named here: no number over RLIMIT_NOFILE may be, open or not.
    unwanted = {*filter(_is_inherited, open_now), *moved.values()} - set(descriptors)
    closing = [(os.POSIX_SPAWN_CLOSE, number) for number in sorted(unwanted)]
    return os.posix_spawn(command[0], list(command), env, file_actions=[*actions, *closing], setsigdef=_HANDLED)


def _is_inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # closed by now, as that of the listing itself
        return False


_HANDLED: Final = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def end(bubblewrap: int) -> None:
    """Kill a sandbox that is our own child: stopped first, bubblewrap can make no other child meanwhile.

    Killed in its first milliseconds it would leave its sandbox behind. Waiting for it is the caller's part.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(bubblewrap, signal.SIGSTOP)
        wait_stopped(bubblewrap, limits.SANDBOX_END_SECONDS)
        for child in children(bubblewrap):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.kill(bubblewrap, signal.SIGKILL)


def wait_stopped(pid: int, seconds: float) -> None:
    """Wait until a child stands still or is dead: a stop is obeyed at the end of a system call, which may be a fork."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG):
                return
        time.sleep(_STOPPING_SECONDS)


def _walk(steps: Iterator[int], deadline: float, until: int | None) -> None:
    for descriptor in steps:
        ready = _poll((descriptor, *(() if until is None else (until,))), deadline - time.monotonic())
        if until in ready:
            raise NotStarted("start", "it was not wanted any more")
        if not ready:
            raise NotStarted("start", f"it took more than {limits.SANDBOX_START_SECONDS:g} s")


def _ended(pid: int, seconds: float | None, until: int | None) -> bool:
    held = os.pidfd_open(pid)
    try:
        return held in _poll((held, *(() if until is None else (until,))), seconds)
    finally:
        os.close(held)


def _wait_gone(pidfd: int | None) -> None:
    """Wait until process 1 is gone, and so everything else in the sandbox."""
    if pidfd is not None:
        _poll((pidfd,), limits.SANDBOX_END_SECONDS)


def _poll(descriptors: Sequence[int], seconds: float | None) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {found for found, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000)}
