"""codespace-monitor: owns the process tree of a command, the sandbox's own processes included where it is in one.

Started as a *keeper* (`python -I -S monitor.py`, its control socket on fd 0), it forks one *monitor*
for each socket that it is handed: a fork of a small, loaded interpreter takes under a millisecond,
a new interpreter takes ten times as long. The monitor forks at once what will take the request and become
the command, so that one that is there before it is needed costs no fork at all. It is the subreaper of exactly
one command, so its descendants are the command's tree and nothing else, whatever they do (double forks, setsid).
Its own socket is its lifeline: when the daemon ends, by whatever means, the socket closes and the tree dies.
The keeper is a subreaper too: what a killed monitor leaves behind falls to it and is ended.

It decides nothing: program, directory, environment and descriptors arrive ready. It imports the
standard library only and is one file, because `-I -S` keeps every other path out of `sys.path`; its
few numbers are here for the same reason.

Wire, both ways one JSON object a line. To a monitor: a request {program, argv, env, umask, terminal,
rlimits, cgroups, inherited, layers} with the descriptors stdin, stdout, stderr, the directory and as many more
as `inherited` says (none where it is left out) by SCM_RIGHTS, then {verb: terminate, grace}.
`terminal` is `none`, `controlling` (descriptors 0 to 2 are a terminal, which the
command gets as its controlling one) or `lent` (they are, but the command's own descendants take it: a sandbox
does so inside). The inherited descriptors are the program's 3, 4 and so on; with `ruleset` the
one that is inherited is a Landlock ruleset, which restricts the program and is closed. `layers` generations of the tree
are a sandbox's own and hear no SIGTERM. `rlimits` are [number, soft, hard], `cgroups` files that take the
command's pid.
From it: {event: ready}; {event: started, pid} or {event: failed, stage, errno}; {event: exited, code, asked, usage}
when the command itself ended, and whether it had been asked to; {event: gone, usage} when nothing of
its tree is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

REQUEST_BYTES: Final = 80 * 1_048_576
# Above two times what execve takes (6 MiB) even when JSON escapes each byte with six.
SWEEP_SECONDS: Final = 0.02
# Pause between two sweeps where no exit wakes us earlier: a stubborn tree costs no busy loop.
FREEZE_PASSES: Final = 50
# A tree that still grows after so many passes is killed as far as it is known, then swept again.
DESCRIPTORS: Final = 4
# stdin, stdout, stderr, directory.
INHERITED: Final = 8
# Most that a program is given beside those; bubblewrap takes three.
HIGH: Final = 3 + INHERITED
# Descriptors are moved to here or above while they change places; no higher than it must be, for a low RLIMIT_NOFILE.

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
SYS_CLOSE_RANGE: Final = 436
SYS_LANDLOCK_RESTRICT_SELF: Final = 446
# The same numbers on every architecture.
SURVIVED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)
# Meant for the daemon, or harmless to us: whoever owns a tree must outlive it.

LISTS_CHILDREN: Final = os.path.exists("/proc/thread-self/children")
# CONFIG_PROC_CHILDREN: on in every common distribution; without it all of /proc is looked through.

_libc = ctypes.CDLL(None, use_errno=True)


# --- the tree ---


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, of all its threads; empty where it is gone."""
    if not LISTS_CHILDREN:
        return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(child) == pid]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found.extend(map(int, listing.read().split()))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # It ended while we looked: its children are ours now and seen in the next sweep. Or it is another user's (a
        # setuid program) where /proc hides those (hidepid=1): so they are once it ends.
        pass
    return found


