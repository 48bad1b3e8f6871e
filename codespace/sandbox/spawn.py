"""One start of a sandbox: its descriptors, the wait for its first process, the last look, the gate.

Who starts bubblewrap is the caller's part: the monitor for the supervisor, `foreground` for a program of one
thread. It must be a thread that lives as long as the run, since bubblewrap dies with that thread. The
steps are generators that yield the descriptor to be waited for, so that a blocking caller and a trio
task walk through the same ones:

    launch = Launch(sandbox, plan)                 # pipes; nothing runs yet
    ... start launch.argv with launch.env and launch.inherited, then launch.let_go()
    for fd in launch.started(bubblewrap_pid): wait until fd is readable
    for fd in launch.ready(): wait until fd is readable
    ... lay launch.covers, where they were left to the caller ...
    launch.seal()                                  # the mounts are as planned; cgroup, pid_max or nproc
    ... have launch.mounts watched, and launch.bare() asked at each change ...
    ... for a network: listener.listen(launch.pid), and open the proxy's door ...
    launch.release()                               # only now the command exists
    ... the run ...
    launch.close()

Whatever fails before `release`: close it and end bubblewrap; no command has run.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import resource
import select
import signal
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from codespace import limits
from codespace.sandbox import argv, nproc, pidinfo, pidmax, seccomp, submounts, system
from codespace.sandbox.argv import GATE_FD, INFO_FD, SECCOMP_FD
from codespace.sandbox.covers import MASKS, covers, may_come_last
from codespace.sandbox.limits import Cage, Carried, Mechanisms
from codespace.sandbox.pidinfo import children, parent_of
from codespace.sandbox.plan import Mount, Plan
from codespace.sandbox.unreachable import Witness

_READY: Final = b"ready\n"
_GO: Final = b"go\n"
_NOT_SET_UP: Final = "bubblewrap could not set up the sandbox"


class NotStarted(Exception):
    """The sandbox was not set up, and the command was never released. `stage` says how far it came."""

    def __init__(self, stage: str, cause: str) -> None:
        super().__init__(f"{stage}: {cause}")
        self.stage = stage
        self.cause = cause
        self.code: int | None = None
        """Exit code of bubblewrap where it ended by itself."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """What the probe found: with it any plan can be started."""

    bubblewrap: str
    mechanisms: Mechanisms


class Launch:
    """The descriptors and the first process of one run."""

    def __init__(self, equipment: Equipment, plan: Plan, cage: Cage | None = None, *, by_hand: bool = False) -> None:
        """Open the descriptors and make the cgroup. Blocks for a moment.

        Args:
            cage: The run's cgroup, where the caller keeps one: it has bubblewrap enter it before it is one, and
                closing it stays with the caller.
            by_hand: The caller lays `covers` where it can be left to it; else bubblewrap does.
        Raises: OSError, seccomp.Missing.
        """
        self.plan = plan
        wanted = covers(plan)
        self.covers = wanted.masking(plan) if by_hand and may_come_last(plan) else None
        """What the caller lays once all is `ready`; None where bubblewrap does."""
        self.carried: Carried = equipment.mechanisms.carried(plan.quota)
        mounted = tuple(mount for mount in plan.mounts if self.covers is None or mount.kind not in MASKS)
        carrying = replace(plan, mounts=mounted)
        self.argv = argv.bubblewrap(equipment.bubblewrap, carrying, None if self.covers else wanted, self.carried)
        self.env = argv.environment(plan)
        self.released = False
        self.pid: int | None = None
        """Process 1 of the sandbox, as the host counts."""
        self.pidfd: int | None = None
        self.mounts: int | None = None
        """The table of mounts that `seal` has looked at: whoever polls it (POLLPRI) hears of changes from then on."""
        self._witness: Witness | None = None
        lasting = (path for path in wanted if path not in system.FIRST_MEMORY)  # which is gone when process 1 is
        self._covered = (*(mount.path for mount in plan.mounts if mount.kind != "writable"), *lasting)
        self._command: int | None = None
        self._pid_max = equipment.mechanisms.pid_max_for(plan.quota)
        self._nproc = equipment.mechanisms.nproc_for(plan.quota)
        with contextlib.ExitStack() as undo:
            self._owned = Cage(equipment.mechanisms, plan.quota) if cage is None else None
            self._cage = cage or self._owned
            if self._owned is not None:
                undo.callback(self._owned.close)
            filtering = _filled(seccomp.program())
            undo.callback(os.close, filtering)
            self._info, told = os.pipe()
            undo.callback(os.close, self._info)
            undo.callback(os.close, told)
            self._gate, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self._gate.close)
            undo.callback(inside.close)
            os.set_blocking(self._info, False)
            self._gate.setblocking(False)
            undo.pop_all()
        self.inherited: dict[int, int] = {SECCOMP_FD: filtering, INFO_FD: told, GATE_FD: inside.detach()}
        """Descriptors of bubblewrap by the number that it must have there; all others are closed."""

    # --- the steps ---

    def let_go(self) -> None:
        """Close our copies of what bubblewrap has inherited; without this no end of file is ever seen."""
        while self.inherited:
            os.close(self.inherited.popitem()[1])

    def started(self, parent: int | None = None) -> Iterator[int]:
        """Learn who process 1 of the sandbox is, and hold on to it.

        Args:
            parent: bubblewrap's own pid, to be checked against.
        Raises: NotStarted.
        """
        told = b""
        while True:
            yield self._info
            block = _take(self._info, limits.SANDBOX_INFO_BYTES)
            told += block or b""
            with contextlib.suppress(ValueError, KeyError, TypeError):  # it arrives in pieces
                self.pid = int(json.loads(told)["child-pid"])
                break
            if block == b"" or len(told) > limits.SANDBOX_INFO_BYTES:
                raise NotStarted("namespaces", "bubblewrap ended before it had made them")
        try:
            self.pidfd = os.pidfd_open(self.pid)
            if parent is not None and parent_of(self.pid) != parent:
                raise NotStarted("namespaces", "bubblewrap named a process that is not its own")
        except (FileNotFoundError, ProcessLookupError):
            raise NotStarted("namespaces", "the first process of the sandbox ended at once") from None
        except OSError as error:
            raise NotStarted("namespaces", f"their first process cannot be held ({error.strerror})") from error

    def ready(self) -> Iterator[int]:
        """Wait until everything is mounted and the gate stands. Raises: NotStarted."""
        heard = b""
        while len(heard) < len(_READY):
            yield self._gate.fileno()
            block = _take(self._gate.fileno(), len(_READY))
            if block == b"":
                raise NotStarted("mounts", _NOT_SET_UP)
            heard += block or b""

    def seal(self) -> None:
        """See by the kernel's own table that all is mounted as planned, and put the run under its limits.

        Call it behind `ready`. Blocks for a few milliseconds.

        Raises: NotStarted.
        """
        self._verify()
        if self._has_ended():  # while a filesystem hung, maybe long ago: the pids can be another's by now
            raise NotStarted("limits", "the sandbox ended while it was looked at")
        self._limit(self._hold_command())
        assert self.pid is not None
        self._witness = Witness(self.pid)

    def _limit(self, command: int) -> None:
        """Put the run under its limits.

        The two processes that there are now wait, so none can be born in between and escape. A cgroup that the caller
        keeps was entered by bubblewrap before it had any; that it was is looked at.
        """
        assert self.pid is not None
        try:
            for process in (self.pid, command):
                if self._owned is not None:
                    self._owned.admit(process)
                elif self._cage is not None and not self._cage.holds(process):
                    raise NotStarted("limits", "the sandbox is not in its cgroup")
                if self._nproc is not None:
                    nproc.limit(process, self._nproc)
                _leave_no_core(process)  # here, as no shell knows a limit of one byte
            if self._pid_max is not None:
                pidmax.limit(self.pid, self._pid_max)
        except OSError as error:
            raise NotStarted("limits", error.strerror or str(error)) from error

    def release(self) -> None:
        """Open the gate: the command begins. Raises: NotStarted where nothing is behind it any more."""
        try:
            self._gate.send(_GO, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise NotStarted("gate", error.strerror or str(error)) from error
        self.released = True
        self._gate.close()

    def close(self) -> None:
        """Let go of everything; an unopened gate stays shut for ever. Call it once the tree is gone."""
        self.let_go()
        self._gate.close()
        for descriptor in (self._info, self.pidfd, self._command, self.mounts):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._info, self.pidfd, self._command, self.mounts = -1, None, None, None
        if self._witness is not None:
            self._witness.close()
        if self._owned is not None:
            self._owned.close()

    def tried_network(self) -> bool:
        """Return whether anything in it has tried to reach what it has no way to; also behind `close`."""
        return self._witness is not None and self._witness.has_seen()

    def bare(self) -> list[str]:
        """Return the places that are protected or covered no more; also when the run has ended, until `close`.

        A file or directory that is removed or replaced outside takes along what the sandbox has mounted on it.
        Raises: OSError.
        """
        assert self.mounts is not None
        there = {entry.point: entry for entry in submounts.entries(_lines(self.mounts))}
        gone = [path for path in self._covered if path not in there or not there[path].read_only]
        return [path for path in gone if _is_replaced(path)]

    def exit_code(self, told: int) -> int:
        """Return how the command ended, negative for a signal, where bubblewrap ended with `told`.

        bubblewrap tells of a signal as a shell does, by 128 and the number. The kernel knows better since 6.15; on an
        older one, a number above 128 that could be a signal is taken for one. Call it before `close`.
        """
        known = None if self._command is None else pidinfo.exit_code(self._command)
        if known is not None:
            return known
        number = told - 128
        return -number if number in signal.valid_signals() else told

    # --- seeing ---

    def _hold_command(self) -> int:
        """Hold on to the gate, which becomes the command; returns its pid."""
        assert self.pid is not None
        inside = children(self.pid)
        if len(inside) != 1:
            raise NotStarted("gate", f"{len(inside)} processes stand where the gate should be")
        with contextlib.suppress(OSError):
            self._command = os.pidfd_open(inside[0])
        return inside[0]

    def _verify(self) -> None:
        """Compare the sandbox's mounts with the plan's: a name that was swapped for a link has led elsewhere."""
        assert self.pid is not None
        try:
            self.mounts = os.open(f"/proc/{self.pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            there = {entry.point: entry for entry in submounts.entries(_lines(self.mounts))}
            host = submounts.Host()
        except OSError as error:
            raise NotStarted("mounts", f"they cannot be looked at ({error.strerror})") from error
        if self.plan.root not in there or not self._is_the_root():
            raise NotStarted("mounts", "the root is not there, or another directory has taken its name")
        for mount in (*self._outside(), *self.plan.mounts):
            found = there.get(mount.path)
            if found is None or not _as_planned(mount, found, host):
                raise NotStarted("mounts", f"{mount.path} was replaced while the sandbox was set up")
        for path in self.covers or ():
            if path not in there or not there[path].read_only:
                raise NotStarted("mounts", f"{path} is not covered")

    def _outside(self) -> Iterator[Mount]:
        """Yield what is mounted beside the root; other workspaces' commands may be able to write there."""
        for path in self.plan.readable:
            yield Mount("read-only", path)
        for path in self.plan.writable:
            yield Mount("writable", path)

    def _is_the_root(self) -> bool:
        try:
            status = os.stat(f"/proc/{self.pid}/root{self.plan.root}")
        except OSError:
            return False
        return self.plan.identity in (None, (status.st_dev, status.st_ino))

    def missing_program(self) -> bool:
        """Return whether the command's program is not there inside; call it between `ready` and `release`.

        Raises: NotStarted where the sandbox has ended: nothing is there inside any more.
        """
        if self._find(os.X_OK) is not None:
            return False
        if self._has_ended():
            raise NotStarted("gate", "the sandbox ended while it was set up")
        return True

    def has_inert_file(self) -> bool:
        """Return whether a missing program's name is that of a file, which cannot be executed; call it as that one."""
        return self._find(os.F_OK) is not None

    def target(self) -> tuple[str, bool] | None:
        """Return where a missing program that is named by a path lies behind all links, and whether a directory does.

        Call it as `missing_program`. It is told by what can be seen inside: a link's own text, and no more of the host.
        """
        name = self.plan.command[0]
        if self.pid is None or "/" not in name:
            return None
        resolved = _resolve(self.pid, posixpath.join(self.plan.cwd, name))
        return None if resolved is None else (resolved, os.path.isdir(f"/proc/{self.pid}/root{resolved}"))

    def _has_ended(self) -> bool:
        assert self.pidfd is not None
        end = select.poll()
        end.register(self.pidfd, select.POLLIN)
        return bool(end.poll(0))

    def _find(self, access: int) -> str | None:
        assert self.pid is not None
        return find_program(self.pid, self.plan.command[0], self.plan.cwd, self.plan.env.get("PATH", ""), access)


