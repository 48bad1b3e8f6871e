"""Limits of a whole run, by whatever this machine lets us use: a cgroup, the namespaces, or each process's own.

A run's cgroup is a folder named after the daemon that made it; a folder whose daemon is gone is
swept at the next start. Nothing here moves any process but those of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from codespace import limits
from codespace.sandbox import nproc, pidmax
from codespace.sandbox.hierarchy import places
from codespace.sandbox.plan import Quota

Mechanism = Literal["cgroup", "pid_max", "nproc", "rlimit", "none"]

_PREFIX: Final = "codespace-run-"
_ATTEMPTS: Final = 10
# 45 ms in all, in the thread that ends a run; a dead process is out of its cgroup in one or two.
_PROBE: Final = 1_048_576
# A number that both kinds of limit take.
_OOM: Final = ("memory.events", "memory.oom_control")
_ENTRANCES: Final = ("tasks", "cgroup.procs")
# The first is of cgroups v1 alone.
_SWAP: Final = ("memory.swap.max", "memory.memsw.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Carried:
    """Which mechanism carries each limit of a run; `none` where nothing does, or nothing is limited."""

    pids: Mechanism
    memory: Mechanism
    cpu: Mechanism


@dataclass(frozen=True, slots=True)
class Controller:
    """A cgroup in which folders for runs can be made."""

    folder: str
    limit_file: str
    """What the most is written to."""


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """What this machine lets the daemon use."""

    pids: Controller | None
    memory: Controller | None
    pid_max: bool
    nproc: bool = False
    """Whether the processes of a sandbox are counted by its user namespace."""

    def carried(self, quota: Quota) -> Carried:
        """Return what will carry each of `quota`."""
        pids: Mechanism = "none" if quota.pids is None else self._pids(quota.pids)
        memory: Mechanism = "none"
        if quota.memory_bytes is not None:
            memory = "cgroup" if self.memory else "rlimit"
        return Carried(pids, memory, "none" if quota.cpu_seconds is None else "rlimit")

    def pid_max_for(self, quota: Quota) -> int | None:
        """Return what to write into the sandbox's pid_max; None where a cgroup carries the limit or nothing does."""
        return quota.pids if self.carried(quota).pids == "pid_max" else None

    def nproc_for(self, quota: Quota) -> int | None:
        """Return the limit that the sandbox's user namespace counts up to; None where something else carries it."""
        return quota.pids if self.carried(quota).pids == "nproc" else None

    def _pids(self, most: int) -> Mechanism:
        if self.pids:
            return "cgroup"
        if self.pid_max and most >= limits.SANDBOX_PIDS_MINIMUM:
            return "pid_max"
        return "nproc" if self.nproc else "none"


def look() -> Mechanisms:
    """Return what can be used, each tried by making a folder and removing it. Blocks for a millisecond."""
    found = {name: next(filter(_works, _controllers(name)), None) for name in ("pids", "memory")}
    return Mechanisms(found["pids"], found["memory"], pidmax.is_per_namespace(), nproc.is_per_namespace())


@dataclass(frozen=True, slots=True)
class Overruns:
    """What the kernel did to keep a run in its limits."""

    killed: int = 0
    """Processes killed for the memory limit."""
    refused: int = 0
    """Processes or threads that were not started for the limit of their number."""