def parent_of(pid: int) -> int:
    """Return the parent of `pid`, 0 where it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def descendants(roots: Iterable[int]) -> list[int]:
    """Return `roots` and everything below them."""
    found = list(roots)
    seen = set(found)
    for pid in found:  # grows while it is walked
        fresh = [child for child in children(pid) if child not in seen]
        seen.update(fresh)
        found.extend(fresh)
    return found


def send(pid: int, number: int) -> None:
    # A pid between our look and this line is not reused: pids are handed out in rising order.
    # PermissionError: another user's (a setuid program): nothing that we could do.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def strike(pids: Iterable[int], number: int) -> None:
    """Signal each pid and its whole process group: a group is hit at once, between two forks."""
    groups = set()
    for pid in pids:
        send(pid, number)
        try:
            groups.add(os.getpgid(pid))
        except ProcessLookupError:
            continue
    for group in groups - {os.getpgrp()}:  # every other group was made inside the tree
        send(-group, number)


def sweep(roots: Iterable[int]) -> None:
    """Stop the trees of `roots` so that none can fork away, then kill all that was stopped."""
    roots = list(roots)
    stopped: set[int] = set()
    for _ in range(FREEZE_PASSES):
        fresh = set(descendants(roots)) - stopped
        if not fresh:
            break
        strike(fresh, signal.SIGSTOP)
        stopped |= fresh
    strike(stopped, signal.SIGKILL)


class Usage:
    """What the reaped processes used: CPU seconds added up, the largest resident size.

    The size is never below our own few megabytes: Linux carries it over an execve.
    """

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.memory_bytes = 0

    def add(self, spent: Any) -> None:
        self.cpu_seconds += spent.ru_utime + spent.ru_stime
        self.memory_bytes = max(self.memory_bytes, spent.ru_maxrss * 1024)

    def report(self) -> dict[str, float]:
        return {"cpu_seconds": round(self.cpu_seconds, 6), "memory_bytes": self.memory_bytes}


class Bell:
    """Waits for a readable descriptor or a signal, whichever comes first."""

    def __init__(self) -> None:
        self._rung, ring = os.pipe()
        os.set_blocking(self._rung, False)
        os.set_blocking(ring, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)

    def wait(self, descriptor: int | None, seconds: float | None) -> bool:
        """Return whether `descriptor` is readable; at the latest after `seconds`."""
        poll = select.poll()
        poll.register(self._rung, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        try:
            while os.read(self._rung, 512):
                pass
        except BlockingIOError:
            pass
        return any(fd == descriptor for fd, _ in ready)


def adopt_orphans() -> None:
    """Become the subreaper of everything that is forked below; a fork does not inherit it."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def settle_signals() -> None:
    """Set every signal to its default, but for those that we outlive. Monitors inherit it."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # A handler, not SIG_IGN: execve puts handled signals back to default, ignored ones stay ignored.
        signal.signal(number, (lambda *_: None) if number in SURVIVED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# --- one command ---


class Line:
    """The control socket of a monitor: JSON lines, and descriptors with the first of them."""

    def __init__(self, control: socket.socket) -> None:
        self.socket = control
        self.cut = False
        self._unread = b""

    def receive_request(self) -> tuple[dict[str, Any], list[int]]:
        """Return the request and its descriptors; raises EOFError where the daemon is gone."""
        most = DESCRIPTORS + INHERITED
        data, descriptors, _, _ = socket.recv_fds(self.socket, 65_536, most, socket.MSG_CMSG_CLOEXEC)
        while not data.endswith(b"\n"):  # the only newline is the one behind the request
            more = self.socket.recv(1_048_576)
            if not more or len(data) > REQUEST_BYTES:
                raise EOFError
            data += more
        request = json.loads(data)
        if len(descriptors) != DESCRIPTORS + request.get("inherited", 0):
            raise EOFError
        return request, descriptors

    def verbs(self) -> list[dict[str, Any]]:
        """Return the verbs that arrived; call it when the socket is readable. EOF sets `cut`."""
        try:
            data = self.socket.recv(65_536)
        except OSError:
            data = b""
        self.cut = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def tell(self, **event: Any) -> None:
        try:
            self.socket.sendall(json.dumps(event).encode() + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            self.cut = True  # nobody listens any more: the same as EOF


def wait_for_order(control: socket.socket, told: int, parent: int) -> NoReturn:
    """Be the fork that takes the request and becomes its command. To `told` goes what the monitor must know, a line of
    JSON, and behind it `stage errno` where it failed; an execve closes it."""
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the monitor has one thread: no thread trap
        if os.getppid() != parent:
            raise EOFError
        line = Line(control)
        request, descriptors = line.receive_request()
        line.tell(event="ready")  # without it certainly nothing was started, and the daemon may ask another
        if line.cut:
            raise EOFError
        facts = {"layers": request.get("layers", 0), "hang_up": request["terminal"] != "none"}
        os.write(told, json.dumps(facts).encode() + b"\n")
        become(request, descriptors, told)
    except (EOFError, ConnectionError):
        pass  # the daemon went away or gave up before there was a command
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(127)


def become(request: dict[str, Any], descriptors: Sequence[int], failure: int) -> NoReturn:
    """Turn this fork into the command; on failure write `stage errno` to `failure` and end."""
    stage = "directory"
    try:
        os.fchdir(descriptors[3])
        stage = "descriptors"
        failure = place(descriptors, failure)
        if request["terminal"] == "controlling":
            stage = "terminal"
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # of the new session; 0: never stolen from another
        stage = "limits"
        confine(request["cgroups"], request["rlimits"])
        if request.get("ruleset", False):
            stage = "restriction"
            restrict(3)  # after the cgroups, which lie outside of what it allows
        os.umask(request["umask"])
        stage = "program"
        argv = [os.fsencode(item) for item in request["argv"]]
        env = {os.fsencode(name): os.fsencode(value) for name, value in request["env"].items()}
        os.execve(os.fsencode(request["program"]), argv, env)  # noqa: S606 - no shell is the rule
    except OSError as error:
        os.write(failure, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def restrict(ruleset: int) -> None:
    """Live by a Landlock ruleset from here on, and let go of its descriptor. Raises: OSError."""
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def confine(cgroups: Iterable[str], rlimits: Iterable[Sequence[int]]) -> None:
    """Enter the cgroups, then take the resource limits on. Raises: OSError."""
    for path in cgroups:
        with open(path, "wb", buffering=0) as members:
            members.write(b"0")  # 0 is the writer itself
    for number, soft, hard in rlimits:
        _, most = resource.getrlimit(number)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(number, (soft, hard))


def place(descriptors: Sequence[int], failure: int) -> int:
    """Give the program its descriptors as 0, 1, 2, and what it inherits as 3 and up; returns where `failure` is now."""
    failure = fcntl.fcntl(failure, fcntl.F_DUPFD_CLOEXEC, HIGH)
    inherited = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in descriptors[DESCRIPTORS:]]
    for number in range(3):
        os.dup2(descriptors[number], number)  # the received ones are all above 2
    for number, descriptor in enumerate(inherited, 3):
        os.dup2(descriptor, number)
    close_others(3 + len(inherited), failure)
    return failure


def close_others(above: int, kept: int) -> None:
    """Close every descriptor from `above` on but `kept`, which closes itself at execve."""
    for first, last in ((above, kept - 1), (kept + 1, 0xFFFF_FFFF)):
        if first <= last and _libc.syscall(SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), 0):
            os.closerange(first, min(last, os.sysconf("SC_OPEN_MAX")) + 1)  # a kernel before 5.9


def start(line: Line) -> tuple[int, dict[str, Any]] | None:
    """Fork what becomes the command, wait until it has, and report.

    Returns: its pid and what `wait_for_order` told of it; None where there is no command.
    """
    outcome, told = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()  # before there is a request: a spare monitor has done it when one comes
    except OSError as error:
        line.tell(event="failed", stage="monitor", errno=error.errno)
        return None
    if pid == 0:
        wait_for_order(line.socket, told, parent)
    os.close(told)
    facts, separator, failed = listen(line, outcome).partition(b"\n")
    os.close(outcome)
    if line.cut:
        return pid, {}  # whatever it is by now, it ends with the lifeline
    if failed:
        os.waitpid(pid, 0)
        stage, number = failed.split()
        line.tell(event="failed", stage=stage.decode(), errno=int(number))
        return None
    if not separator:
        return None  # it ended before it had a request
    line.tell(event="started", pid=pid)
    return pid, json.loads(facts)


def listen(line: Line, outcome: int) -> bytes:
    """Return what the fork says until it has become the command or ended; the lifeline may be `cut` before."""
    # An execve can hang (a dead network filesystem); the lifeline must be heard all the same.
    poll = select.poll()
    poll.register(outcome, select.POLLIN)
    poll.register(line.socket, select.POLLRDHUP)
    said = b""
    while True:
        if all(fd != outcome for fd, _ in poll.poll()):
            line.cut = True
            return said
        block = os.read(outcome, 4096)
        if not block:
            return said
        said += block


def reap(command: int, line: Line, usage: Usage, *, asked: bool) -> tuple[bool, bool]:
    """Reap all that ended; returns (the command ended, nothing is left)."""
    ended = False
    while True:
        try:
            pid, status, spent = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True  # no child, so no descendant: orphans would have become our children
        if pid == 0:
            return ended, False
        usage.add(spent)
        if pid == command:
            ended = True
            code = os.waitstatus_to_exitcode(status)
            line.tell(event="exited", code=code, asked=asked, usage=usage.report())


def own(line: Line, command: int, *, layers: int, hang_up: bool) -> None:
    """Stay until nothing of the command's tree is left."""
    bell, usage = Bell(), Usage()
    deadline: float | None = None
    exited = readable = False
    while True:
        # Before the verbs: what ended by itself is not told as ended by a verb that came too late.
        ended, gone = reap(command, line, usage, asked=deadline is not None)
        exited = exited or ended
        if gone:
            line.tell(event="gone", usage=usage.report())
            return
        for verb in line.verbs() if readable else ():
            end = time.monotonic() + max(0.0, float(verb["grace"]))
            deadline = end if deadline is None else min(deadline, end)
            terminate(layers, hang_up=hang_up)
        now = time.monotonic()
        condemned = line.cut or (now >= deadline if deadline is not None else exited)
        if condemned:
            sweep(children(os.getpid()))
        pause = SWEEP_SECONDS if condemned else None if deadline is None else deadline - now
        readable = bell.wait(None if line.cut else line.socket.fileno(), pause)


