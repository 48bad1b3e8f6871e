"""What a test left behind: descriptors, child processes, threads and temporary files.

A snapshot before, one after, and a list of differences in words. Things that are meant to stay are
named with their reason in PERMANENT; there is no other tolerance.
"""

from __future__ import annotations

import fnmatch
import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codespace.testing import processes

SETTLE_SECONDS: Final = 20.0
# A process that was killed, or a thread that was told to end, may need a moment of a busy machine. Only a leak takes
# all of it.
KILL_SECONDS: Final = 20.0
# For what leaked to be gone after SIGKILL.
_LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Permanent:
    """Something that may stay after a test: `kind` is `descriptor`, `thread` or `file`."""

    kind: str
    pattern: str
    reason: str


PERMANENT: Final = (
    Permanent("thread", "Trio thread *", "trio keeps idle worker threads for the next to_thread call"),
    Permanent("descriptor", "/dev/urandom", "Python keeps it open after the first random number"),
    Permanent("descriptor", "*/.hypothesis/*", "hypothesis keeps its example database open"),
)


class Leak(AssertionError):
    """A test left something behind; the message lists each thing."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What this process holds at one moment."""

    descriptors: dict[int, str]
    children: frozenset[int]
    threads: dict[int, str]
    files: frozenset[str]


def look(folder: Path) -> Snapshot:
    """Take a snapshot; `folder` is where the process keeps its temporary files."""
    return Snapshot(
        descriptors=_descriptors(),
        children=processes.children(),
        threads={thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None},
        files=frozenset(os.listdir(folder)),
    )


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return one line for each thing that is there after and was not before."""
    found = [
        f"descriptor {number}: {target}"
        for number, target in after.descriptors.items()
        if before.descriptors.get(number) != target and not _stays("descriptor", target)
    ]
    found += [
        f"process {pid}: {processes.command_line(pid) or 'zombie'}" for pid in sorted(after.children - before.children)
    ]
    found += [
        f"thread {name}"
        for ident, name in after.threads.items()
        if before.threads.get(ident) != name and not _stays("thread", name)  # a busy worker has another name
    ]
    found += [f"file {name}" for name in sorted(after.files - before.files) if not _stays("file", name)]
    return found


@contextmanager
def guard(folder: Path) -> Iterator[None]:
    """Raise Leak behind the block where it left something behind.

    Args:
        folder: The folder of temporary files; anything new directly in it is a leak.
    Raises: Leak. Processes that leaked are killed first, so that the next test starts clean.
    """
    before = look(folder)
    yield
    left = differences(before, look(folder))
    if left:
        left = _after_settling(before, folder)
    if left:
        _kill(look(folder).children - before.children)
        raise Leak("left behind:\n  " + "\n  ".join(left))


def _after_settling(before: Snapshot, folder: Path) -> list[str]:
    """Collect garbage and reap orphans that have ended until nothing is left, for a bounded time; return the rest.

    Looked at again and again: a process that ends hands us its children, which were not ours before.
    """
    gc.collect()
    deadline = time.monotonic() + SETTLE_SECONDS
    while left := differences(before, look(folder)):
        if time.monotonic() > deadline:
            break
        _reap(processes.children() - before.children)
        time.sleep(_LOOK_SECONDS)  # threads, files and the ends of others' children have no common event
    return left


def _reap(pids: frozenset[int]) -> None:
    """Take the exit status of ended orphans that came to us when their own parent ended.

    A child that product code of this process forgot to wait for is found all the same: Popen warns
    when it is collected, and warnings are errors.
    """
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _kill(pids: frozenset[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    processes.still_alive_after(pids, KILL_SECONDS)
    _reap(pids)


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _stays(kind: str, name: str) -> bool:
    return any(entry.kind == kind and fnmatch.fnmatchcase(name, entry.pattern) for entry in PERMANENT)
