"""A tree of processes: who is in it, and how all of it is ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Final

FREEZE_PASSES: Final = 50
# A tree that still grows after so many passes is killed as far as it is known, then swept again.

LISTS_CHILDREN: Final = os.path.exists("/proc/thread-self/children")
# CONFIG_PROC_CHILDREN: on in every common distribution; without it all of /proc is looked through.


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
