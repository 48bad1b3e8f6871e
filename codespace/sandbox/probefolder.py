"""The folder in which something is tried (a sandbox, a configuration, the product), and the sweep of those left behind.

Whoever is killed leaves its folder, and the next of its kind removes it. It lies where temporary files do as a
rule, which is often a directory that other accounts write to. So what is swept is certainly ours: a directory
of this account alone, looked at through its descriptor, with our mark in it, whose lock nobody holds any more.
No name is followed, and no mount is entered.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.beneath import kernel

PROBE: Final = "codespace-probe-"
"""The prefix of those in which sandboxes are tried."""
_BEHIND: Final = re.compile(r"[0-9a-f]{16}")
_MARK: Final = ".codespace-probe"
# Nobody but this account can have put it into a directory of this account: one that somebody renamed to our name,
# in a directory where everybody may rename everything, has none. Its lock says that its maker lives.
_TRIES: Final = 16  # at a new folder: a sweep can take one away only in its first moments
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RESOLVE: Final = (
    kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS | kernel.RESOLVE_NO_XDEV
)
# Another account's mount (FUSE) under such a name could hold whoever enters it for as long as it likes.
# Nothing is swept where the kernel has no openat2.


@dataclass(frozen=True, slots=True)
class _Held:
    """A folder of ours by its descriptor, and that of its mark with the lock."""

    name: str
    folder: int
    mark: int


@contextlib.contextmanager
def open_folder(prefix: str = PROBE, place: str | None = None) -> Iterator[str]:
    """Lend the path of a new folder with nothing in it but our mark, and remove it behind the block, whatever ends it.

    What others of its kind that were killed have left is swept first.

    Args:
        prefix: Of the folder's name, which tells its kind.
        place: The directory in which it is made; None for where temporary files are.
    Raises: OSError where there is no room for one.
    """
    place = place or tempfile.gettempdir()
    above = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # leftovers that cannot be looked at hold nobody up
            _sweep(above, prefix)
        held = _make(above, prefix)
        try:
            yield os.path.join(place, held.name)
        finally:
            _remove(above, held)
    finally:
        os.close(above)


def _make(above: int, prefix: str) -> _Held:
    for _ in range(_TRIES):
        name = prefix + secrets.token_hex(8)
        os.mkdir(name, 0o700, dir_fd=above)
        with contextlib.ExitStack() as opened:
            try:
                folder = os.open(name, _DIRECTORY, dir_fd=above)
                opened.callback(os.close, folder)
                mark = os.open(_MARK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
                opened.callback(os.close, mark)
            except FileNotFoundError:
                continue  # a sweep came between, and took it for one that was left
            fcntl.flock(mark, fcntl.LOCK_EX)
            if os.fstat(mark).st_nlink:  # else a sweep had the lock first
                opened.pop_all()
                return _Held(name, folder, mark)
    raise FileNotFoundError(errno.ENOENT, "new folders disappear", prefix)


def _sweep(above: int, prefix: str) -> None:
    """Remove the folders of the dead among the first entries of a directory that anybody may fill."""
    listed = os.open(".", _DIRECTORY, dir_fd=above)
    try:
        with os.scandir(listed) as entries:
            some = itertools.islice(entries, limits.PROBE_SWEEP_ENTRIES)
            names = [entry.name for entry in some if _is_of(entry.name, prefix)]
    finally:
        os.close(listed)
    for name in names:
        with contextlib.suppress(OSError):  # not ours to open, alive, or gone meanwhile
            _remove(above, _take(above, name))


def _is_of(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and _BEHIND.fullmatch(name, len(prefix)) is not None


def _take(above: int, name: str) -> _Held:
    """Open what a dead one left, and take its lock. Raises: OSError where it is anything else."""
    with contextlib.ExitStack() as opened:
        folder = kernel.openat2(above, os.fsencode(name), _DIRECTORY, _RESOLVE)
        opened.callback(os.close, folder)
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(name)
        try:
            mark = os.open(_MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:  # killed before it made its mark: then nothing is in it, or it is not ours
            _remove_name(above, name, folder)
            raise
        opened.callback(os.close, mark)
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened.pop_all()
    return _Held(name, folder, mark)


def _remove(above: int, held: _Held) -> None:
    """Remove a folder that is ours, its mark last, and let go of it."""
    try:
        with contextlib.suppress(OSError):  # what is left then is swept by a later one, while the mark is there
            _empty(held.folder, os.fstat(held.folder).st_dev, but=_MARK)
            os.unlink(_MARK, dir_fd=held.folder)
            _remove_name(above, held.name, held.folder)
    finally:
        os.close(held.folder)
        os.close(held.mark)


def _empty(folder: int, device: int, but: str = "") -> None:
    for name in os.listdir(folder):
        if name == but:
            continue
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            _remove_below(folder, name, device)


def _remove_below(folder: int, name: str, device: int) -> None:
    below = os.open(name, _DIRECTORY, dir_fd=folder)
    try:
        if os.fstat(below).st_dev != device:  # a mount of root's: nobody else can have put anything into our folder
            raise PermissionError(name)
        _empty(below, device)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=folder)


def _remove_name(above: int, name: str, folder: int) -> None:
    """Remove the name where it still leads to this folder; an empty directory is all that is ever lost."""
    if os.path.samestat(os.stat(name, dir_fd=above, follow_symlinks=False), os.fstat(folder)):
        os.rmdir(name, dir_fd=above)
