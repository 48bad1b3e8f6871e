"""The fork that takes a request and becomes its command."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import termios
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from helper.monitor.kernel import (
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SYS_CLOSE_RANGE,
    SYS_LANDLOCK_RESTRICT_SELF,
    libc,
)
from helper.monitor.line import DESCRIPTORS, INHERITED, Line

HIGH: Final = 3 + INHERITED
# Descriptors are moved to here or above while they change places; no higher than it must be, for a low RLIMIT_NOFILE.
REHEARSED: Final = json.dumps({"program": "/", "argv": ["--word"] * 200, "env": {"NAME": "value"}}).encode() + b"\n"
# An order of the size of a sandbox's.


def wait_for_order(control: socket.socket, told: int, parent: int) -> NoReturn:
    """Be the fork that takes the request and becomes its command. To `told` goes what the monitor must know, a line of
    JSON, and behind it `stage errno` where it failed; an execve closes it."""
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the monitor has one thread: no thread trap
        if os.getppid() != parent:
            raise EOFError
        if not is_readable(control):
            rehearse()
        line = Line(control)
        request, descriptors = line.receive_request()
        line.tell(event="ready")  # without it certainly nothing was started, and the daemon may ask another
        if line.cut:
            raise EOFError
        facts = {
            "layers": request.get("layers", 0),
            "hang_up": request["terminal"] != "none",
            "covers": request.get("covers"),
        }
        with open(told, "wb", closefd=False) as telling:  # whole, however many covers
            telling.write(json.dumps(facts).encode() + b"\n")
        become(request, descriptors, told)
    except (EOFError, ConnectionError):
        pass  # the daemon went away or gave up before there was a command
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(127)


def rehearse() -> None:
    """Take an order that nobody gave, while nobody waits: behind a fork the first touch of each of the interpreter's
    pages takes longer than what is done there, half a millisecond of each command. It takes more descriptors than an
    order does: where there are too few, the order is heard all the same."""
    with contextlib.ExitStack() as held, contextlib.suppress(OSError, EOFError):
        ours, theirs = map(held.enter_context, socket.socketpair())
        socket.send_fds(ours, [REHEARSED], [0] * DESCRIPTORS)
        line = Line(theirs)
        request, descriptors = line.receive_request()
        for descriptor in descriptors:
            held.callback(os.close, descriptor)
        line.tell(event="ready")
        encoded(request)
        for descriptor in descriptors:
            os.close(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH))


def is_readable(control: socket.socket) -> bool:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(0))


def encoded(request: dict[str, Any]) -> tuple[bytes, list[bytes], dict[bytes, bytes]]:
    """Return program, arguments and environment as the kernel takes them."""
    argv = [os.fsencode(item) for item in request["argv"]]
    env = {os.fsencode(name): os.fsencode(value) for name, value in request["env"].items()}
    return os.fsencode(request["program"]), argv, env


def become(request: dict[str, Any], descriptors: Sequence[int], failure: int) -> NoReturn:
    """Turn this fork into the command; on failure write `stage errno` to `failure` and end."""
    stage = "directory"
    try:
        os.fchdir(descriptors[3])
        stage = "descriptors"
        failure = place(descriptors, failure)
        if request["terminal"] == "controlling":
            stage = "terminal"
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # of the new session; 0: never stolen from another
        stage = "limits"
        confine(request["cgroups"], request["rlimits"])
        if request.get("ruleset", False):
            stage = "restriction"
            restrict(3)  # after the cgroups, which lie outside of what it allows
        os.umask(request["umask"])
        stage = "program"
        program, argv, env = encoded(request)
        os.execve(program, argv, env)  # noqa: S606 - no shell is the rule
    except OSError as error:
        os.write(failure, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def restrict(ruleset: int) -> None:
    """Live by a Landlock ruleset from here on, and let go of its descriptor. Raises: OSError."""
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def confine(cgroups: Iterable[str], rlimits: Iterable[Sequence[int]]) -> None:
    """Enter the cgroups, then take the resource limits on. Raises: OSError."""
    for path in cgroups:
        with open(path, "wb", buffering=0) as members:
            members.write(b"0")  # 0 is the writer itself
    for number, soft, hard in rlimits:
        _, most = resource.getrlimit(number)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(number, (soft, hard))


def place(descriptors: Sequence[int], failure: int) -> int:
    """Give the program its descriptors as 0, 1, 2, and what it inherits as 3 and up; returns where `failure` is now."""
    failure = fcntl.fcntl(failure, fcntl.F_DUPFD_CLOEXEC, HIGH)
    inherited = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in descriptors[DESCRIPTORS:]]
    for number in range(3):
        os.dup2(descriptors[number], number)  # the received ones are all above 2
    for number, descriptor in enumerate(inherited, 3):
        os.dup2(descriptor, number)
    close_others(3 + len(inherited), failure)
    return failure


def close_others(above: int, kept: int) -> None:
    """Close every descriptor from `above` on but `kept`, which closes itself at execve."""
    for first, last in ((above, kept - 1), (kept + 1, 0xFFFF_FFFF)):
        if first <= last and libc.syscall(SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), 0):
            os.closerange(first, min(last, os.sysconf("SC_OPEN_MAX")) + 1)  # a kernel before 5.9
