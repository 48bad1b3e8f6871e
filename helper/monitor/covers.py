"""The fork that lays covers over places of the machine in a sandbox, while the sandbox's gate is shut.

bubblewrap reads the whole table of mounts again for each of its own, and takes ten times as long. The fork is made
while bubblewrap is at work and waits for the word; entering the sandbox's namespaces is for good, so it is a fork.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from helper.monitor.kernel import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    NS_GET_USERNS,
    enter,
    mount,
)
from helper.monitor.line import Line
from helper.monitor.tree import children, parent_of

_INERT: Final = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
_NOTHING: Final = b"/dev/null"
Covers = Mapping[str, Iterable[str]]
"""`directories` are covered by an empty one that nobody may enter, `files` by nothing, `read_only` by themselves.

`masked_directories` and `masked_files` are the same below a root, where others may move them at any moment.
"""


class Coverer:
    """The fork, from its start to its one word.

    Args:
        command: bubblewrap, which has one child: process 1 of the sandbox.
        line: Where the fork tells what came of it: nobody waits for its end then, nor for the monitor to see that.
    """

    def __init__(self, command: int, covers: Covers, line: Line) -> None:
        """Raises: OSError where there is no process for it."""
        waiting, self._word = os.pipe()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self._word)
                _lay_when_told(waiting, command, covers, line)
        except OSError:
            os.close(self._word)
            raise
        finally:
            os.close(waiting)
        self._was_told = False

    def go(self) -> None:
        """Say that the sandbox stands; the fork does its work, tells of it, and ends. Said again it is nothing."""
        if self._was_told:
            return
        self._was_told = True
        with contextlib.suppress(BrokenPipeError):  # it was killed, which is told where it is reaped
            os.write(self._word, b"!")
        os.close(self._word)


def _lay_when_told(waiting: int, command: int, covers: Covers, line: Line) -> NoReturn:
    code = 1
    try:
        targets = {kind: [os.fsencode(path) for path in paths] for kind, paths in covers.items()}
        _rehearse()
        if os.read(waiting, 1):  # an end of file: there is no monitor any more
            number, masking = _lay_in(command, targets)
            line.tell(event="covered", errno=number, masking=masking)
        code = 0
    finally:
        os._exit(code)


def _rehearse() -> None:
    """Touch, while bubblewrap is at work, what the work to come needs of the interpreter."""
    with contextlib.suppress(OSError):
        _enter(os.getpid())  # which has no child: refused
    with contextlib.suppress(OSError):
        _lay((b"",), (), ())  # nowhere: refused


def _lay_in(command: int, targets: Mapping[str, Iterable[bytes]]) -> tuple[int, bool]:
    """Return 0 or an errno, and whether all that is the machine's was covered by then."""
    masking = False
    try:
        _enter(command)
        # What the host mounts from now on stays outside. Not in `_lay`, which is rehearsed in the host's own mounts.
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
        _lay(targets["directories"], targets["files"], targets["read_only"])
        masking = True
        _lay(targets["masked_directories"], targets["masked_files"], ())
    except OSError as error:
        return error.errno or errno.EIO, masking
    return 0, masking


def _enter(command: int) -> None:
    """Enter the mounts of the sandbox whose bubblewrap is `command`, with all rights there and none outside."""
    inside = next(iter(children(command)), 0)
    with contextlib.ExitStack() as held:
        namespace = os.open(f"/proc/{inside or os.getpid()}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        held.callback(os.close, namespace)
        # The user namespace that owns the mounts, which need not be the one that the process is in now.
        owner = fcntl.ioctl(namespace, NS_GET_USERNS)
        held.callback(os.close, owner)
        # Looked at behind the opening: bubblewrap, which is not reaped yet, has no other child in its life.
        ours = os.stat("/proc/self/ns/mnt")
        if not inside or parent_of(inside) != command or os.path.samestat(os.fstat(namespace), ours):
            raise OSError(errno.ESRCH, "no sandbox")
        enter(owner, CLONE_NEWUSER)
        enter(namespace, CLONE_NEWNS)


def _lay(directories: Iterable[bytes], files: Iterable[bytes], read_only: Iterable[bytes]) -> None:
    for path in directories:
        mount(b"tmpfs", path, b"tmpfs", _INERT, b"mode=0,size=4k")
    for path in files:
        mount(_NOTHING, path, None, MS_BIND)
        mount(b"none", path, None, MS_REMOUNT | MS_BIND | _INERT)
    for path in read_only:
        mount(path, path, None, MS_BIND)
        mount(b"none", path, None, MS_REMOUNT | MS_BIND | _INERT)