def terminate(layers: int, *, hang_up: bool) -> None:
    """Ask the whole tree to end; stopped processes are woken, or they could not hear it.

    With a terminal it is hung up too: an interactive shell ignores SIGTERM and means SIGHUP.
    The first `layers` generations are a sandbox's own: if they ended, the rest would be killed unasked.
    """
    roots = children(os.getpid())
    for _ in range(layers):
        roots = [child for root in roots for child in children(root)]
    pids = descendants(roots)
    for number in (*((signal.SIGHUP,) if hang_up else ()), signal.SIGTERM, signal.SIGCONT):
        for pid in pids:
            send(pid, number)


def monitor(control: socket.socket) -> NoReturn:
    """Serve one request and end with its tree. Never returns into the keeper."""
    try:
        adopt_orphans()
        line = Line(control)
        started = start(line)
        if started is not None:
            command, facts = started
            own(line, command, layers=facts.get("layers", 0), hang_up=facts.get("hang_up", False))
    except Exception:
        sys.excepthook(*sys.exc_info())  # a fault of ours: told on stderr; the tree falls to the keeper
    finally:
        os._exit(0)


# --- the keeper ---


def keep(control: socket.socket) -> None:
    """Fork a monitor for each socket that arrives; end when the daemon and all monitors have."""
    adopt_orphans()
    settle_signals()
    gc.disable()  # short lives that make no cycles; a collection would copy every page that forks share
    gc.freeze()
    bell = Bell()
    monitors: set[int] = set()
    open_for_more = True
    while True:
        alone = reap_monitors(monitors)
        if alone and not open_for_more:
            return
        strays = set(children(os.getpid())) - monitors if not alone else set()
        sweep(strays)
        if bell.wait(control.fileno() if open_for_more else None, SWEEP_SECONDS if strays else None):
            open_for_more = admit(control, monitors)


def reap_monitors(monitors: set[int]) -> bool:
    """Reap what ended; returns whether no child is left.

    A monitor that was stopped, which only its own command or a stranger does, is woken: a tree must not outlive
    its time limit or the daemon so.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if not os.WIFSTOPPED(status):
            monitors.discard(pid)
        elif pid in monitors:
            send(pid, signal.SIGCONT)


def admit(control: socket.socket, monitors: set[int]) -> bool:
    """Fork the monitor of one request; returns False once the daemon has closed the keeper."""
    message, descriptors, _, _ = socket.recv_fds(control, 16, 1, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return False
    for descriptor in descriptors:
        line = socket.socket(fileno=descriptor)
        try:
            pid = os.fork()
        except OSError as error:  # no process left for us: said to the one who asked
            Line(line).tell(event="failed", stage="monitor", errno=error.errno)
        else:
            if pid == 0:
                control.close()
                monitor(line)
            monitors.add(pid)
        line.close()
    return True


def main() -> None:
    """Run as the keeper; fd 0 is a SOCK_SEQPACKET socket from the daemon."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    keep(control)


if __name__ == "__main__":
    main()
