"""The daemons that share a database: who lives, told by a lock that the kernel drops with its owner.

A row says who an instance is; the flock on its file says whether it is alive. Where somebody has deleted
or moved the file, the process that the row names is asked whether it still has it open. A pid alone
says nothing: it may be reused.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import trio
from sqlite_utils import Database

from codespace import ids, limits, locks
from codespace.errors import Refusal
from codespace.gateway.store import Store

_DELETED: Final = " (deleted)"  # what the kernel puts behind such a name: proc_pid_fd(5)
_looks: Final = trio.CapacityLimiter(8)
# Threads of their own: looks that do not come back must not use up those of everybody.


@dataclass(frozen=True, slots=True)
class Instance:
    """One daemon, as its row tells."""

    id: str
    pid: int
    state_dir: str
    lock_path: str
    roots: tuple[str, ...]


class Instances:
    """This daemon's own row and lock, and the look at the others."""

    def __init__(self, store: Store, wall_clock: Callable[[], float], state_dir: str, roots: Sequence[str]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._lock: int | None = None
        self._last_looks: dict[str, _Look] = {}
        own = ids.mint(ids.INSTANCE)
        folder = os.path.join(state_dir, "instances")
        self.own = Instance(own, os.getpid(), state_dir, os.path.join(folder, f"{own}.lock"), tuple(roots))

    async def register(self) -> None:
        """Lock this instance's file, then write its row: no row is ever seen without its lock.

        Raises: Refusal STORE_UNAVAILABLE where the state dir cannot be written.
        """
        try:
            self._lock = await trio.to_thread.run_sync(_lock_new, self.own.lock_path)
        except OSError as error:
            raise Refusal(
                "STORE_UNAVAILABLE",
                f"{self.own.lock_path} cannot be made and locked: {error.strerror}. The daemon did not start.",
                next_step="Give CODESPACE_STATE_DIR a directory that the daemon can write.",
            ) from error
        row = {
            "id": self.own.id,
            "pid": self.own.pid,
            "started_at": self._wall_clock(),
            "state_dir": self.own.state_dir,
            "lock_path": self.own.lock_path,
            "roots": json.dumps(list(self.own.roots)),
        }
        await self._store.write(lambda db: _insert(db, row))

    async def dead(self) -> tuple[Instance, ...]:
        """Return the instances that never said their end and whose lock nobody holds.

        Cancel: at once, also where the directory of one does not answer; its thread is left behind.
        Source: limits.LOCK_SECONDS, for each.
        """
        unended = await self._store.read(_unended)
        others = [each for each in unended if each.id != self.own.id]
        return tuple([each for each in others if not await self._held(each)])

    async def dead_ids(self) -> frozenset[str]:
        """Return the ids of those; what they left open did not go on behind them. Cancel, Source: as `dead`."""
        return frozenset([each.id for each in await self.dead()])

    async def lives(self, instance_id: str) -> bool:
        """Return whether a daemon is there; one that cannot be looked at counts as living. Cancel: as `dead`."""
        if instance_id == self.own.id:
            return True
        found = await self._store.read(lambda db: _unended(db, instance_id))
        return bool(found) and await self._held(found[0])

    async def _held(self, instance: Instance) -> bool:
        """Return whether a daemon holds the lock; of one in a directory that does not answer, it is taken for granted.

        Source: limits.LOCK_SECONDS.
        """
        path = instance.lock_path
        last = self._last_looks.get(path)
        if last is not None and last.hangs:
            return True
        look = self._last_looks[path] = _Look(path, instance.pid)
        with trio.move_on_after(limits.LOCK_SECONDS):
            held = await trio.to_thread.run_sync(look.run, abandon_on_cancel=True, limiter=_looks)
            self._last_looks.pop(path, None)
            return held
        return True

    async def state_dir(self, instance_id: str) -> str | None:
        """Return where another daemon's journals are; None for this one, and for one that is not known."""
        if instance_id == self.own.id:
            return None
        rows = await self._store.read(lambda db: list(db.table("instances").rows_where("id = ?", [instance_id])))
        return str(rows[0]["state_dir"]) if rows else None

    async def ended_at(self, instance_id: str) -> float | None:
        """Return when a daemon said its end, by the wall clock; None for one that has not."""
        rows = await self._store.read(lambda db: list(db.table("instances").rows_where("id = ?", [instance_id])))
        return rows[0]["ended_at"] if rows else None

    async def end(self, instance_id: str) -> None:
        """Say that an instance has ended and left nothing unsettled."""
        now = self._wall_clock()
        await self._store.write(lambda db: _set_ended(db, instance_id, now))

    async def bury(self, instance: Instance) -> None:
        """Say that a dead instance has ended and left nothing unsettled, and remove the file of its lock."""
        await self.end(instance.id)
        if os.path.basename(instance.lock_path) == f"{instance.id}.lock":
            await trio.to_thread.run_sync(_remove, instance.lock_path)

    def close(self) -> None:
        """Remove and unlock this instance's file."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(self.own.lock_path)
            os.close(self._lock)
            self._lock = None


class _Look:
    """One look at a lock, in a thread that can be left alone."""

    def __init__(self, path: str, pid: int) -> None:
        self._path = path
        self._pid = pid
        self._begun = trio.current_time()
        self._is_looking = False

    @property
    def hangs(self) -> bool:
        """Whether it has not come back for so long that another look would only hang as well."""
        return self._is_looking and trio.current_time() - self._begun >= limits.LOCK_SECONDS

    def run(self) -> bool:
        self._is_looking = True  # not before: one whose asker was cancelled first never begins, and says nothing
        try:
            return _held(self._path) or _has_open(self._pid, os.path.basename(self._path))
        finally:
            self._is_looking = False


def _lock_new(path: str) -> int:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def _remove(path: str) -> None:
    with suppress(OSError):  # gone meanwhile, or in a directory that only its daemon may write
        os.unlink(path)


def _held(path: str) -> bool:
    """Return whether some process holds the lock of `path`. A missing file is not held by that name.

    A file that cannot be looked at (no descriptor left, no permission) counts as held: settling the work
    of a daemon that lives would undo what it does.
    """
    try:
        return locks.is_held(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _has_open(pid: int, name: str) -> bool:
    """Return whether a process has a file open that has, or had until it was deleted, this name; each lock has its own.

    A process of another account, or one that has ended, has not.
    """
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if os.path.basename(os.readlink(os.path.join(folder, descriptor))).removesuffix(_DELETED) == name:
                    return True
    return False


def _insert(db: Database, row: dict[str, Any]) -> None:
    db.table("instances").insert(row)


def _unended(db: Database, instance_id: str | None = None) -> list[Instance]:
    named, values = ("", []) if instance_id is None else (" AND id = ?", [instance_id])
    return [_instance(row) for row in db.table("instances").rows_where(f"ended_at IS NULL{named}", values)]


def _set_ended(db: Database, instance_id: str, now: float) -> None:
    db.execute("UPDATE instances SET ended_at = ? WHERE id = ? AND ended_at IS NULL", (now, instance_id))


def _instance(row: dict[str, Any]) -> Instance:
    return Instance(row["id"], row["pid"], row["state_dir"], row["lock_path"], tuple(json.loads(row["roots"])))