def _as_planned(mount: Mount, found: submounts.Entry, host: submounts.Host) -> bool:
    if mount.kind != "writable" and not found.read_only:
        return False
    return mount.kind in ("empty", "nothing") or host.holds(mount.path, found)


def find_program(pid: int, name: str, cwd: str, path: str, access: int = os.X_OK) -> str | None:
    """Return where a process's own filesystem has a program; None where it has none.

    Args:
        access: What its file must permit, as os.access takes it.
    """
    candidates = (
        [posixpath.join(cwd, name)]
        if "/" in name
        else [posixpath.join(directory, name) for directory in path.split(":") if directory.startswith("/")]
    )
    return next((candidate for candidate in candidates if _is_file(pid, candidate, access)), None)


def _is_file(pid: int, path: str, access: int) -> bool:
    resolved = _resolve(pid, path)
    inside = f"/proc/{pid}/root{resolved}"
    return resolved is not None and os.path.isfile(inside) and os.access(inside, access)


def _resolve(pid: int, path: str) -> str | None:
    """Return where a path leads in a process's own filesystem; None for a circle of links.

    Looks through /proc/PID/root one component at a time: an absolute link leads within that root.
    """
    for _ in range(40):  # links in a row, as the kernel counts
        resolved = "/"
        rest = [part for part in path.split("/") if part and part != "."]
        while rest:
            here = posixpath.normpath(posixpath.join(resolved, rest.pop(0)))
            try:
                target = os.readlink(f"/proc/{pid}/root{here}")
            except OSError:
                resolved = here
                continue
            path = posixpath.join(posixpath.dirname(here), target, *rest)  # `..` behind a link leads from its target
            break
        else:
            return resolved
    return None


def _filled(data: bytes) -> int:
    """Return a descriptor to read `data` from, its own for each run: bubblewrap moves the offset."""
    descriptor = os.memfd_create("codespace-seccomp")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _leave_no_core(pid: int) -> None:
    """Keep the memory of a process, and of all that it will start, from files and from programs. Raises: OSError."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
    most = limits.CORE_BYTES if hard == resource.RLIM_INFINITY else min(limits.CORE_BYTES, hard)
    resource.prlimit(pid, resource.RLIMIT_CORE, (most, most))


def _is_replaced(path: str) -> bool:
    """Return whether something is there again. A socket is not meant: one that is new is masked by nobody."""
    try:
        return not stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _lines(table: int) -> list[bytes]:
    """Return the lines of a file of the kernel's from its first one on. Raises: OSError."""
    read = b""
    while block := os.pread(table, 1_048_576, len(read)):
        read += block
    return read.split(b"\n")[:-1]  # a carriage return may be in a name


def _take(descriptor: int, most: int) -> bytes | None:
    """Return what is there, nothing at the end, None where there is nothing yet."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""
