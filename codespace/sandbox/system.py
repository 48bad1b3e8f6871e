"""What of the machine a command sees: programs and libraries read-only, /etc without its secrets.

Nothing of this comes from a workspace; it is the same for every run.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.beneath.reading import SETTLED_NANOSECONDS, Stamp, stamp_of

PROGRAMS: Final = ("/usr", "/nix/store", "/gnu/store")
ALIASES: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Links into /usr on a merged system, directories of their own on others."""
ALWAYS_MASKED: Final = frozenset({"/etc/ssh", "/etc/krb5.keytab", "/etc/sudoers", "/etc/sudoers.d", "/etc/polkit-1"})
"""Of no use inside, whatever their modes say."""
PROC_READ_ONLY: Final = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "scsi", "fs", "mtrr", "asound")
"""Knobs of the machine; a root daemon's command could turn them: core_pattern runs a program on the host."""
PROC_MASKED: Final = (
    *("kcore", "kmsg", "keys", "key-users", "timer_list", "sched_debug", "latency_stats", "slabinfo", "vmallocinfo"),
    *("kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports", "interrupts"),
)
"""What tells of the host's kernel and its memory, root's eyes included."""
FIRST_MEMORY: Final = ("/proc/1/mem", "/proc/1/task/1/mem")
"""The memory of the sandbox's process 1: a command could have it outlive who started it, and be known to no sweep."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Paths of the machine that are covered: directories by an empty one, files by nothing."""

    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class Etc:
    """The secrets of /etc: everything that others may not read and this account can, looked up again every half minute,
    which is how long a new mode of a file may go unseen.

    And at once where a directory changed: a secret that came is covered in the next run, and what is gone (the lock of
    a `passwd`, an editor's copy) cannot be.

    What the account cannot read its commands cannot either: they have its user and groups, and no capability.
    """

    def __init__(self, path: str = "/etc") -> None:
        self._path = path
        self._lock = threading.Lock()
        self._masks = Masks((), ())
        self._stamps: dict[str, Stamp | None] = {}
        self._until = 0.0

    def masks(self) -> Masks:
        """Return what is to be covered. Blocks for a few milliseconds."""
        with self._lock:
            known = (*self._masks.directories, *self._masks.files)
            if (
                time.monotonic() > self._until
                or any(_stamp(path) != stamp for path, stamp in self._stamps.items())
                or not all(map(os.path.lexists, known))
            ):
                began = time.time_ns()
                stamps: dict[str, Stamp | None] = {}
                directories: list[str] = []
                files: list[str] = []
                for path, is_directory in _secrets(self._path, stamps):
                    (directories if is_directory else files).append(path)
                self._masks = Masks(tuple(sorted(directories)), tuple(sorted(files)))
                # One that has just changed may change again at the same time of the clock.
                is_settled = all(stamp and stamp[-1] < began - SETTLED_NANOSECONDS for stamp in stamps.values())
                self._stamps = stamps
                self._until = time.monotonic() + (limits.SANDBOX_ETC_SECONDS if is_settled else 0.0)
            return self._masks


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _secrets(directory: str, stamps: dict[str, Stamp | None]) -> Iterator[tuple[str, bool]]:
    """Yield what is to be covered, and whether it is a directory; `stamps` gets those of what was looked through."""
    left = [directory]
    while left:
        path = left.pop()
        stamps[path] = _stamp(path)
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        continue  # it leads to what is visible or is not by itself
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        if entry.path in ALWAYS_MASKED:
                            yield entry.path, True
                        elif mode & 0o5 == 0o5:
                            left.append(entry.path)
                        elif _can(entry.path, os.R_OK) or _can(entry.path, os.X_OK):
                            yield entry.path, True
                    elif (
                        entry.path in ALWAYS_MASKED
                        or not stat.S_ISREG(mode)
                        or (not mode & stat.S_IROTH and _can(entry.path, os.R_OK))
                    ):
                        yield entry.path, False
        except FileNotFoundError:
            continue  # it went while we looked
        except PermissionError:
            continue  # not ours to read, so not the command's


def _can(path: str, access: int) -> bool:
    """Return whether this account can; also where nothing can be asked (a container's old filter of system calls)."""
    return _told(path, access) or not _told("/", os.X_OK)


def _told(path: str, access: int) -> bool:
    return os.access(path, access, effective_ids=True, follow_symlinks=False)


def proc_masked() -> Iterator[str]:
    """Yield FIRST_MEMORY and those of PROC_MASKED that this account could read."""
    yield from FIRST_MEMORY
    for name in PROC_MASKED:
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_mode & stat.S_IROTH or os.geteuid() == 0:
                yield f"/proc/{name}"


def proc_read_only() -> Iterator[str]:
    """Yield those of PROC_READ_ONLY that there are."""
    return (f"/proc/{name}" for name in PROC_READ_ONLY if os.path.exists(f"/proc/{name}"))


def aliases() -> Iterator[tuple[str, str | None]]:
    """Yield each alias that this machine has, and where it links to; None where it is a directory."""
    for path in ALIASES:
        if os.path.islink(path):
            yield path, os.readlink(path)
        elif os.path.isdir(path):
            yield path, None
