"""The lower rung: Landlock alone, where the operator allows it. It keeps reads and writes in place, and TCP away.

It does not stop chmod, chown and changes of times outside, datagrams, sockets with a path, a look at other processes
(root's commands read their environments too, by CAP_PERFMON), and it cannot keep a git directory, a protected or a
hidden path below a writable root. So it is told as degraded, area by area.

Source: linux/landlock.h, landlock(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from codespace.sandbox import landlock, system

_CREATE: Final = 444
_ADD_RULE: Final = 445
_PATH_BENEATH: Final = 1
_READ: Final = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a directory
_WRITE: Final = 1 << 1
_LIST: Final = 1 << 3
_MAKE: Final = sum(1 << bit for bit in range(4, 13)) & ~(1 << 6 | 1 << 11)  # all but character and block devices
_ALL: Final = (1 << 13) - 1
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_TCP: Final = 1 << 0 | 1 << 1  # bind and connect, loopback included: there is no rule by address, only by port
_SCOPES: Final = 0b11  # abstract sockets and signals of processes outside
_DEVICES: Final = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
)
# Not /dev/pts: whoever has it may write on every terminal of the account, where a person decides what is held,
# and read what is typed there. A ruleset cannot name the terminals that a command will make.
_READABLE: Final = (*system.PROGRAMS, *system.ALIASES, "/proc")
_ETC: Final = "/etc"
_etc = system.Etc(_ETC)

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("place", ctypes.c_int32))


def ruleset(writable: Sequence[str], readable: Sequence[str] = (), terminal: int | None = None) -> int:
    """Return a close-on-exec descriptor of a ruleset, for a process to restrict itself with. Blocks for milliseconds.

    Older kernels restrict less: no truncation before version 3, TCP before 4, abstract sockets and signals before 6.

    Args:
        writable: Directories in which everything but devices may be made, read and run: the root, the home.
        readable: More directories that may be read, beside the system's own.
        terminal: A descriptor of the command's own, which it may open by its name too, as /dev/stdin does.
    Raises: OSError, also where the kernel has no Landlock.
    """
    version = landlock.version()
    if not version:
        raise OSError(95, "the kernel has no Landlock")
    newer = (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    asked = _Ruleset(_ALL | newer, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = ctypes.sizeof(asked) if version >= 6 else 16 if version >= 4 else 8
    made = int(_libc.syscall(_CREATE, ctypes.byref(asked), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    if made < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        _allow(made, writable, _READ | _WRITE | _MAKE | newer)
        _allow(made, (*_READABLE, *_open_parts(_ETC, _masked()), *readable), _READ)
        _allow(made, (_ETC,), _LIST)
        own = () if terminal is None else (f"/proc/self/fd/{terminal}",)
        _allow(made, (*_DEVICES, *own), _READ | _WRITE | (newer & _TRUNCATE))
    except BaseException:
        os.close(made)
        raise
    return made


def _masked() -> frozenset[str]:
    masks = _etc.masks()
    return frozenset((*masks.directories, *masks.files))


def _open_parts(directory: str, masked: frozenset[str]) -> Iterator[str]:
    """Yield what of a directory may be read: all of it, or where something below is masked, each part that is not.

    A ruleset only adds rights, so what is masked must not lie below anything that is allowed. Links lead to what is
    allowed or is not by itself.
    """
    if not any(path.startswith(f"{directory}/") for path in masked):
        yield directory
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.path in masked or entry.is_symlink():
                continue
            if entry.is_dir():
                yield from _open_parts(entry.path, masked)
            else:
                yield entry.path


def _allow(made: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            directory = stat.S_ISDIR(os.fstat(place).st_mode)
            # A rule on a file knows no right of directories.
            rule = _PathBeneath(rights if directory else rights & (_TRUNCATE | 0b111), place)
            if _libc.syscall(_ADD_RULE, made, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)):
                raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
        finally:
            os.close(place)
