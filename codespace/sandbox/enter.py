"""What can only be done inside a sandbox's namespaces: a forked child goes in, does it and ends.

The standard library only, and no other module of ours: the monitor loads this file by its path. It
must be called from a process of one thread, since no other may enter a user namespace.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import signal
import socket
from typing import Final, NoReturn

PID_MAX_KERNEL: Final = (6, 14)
"""From here on pid_max belongs to a pid namespace; before, a write would set the whole machine's."""
_PID_MAX: Final = "/proc/sys/kernel/pid_max"
_NAMESPACES: Final = 0x10000000 | 0x20000000 | 0x40000000  # CLONE_NEWUSER, NEWPID, NEWNET
_IP_FREEBIND: Final = 15  # the listener is made before the loopback interface is up
_BACKLOG: Final = 128
_SECONDS: Final = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def kernel_version() -> tuple[int, int]:
    """Return the two numbers that a kernel release begins with; zeros where it does not."""
    parts = os.uname().release.split(".")
    try:
        return int(parts[0]), int("".join(filter(str.isdigit, parts[1][:3])) or 0)
    except (IndexError, ValueError):
        return 0, 0


def enter(pidfd: int, *, pid_max: int | None = None, listen: tuple[str, int] | None = None) -> int | None:
    """Set the sandbox's pid_max, and open a listening socket in its network; return that socket's descriptor.

    Args:
        pidfd: Of process 1 in the sandbox, before its command is released.
        pid_max: Most processes and threads; the caller has looked at PID_MAX_KERNEL.
        listen: Address and port inside; None for no socket.
    Raises: OSError where one of them could not be done.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        _inside(theirs, pidfd, pid_max, listen)
    theirs.close()
    with ours:
        try:
            ours.settimeout(_SECONDS)
            message, descriptors, _, _ = socket.recv_fds(ours, 64, 1)
        except TimeoutError:
            message, descriptors = b"62", []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if message != b"0":
        for descriptor in descriptors:
            os.close(descriptor)
        number = int(message or b"5")
        raise OSError(number, os.strerror(number))
    return descriptors[0] if descriptors else None


def _inside(answer: socket.socket, pidfd: int, pid_max: int | None, listen: tuple[str, int] | None) -> NoReturn:
    try:
        if _libc.setns(pidfd, _NAMESPACES) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if pid_max is not None:
            _write_pid_max(pid_max)
        opened = [] if listen is None else [_listening(listen)]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", opened))] if opened else []
        answer.sendmsg([b"0"], ancillary)
    except OSError as error:
        answer.send(str(error.errno or 5).encode())
    finally:
        os._exit(0)


def _write_pid_max(pid_max: int) -> None:
    """Write it from a child: only who is born after setns is in the pid namespace, and the file follows the writer."""
    child = os.fork()
    if child == 0:
        try:
            with open(_PID_MAX, "wb", buffering=0) as file:
                file.write(str(pid_max).encode())
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 5)
        finally:
            os._exit(5)
    _, status = os.waitpid(child, 0)
    number = os.waitstatus_to_exitcode(status)
    if number:
        raise OSError(number if number > 0 else 5, "pid_max was not set")


def _listening(address: tuple[str, int]) -> int:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener.detach()
