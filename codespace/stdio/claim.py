"""Taking descriptors 0 and 1 for the wire, so that a stray print or a child's output cannot break the protocol.

To be done first, before anything else may write. Afterwards the program's own standard input is
/dev/null and its standard output is standard error; what was printed before and still lies in a buffer
ends up there too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import Final

from codespace import limits

_FIRST_FREE: Final = 3
# A copy must not land on a standard descriptor that happens to be closed.


@dataclass(frozen=True, slots=True)
class Claimed:
    """The wire's two ends. `serve_stdio` owns and closes them."""

    input_fd: int
    output_fd: int


def claim() -> Claimed:
    """Move the wire away from descriptors 0 and 1 and return it.

    Raises: OSError where 0 or 1 is not open: there is no client then.
    """
    _open_standard_error()
    claimed = Claimed(_private(0, os.O_RDONLY), _private(1, os.O_WRONLY))
    for fd in (claimed.input_fd, claimed.output_fd):
        with contextlib.suppress(OSError):  # not a pipe, or over the account's share of pipe memory: slower, no more
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, limits.STDIO_PIPE_BYTES)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.dup2(null, 0)
    finally:
        os.close(null)
    os.dup2(2, 1)
    return claimed


def _open_standard_error() -> None:
    """Make sure that 2 is open: fd 1 becomes a copy of it, and a file opened later must not take its place."""
    try:
        os.fstat(2)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != 2:
            os.dup2(null, 2)
            os.close(null)


def _private(fd: int, mode: int) -> int:
    """Return a descriptor of the same pipe or terminal, not inherited by children.

    Opened anew where that is possible: non-blocking mode belongs to the open file, which a copy would
    share with the parent's shell and with standard error.
    """
    os.fstat(fd)
    try:
        return os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # a socket, or a pipe of another account
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
