"""Looking at processes from outside, through /proc and pidfds: who is there, and waiting until gone.

Only for tests: nothing here starts or signals anything.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

import trio

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, so that none can hide at process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children(pid: int | None = None) -> frozenset[int]:
    """Return the direct children of a process (this one, if left out), zombies included."""
    found: set[int] = set()
    for task in _listing(f"/proc/{os.getpid() if pid is None else pid}/task"):
        try:
            found.update(int(child) for child in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked
    return frozenset(found)


def descendants(pid: int) -> frozenset[int]:
    """Return every live process below `pid`."""
    found: set[int] = set()
    edge = [pid]
    while edge:
        new = children(edge.pop()) - found
        found |= new
        edge.extend(new)
    return frozenset(found)


def state(pid: int) -> str | None:
    """Return the one-letter state of /proc/PID/stat (`Z` for a zombie), None where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    return state(pid) not in (None, "Z", "X")


def command_line(pid: int) -> str:
    """Return a process's argv joined by spaces, empty where it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def of_command(line: str) -> list[int]:
    """Return the live processes whose argv, joined by spaces, is `line`: those in a sandbox have other pids inside."""
    pids = [int(entry.name) for entry in _listing("/proc") if entry.name.isdecimal()]
    return [pid for pid in pids if command_line(pid) == line and is_alive(pid)]


async def wait_gone(pids: Iterable[int]) -> None:
    """Return once every process has ended; bring your own deadline.

    Cancel: nothing is consumed.
    """
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)


def still_alive_after(pids: Iterable[int], seconds: float) -> frozenset[int]:
    """Wait at most `seconds`, blocking, for processes to end; return those that did not."""
    deadline = time.monotonic() + seconds
    left: set[int] = set()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            wanted = select.poll()
            wanted.register(descriptor, select.POLLIN)
            if not wanted.poll(max(0.0, deadline - time.monotonic()) * 1000):
                left.add(pid)
        finally:
            os.close(descriptor)
    return frozenset(left)


def _listing(path: str) -> list[Path]:
    try:
        return list(Path(path).iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