class Cage:
    """The cgroup folders of one run; nothing at all where no limit is carried by one."""

    _numbers = itertools.count()
    _left: ClassVar[set[str]] = set()

    def __init__(self, mechanisms: Mechanisms, quota: Quota) -> None:
        """Make the folders. Raises: OSError; nothing is left then."""
        self._folders: list[str] = []
        # One name for all: in v2 both controllers are in one hierarchy, where a process is in one cgroup alone.
        self._name = f"{_PREFIX}{os.getpid()}-{_birth(os.getpid())}-{next(self._numbers)}"
        carried = mechanisms.carried(quota)
        try:
            if carried.pids == "cgroup" and mechanisms.pids is not None:
                self._make(mechanisms.pids, quota.pids)
            if carried.memory == "cgroup" and mechanisms.memory is not None:
                folder = self._make(mechanisms.memory, quota.memory_bytes)
                _forbid_swap(folder, quota.memory_bytes)
        except OSError:
            self.close()
            raise

    def admit(self, pid: int) -> None:
        """Put a process and all that it will ever start under the limits. Raises: OSError."""
        for folder in self._folders:
            _write(f"{folder}/cgroup.procs", pid)

    @property
    def members(self) -> tuple[str, ...]:
        """The files that a process of one thread enters by writing 0 into each, before it runs its program.

        Where the kernel has the older kind of cgroup, a thread that moves itself does not wait for all processors
        (5 to 15 ms), as a whole process does.
        """
        return tuple(
            next(filter(os.path.exists, (f"{folder}/{name}" for name in _ENTRANCES)), f"{folder}/{_ENTRANCES[-1]}")
            for folder in self._folders
        )

    def holds(self, pid: int) -> bool:
        """Return whether a process is under the limits. Raises: OSError."""
        return all(pid in _members(f"{folder}/cgroup.procs") for folder in self._folders)

    def overruns(self) -> Overruns:
        """Return how often the kernel enforced a limit on this run."""
        killed = max((_count(f"{folder}/{name}", "oom_kill") for folder in self._folders for name in _OOM), default=0)
        refused = max((_count(f"{folder}/pids.events", "max") for folder in self._folders), default=0)
        return Overruns(killed, refused)

    def close(self) -> None:
        """Remove the folders; one that the kernel has not done with is removed with a later run's, or by a sweep."""
        if not self._folders:
            return
        Cage._left.update(self._folders)
        self._folders.clear()
        for attempt in range(_ATTEMPTS):
            Cage._left -= {folder for folder in tuple(Cage._left) if _removed(folder)}
            if not Cage._left:
                break
            time.sleep(attempt / 1000)  # the kernel has no event for "the last dead process has left the cgroup"

    def _make(self, controller: Controller, most: int | None) -> str:
        folder = f"{controller.folder}/{self._name}"
        if folder not in self._folders:
            os.mkdir(folder, 0o755)
            self._folders.append(folder)
        _write(f"{folder}/{controller.limit_file}", most or 0)
        return folder


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep() -> int:
    """Remove the folders that runs of ended daemons left; returns how many."""
    removed = 0
    for folder in {controller.folder for name in ("pids", "memory") for controller in _controllers(name)}:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(_PREFIX) and not _lives(name):
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{folder}/{name}")
                        removed += 1
    return removed


def _lives(name: str) -> bool:
    pid, _, rest = name.removeprefix(_PREFIX).partition("-")
    return pid.isdecimal() and _birth(int(pid)) == rest.partition("-")[0]


def _birth(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks: a pid alone is used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def _works(controller: Controller) -> bool:
    folder = f"{controller.folder}/{_PREFIX}{os.getpid()}-{_birth(os.getpid())}-probe-{next(Cage._numbers)}"
    try:
        os.mkdir(folder, 0o755)
    except OSError:
        return False
    try:
        _write(f"{folder}/{controller.limit_file}", _PROBE)
        return os.access(f"{folder}/cgroup.procs", os.W_OK) and os.access(f"{controller.folder}/cgroup.procs", os.W_OK)
    except OSError:
        return False
    finally:
        os.rmdir(folder)


def _controllers(name: str) -> list[Controller]:
    """Return where a controller's folders could be made."""
    first = {"pids": "pids.max", "memory": "memory.limit_in_bytes"}[name]
    found = (Controller(place.folder, f"{name}.max" if place.is_second else first) for place in places(name))
    return [controller for controller in found if os.path.isdir(controller.folder)]


def _forbid_swap(folder: str, memory_bytes: int | None) -> None:
    """Keep a run from spilling into swap what it may not have as memory, where the kernel counts swap."""
    for name, most in zip(_SWAP, (0, memory_bytes), strict=True):
        with contextlib.suppress(OSError):
            _write(f"{folder}/{name}", most or 0)


def _count(path: str, name: str) -> int:
    """Return the number behind `name` in a file of `name number` lines; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as lines:
        for line in lines:
            found, _, number = line.partition(" ")
            if found == name:
                return int(number)
    return 0


def _members(path: str) -> set[int]:
    with open(path, "rb") as listed:
        return {int(pid) for pid in listed.read().split()}


def _write(path: str, number: int) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(str(number).encode())
