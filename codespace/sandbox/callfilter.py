"""A filter of system calls for our own helpers, small enough to be written by hand: no sockets, no programs.

libseccomp would cost 50 ms to import, which is half of a helper's start.

Source: linux/seccomp.h, linux/filter.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_NUMBER: Final = 0  # offsets in struct seccomp_data
_ARCHITECTURE: Final = 4
_ALLOW: Final = 0x7FFF0000
_DENY: Final = 0x00050000 | errno.EACCES
_X32: Final = 0x40000000  # of x86-64: another table of the same calls

_CALLS: Final = {
    # socket, socketpair, execve, execveat, ptrace, process_vm_readv, process_vm_writev, io_uring_setup, pidfd_getfd
    "x86_64": (0xC000003E, (41, 53, 59, 322, 101, 310, 311, 425, 438)),
    "aarch64": (0xC00000B7, (198, 199, 221, 281, 117, 270, 271, 425, 438)),
    "riscv64": (0xC00000F3, (198, 199, 221, 281, 117, 270, 271, 425, 438)),
}

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny_sockets_and_programs() -> None:
    """Refuse this thread and its children new sockets, starting programs and reaching into processes, with EACCES.

    Raises: OSError; ENOSYS where the calls of this architecture are not known.
    """
    known = _CALLS.get(os.uname().machine)
    if known is None:
        raise OSError(errno.ENOSYS, f"no filter is known for {os.uname().machine}")
    code = _assembled(*known)
    program = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _assembled(architecture: int, calls: tuple[int, ...]) -> bytes:
    count = len(calls)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, count + 3, architecture),  # another architecture: to the denial
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, count + 1, 0, _X32),
        *((_EQUAL, count - position, 0, number) for position, number in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
