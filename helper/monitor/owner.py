"""The monitor itself: it starts one command and stays until nothing of its tree is left."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Final, NoReturn

from helper.monitor.bell import Bell
from helper.monitor.covers import Coverer, Covers
from helper.monitor.kernel import adopt_orphans
from helper.monitor.line import Line
from helper.monitor.order import wait_for_order
from helper.monitor.tree import children, descendants, send, sweep

SWEEP_SECONDS: Final = 0.02
# Pause between two sweeps where no exit wakes us earlier: a stubborn tree costs no busy loop.


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


def reap(
    command: int, coverer: int | None, line: Line, usage: Usage, *, asked: bool, condemned: bool
) -> tuple[bool, bool]:
    """Reap all that ended; returns (the command ended, nothing is left)."""
    ended = False
    while True:
        try:
            pid, status, spent = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True  # no child, so no descendant: orphans would have become our children
        if pid == 0:
            return ended, False
        if pid == coverer:
            if status and not condemned:  # killed before it could tell, and not by us
                line.tell(event="covered", errno=errno.EIO, masking=False)
            continue
        usage.add(spent)
        if pid == command:
            ended = True
            code = os.waitstatus_to_exitcode(status)
            line.tell(event="exited", code=code, asked=asked, usage=usage.report())


def own(line: Line, command: int, *, layers: int, hang_up: bool, covers: Covers | None) -> None:
    """Stay until nothing of the command's tree is left."""
    coverer = None if covers is None else cover(line, command, covers)
    bell, usage = Bell(), Usage()
    control = line.socket.fileno()
    mounts: int | None = None
    deadline: float | None = None
    exited = condemned = False
    heard: set[int] = set()
    while True:
        if mounts in heard:
            line.tell(event="mounts")
        # Before the verbs: what ended by itself is not told as ended by a verb that came too late.
        laying, asked = None if coverer is None else coverer.pid, deadline is not None
        ended, gone = reap(command, laying, line, usage, asked=asked, condemned=condemned)
        exited = exited or ended
        if gone:
            line.tell(event="gone", usage=usage.report())
            return
        for verb in line.verbs() if control in heard else ():
            if verb["verb"] == "cover":
                if coverer is not None and not exited:  # a command that was reaped has no pid of its own any more
                    coverer.go()
                continue
            if verb["verb"] == "watch":
                mounts = line.passed.pop()  # one that did not come ends all: nobody would tell of a change
                continue
            end = time.monotonic() + max(0.0, float(verb["grace"]))
            deadline = end if deadline is None else min(deadline, end)
            terminate(layers, hang_up=hang_up)
        now = time.monotonic()
        condemned = line.cut or (now >= deadline if deadline is not None else exited)
        if condemned:
            sweep(children(os.getpid()))
        pause = SWEEP_SECONDS if condemned else None if deadline is None else deadline - now
        wanted = {} if line.cut else {control: select.POLLIN}
        if mounts is not None:
            wanted[mounts] = select.POLLPRI  # the kernel's word for a changed table
        heard = bell.wait(wanted, pause)


def cover(line: Line, command: int, covers: Covers) -> Coverer | None:
    """Return the fork that waits to lay covers; None where there is none, which is told."""
    try:
        return Coverer(command, covers, line)
    except OSError as error:
        line.tell(event="covered", errno=error.errno, masking=False)
        return None


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
            layers, hang_up = facts.get("layers", 0), facts.get("hang_up", False)
            own(line, command, layers=layers, hang_up=hang_up, covers=facts.get("covers"))
    except Exception:
        sys.excepthook(*sys.exc_info())  # a fault of ours: told on stderr; the tree falls to the keeper
    finally:
        os._exit(0)
