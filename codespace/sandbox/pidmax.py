"""The most processes of a sandbox, where no cgroup can be used: pid_max of its own pid namespace.

It is set from outside, once the namespace is there and before its command is. A forked child does so,
because who enters a user namespace must have one thread, and because the file follows the namespace
of the one who writes it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import warnings
from typing import Final, NoReturn

from codespace import limits

KERNEL: Final = (6, 14)
"""From here on pid_max belongs to a pid namespace; before, a write would set the whole machine's."""
_FILE: Final = "/proc/sys/kernel/pid_max"
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
_NS_GET_USERNS: Final = 0xB701
_UNKNOWN: Final = 5  # EIO

_libc = ctypes.CDLL(None, use_errno=True)


def kernel() -> tuple[int, int]:
    """Return this kernel's version; (0, 0) where its name tells none."""
    parts = os.uname().release.split(".")
    try:
        return int(parts[0]), int("".join(filter(str.isdigit, parts[1][:3])))
    except (IndexError, ValueError):
        return 0, 0


def is_per_namespace() -> bool:
    """Return whether this kernel keeps a pid_max for each pid namespace."""
    return kernel() >= KERNEL


def limit(pid: int, most: int) -> None:
    """Set the most processes and threads in the pid namespace of process `pid`, which the caller holds on to.

    Blocking, 3 ms, at most limits.SANDBOX_ENTER_SECONDS. Raises: OSError; ValueError on a kernel that has one
    pid_max for the whole machine.
    """
    if not is_per_namespace():
        raise ValueError("this kernel has one pid_max for the whole machine")
    namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/pid")):
            raise OSError(_UNKNOWN, "the process is in no pid namespace of its own")
        # The namespace that owns it, which need not be the one that the process is in now.
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        try:
            number = _set(owner, namespace, most)
        finally:
            os.close(owner)
    finally:
        os.close(namespace)
    if number:
        raise OSError(number, os.strerror(number))


def _set(owner: int, namespace: int, most: int) -> int:
    """Return the errno that the child ended with, 0 for none; a hanging one is killed. Raises: OSError."""
    end, held = (
        os.pipe()
    )  # before the fork: where there is no descriptor for it, there is no child to look after either
    try:
        try:
            child = _fork(owner, namespace, most)
        finally:
            os.close(held)
        poll = select.poll()
        poll.register(end, 0)  # POLLHUP, once the child's copy of the other end is gone
        if not poll.poll(limits.SANDBOX_ENTER_SECONDS * 1000):
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(end)
    _, status = os.waitpid(child, 0)
    number = os.waitstatus_to_exitcode(status)
    return number if number >= 0 else _UNKNOWN


def _fork(owner: int, namespace: int, most: int) -> int:
    with warnings.catch_warnings():
        # Since 3.12 Python warns of forks beside threads. This child makes a few system calls and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _inside(owner, namespace, most)
    return child


def _inside(owner: int, namespace: int, most: int) -> NoReturn:
    try:
        # EINVAL: the owner is the namespace that we are in already.
        if _libc.setns(owner, _CLONE_NEWUSER) and ctypes.get_errno() != 22:
            os._exit(ctypes.get_errno())
        if _libc.setns(namespace, _CLONE_NEWPID):
            os._exit(ctypes.get_errno())
        writer = os.fork()  # only who is born after setns is in the pid namespace
        if writer == 0:
            with open(_FILE, "wb", buffering=0) as file:
                file.write(str(most).encode())
            os._exit(0)
        _, status = os.waitpid(writer, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    except OSError as error:
        os._exit(error.errno or _UNKNOWN)
    finally:
        os._exit(_UNKNOWN)
