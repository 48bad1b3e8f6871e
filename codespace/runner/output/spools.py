"""All spools of one supervisor, in a folder of their own below the state dir, within one limit.

The limit counts what this supervisor's processes wrote and what ended supervisors left; a living
one beside it counts its own. Where there is no room, the spool of the process that ended first goes.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from codespace import limits
from codespace.runner.output.spool import Spool
from codespace.runner.ownfolder import OwnFolder


@dataclass(frozen=True, slots=True)
class _Ended:
    """A spool that may go where room is needed."""

    folder: str
    ended_at: float
    size_bytes: int


class Spools:
    """Makes spools and forgets them. What touches the disk says so: call it in a thread.

    Args:
        spool_bytes: Most bytes of all spools together.
        process_spool_bytes: Most bytes of one.
        wall_clock: Decides with the files' own times what is past its retention.
    """

    def __init__(
        self,
        state_dir: str,
        *,
        spool_bytes: int = limits.SPOOL_BYTES,
        process_spool_bytes: int = limits.PROCESS_SPOOL_BYTES,
        retention_seconds: float = limits.RETENTION_SECONDS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the folder: touches the disk. Raises: OSError."""
        self._folder = OwnFolder(os.path.join(state_dir, "spool"))
        self._spool_bytes = spool_bytes
        self._process_spool_bytes = min(process_spool_bytes, spool_bytes)
        self._retention_seconds = retention_seconds
        self._wall_clock = wall_clock
        self._used = 0
        self._spools: WeakValueDictionary[str, Spool] = WeakValueDictionary()  # those that are written or in memory
        self._ended: dict[str, _Ended] = {}
        self._lock = threading.RLock()  # of `_used`; held while room is made, so never taken on the loop

    def open(self, process_id: str) -> Spool | None:
        """Return a new spool; None where the operator wants none. Nothing is on disk before it is written."""
        if self._process_spool_bytes < limits.SPOOL_LEAST_BYTES:
            return None
        folder = os.path.join(self._folder.path, process_id)
        self._spools[process_id] = spool = Spool(folder, self._process_spool_bytes, self._take, self._give)
        return spool

    def end(self, process_id: str) -> None:
        """Say that a process has ended: its spool is kept for the retention time, or until room is needed."""
        spool = self._spools.get(process_id)
        if spool is not None and spool.size_bytes:
            self._ended[process_id] = _Ended(spool.folder, self._wall_clock(), spool.size_bytes)

    def remove(self, process_id: str) -> None:
        """Remove a spool whose process has ended; touches the disk."""
        ended = self._ended.pop(process_id, None)
        spool = self._spools.pop(process_id, None)
        if spool is not None:
            spool.remove()
        elif ended is not None:
            shutil.rmtree(ended.folder, ignore_errors=True)
            self._give(ended.size_bytes)

    def sweep(self) -> None:
        """Remove what is past its retention, also what ended supervisors left; touches the disk."""
        oldest = self._wall_clock() - self._retention_seconds
        for name, ended in list(self._ended.items()):
            if ended.ended_at < oldest:
                self.remove(name)
        for folder in self._folder.abandoned():
            for entry in _entries(folder):
                self._take_over(entry, oldest)
            _remove_empty(folder)

    def _take_over(self, folder: str, oldest: float) -> None:
        """Count a spool that an ended supervisor left, unless it is too old."""
        size, ended_at = _measure(folder)
        if ended_at < oldest:
            shutil.rmtree(folder, ignore_errors=True)
            return

        with self._lock:
            if folder not in self._ended:
                self._used += size
                self._ended[folder] = _Ended(folder, ended_at, size)
                self._make_room(0)

    def close(self) -> None:
        """Let go of the folder; the spools stay for their retention. Touches the disk."""
        for spool in list(self._spools.values()):
            spool.close()
        _remove_empty(self._folder.path)
        self._folder.let_go()

    # --- the one limit ---

    def _take(self, size_bytes: int) -> bool:
        with self._lock:
            if not self._make_room(size_bytes):
                return False
            self._used += size_bytes
            return True

    def _give(self, size_bytes: int) -> None:
        with self._lock:
            self._used -= size_bytes

    def _make_room(self, size_bytes: int) -> bool:
        while self._ended and (self._used + size_bytes > self._spool_bytes or len(self._ended) > limits.SPOOLS_KEPT):
            self.remove(min(list(self._ended.items()), key=lambda item: item[1].ended_at)[0])
        return self._used + size_bytes <= self._spool_bytes


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _measure(folder: str) -> tuple[int, float]:
    """Return the bytes of a spool and when it was written last."""
    size, last = 0, 0.0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                size, last = size + found.st_size, max(last, found.st_mtime)
    except OSError:
        return size, last
    return size, last


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        return  # not empty: spools that are kept
