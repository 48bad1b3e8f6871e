"""Who may change a root now: one occupant at a time, in this daemon and across daemons.

In memory for this daemon; across daemons by flock on the root directory itself, and shared on every
directory above it, so that a daemon whose root encloses this one is kept out too. The kernel drops
the locks with their owner, so a killed daemon never leaves a root locked. They lie where daemons of any
account and state directory meet, and so a command that may read such a directory can take them too: it
keeps others out for as long as it runs. It knows nothing of what an occupant does.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, Self

import trio

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import shortage


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who is in a root, as WORKSPACE_BUSY tells it."""

    kind: Literal["patch", "process"]
    operation_id: str
    since: float
    """Wall clock, seconds since the epoch."""
    process_id: str | None = None

    def details(self) -> dict[str, object]:
        known = {
            "holder": self.kind,
            "operation_id": self.operation_id,
            "process_id": self.process_id,
            "since": self.since,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(slots=True)
class _Room:
    """One root: who is in it, and the event that is set when that changes."""

    path: str
    fds: list[int] = field(default_factory=list)
    holder: Occupant | None = None
    hangs: bool = False
    """Whether a thread that nobody waits for any more still tries to lock it; it is claimed until that returns."""
    left: trio.Event = field(default_factory=trio.Event)


class Lease:
    """The right to change a root until `release` (also by leaving its `with` block)."""

    def __init__(self, release: Callable[[], None] | None) -> None:
        self._release = release

    def release(self) -> None:
        """Give the root back. Does nothing the second time; never blocks."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Occupancy:
    """Grants leases.

    Args:
        elsewhere: Finds what another daemon of the same database does in a root, if it is known.
    """

    def __init__(self, elsewhere: Callable[[str], Awaitable[Occupant | None]]) -> None:
        self._elsewhere = elsewhere
        self._rooms: dict[str, _Room] = {}
        self._refusing = False

    async def enter(self, workspace: Workspace, occupant: Occupant) -> Lease:
        """Return the lease, waiting behind a patch for at most PATCH_WAIT_SECONDS.

        Raises: Refusal WORKSPACE_BUSY with what holds the root and since when; at once behind a
            live process. SHUTTING_DOWN from `refuse` on.
        Cancel: nothing is held, or nothing is once a thread that a hung filesystem keeps has returned.
        Source: limits.PATCH_WAIT_SECONDS, limits.LOCK_SECONDS.
        """
        self._require_open()
        if occupant.kind == "process" and workspace.occupancy == "shared":
            return Lease(None)
        room = self._rooms.setdefault(workspace.root, _Room(workspace.root))
        blocker: Occupant | None = None
        with trio.move_on_after(limits.PATCH_WAIT_SECONDS) as patience:
            while True:
                if room.holder is None:
                    room.holder = occupant  # claimed before the first await: the next request waits behind it
                    if await self._locked(room, patience):
                        return self._let_in(room)
                    blocker = await self._elsewhere(workspace.root)
                else:
                    blocker = room.holder
                if blocker is not None and blocker.kind == "process":
                    break
                await self._wait_change(room)
                self._require_open()
        raise _does_not_answer(workspace) if room.hangs else _busy(workspace, blocker)

    def refuse(self) -> None:
        """Let nobody in from now on, also of those who wait: the stop has counted who is inside."""
        self._refusing = True

    def holder(self, root: str) -> Occupant | None:
        """Return who is in a root for this daemon now."""
        room = self._rooms.get(root)
        return room.holder if room else None

    def close(self) -> None:
        """Drop every lock. Called once no driver runs any more."""
        for room in self._rooms.values():
            _unlock(room)

    def _let_in(self, room: _Room) -> Lease:
        if self._refusing:
            self._leave(room)
        self._require_open()
        return Lease(lambda: self._leave(room))

    def _require_open(self) -> None:
        if self._refusing:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping; nothing was done.")

    async def _locked(self, room: _Room, patience: trio.CancelScope) -> bool:
        """Take the flocks of a room that this task has claimed; give the claim back on failure.

        The caller's patience is with other occupants; the filesystem gets a time of its own.
        """
        attempt = _Attempt(room, self._leave)
        until, patience.deadline = patience.deadline, trio.current_time() + limits.LOCK_SECONDS
        try:
            locked = await trio.to_thread.run_sync(attempt.run, abandon_on_cancel=True)
        except trio.Cancelled:
            attempt.give_up()
            raise
        except BaseException:
            self._leave(room)
            raise
        finally:
            patience.deadline = until
        if not locked:
            self._leave(room)
        return locked

    async def _wait_change(self, room: _Room) -> None:
        if room.holder is not None:
            await room.left.wait()
            return
        # Held by another daemon. No event crosses processes for a flock, so look again soon.
        await trio.sleep(limits.LOCK_RETRY_SECONDS)

    def _leave(self, room: _Room) -> None:
        _unlock(room)
        room.holder = None
        room.hangs = False
        room.left.set()
        room.left = trio.Event()


class _Attempt:
    """One attempt to lock a room, in a thread that can be left alone; the room is left when both are done with it."""

    def __init__(self, room: _Room, leave: Callable[[_Room], None]) -> None:
        self._room = room
        self._leave = leave
        self._token = trio.lowlevel.current_trio_token()
        self._guard = threading.Lock()
        self._begun = self._over = self._given_up = False

    def run(self) -> bool:
        """Lock the room. Runs in a thread."""
        with self._guard:
            if self._given_up:
                return False
            self._begun = True
        try:
            return _lock(self._room)
        finally:
            with self._guard:
                self._over = True
                is_late = self._given_up
            if is_late:
                self._leave_from_thread()

    def give_up(self) -> None:
        """Wait for the thread no more; what it still locks is unlocked at once."""
        with self._guard:
            self._given_up = True
            self._room.hangs = self._begun and not self._over
        if not self._room.hangs:
            self._leave(self._room)

    def _leave_from_thread(self) -> None:
        try:
            self._token.run_sync_soon(self._leave, self._room)
        except trio.RunFinishedError:
            _unlock(self._room)  # the daemon has ended meanwhile


def _lock(room: _Room) -> bool:
    """Lock the root alone and all directories above it shared, or nothing. Runs in a thread."""
    try:
        if _flock(room, room.path, fcntl.LOCK_EX) and all(
            _flock(room, str(above), fcntl.LOCK_SH) for above in PurePath(room.path).parents
        ):
            return True
    except OSError as error:
        _unlock(room)
        raise _cannot_be_locked(error) from error
    _unlock(room)
    return False


def _flock(room: _Room, path: str, how: int) -> bool:
    """Lock one directory without waiting; False where someone else has it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        if path == room.path:
            raise
        return True  # a directory that cannot be opened cannot be registered by this account either
    room.fds.append(fd)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(room: _Room) -> None:
    # Said explicitly: a descriptor that was duplicated into a child would keep the lock past close.
    for fd in room.fds:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
    room.fds.clear()


def _cannot_be_locked(error: OSError) -> Refusal:
    is_short = shortage.is_behind(error)
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"The workspace root cannot be locked: {os.strerror(error.errno or 0)}. Nothing was done.",
        next_step=shortage.NEXT_STEP
        if is_short
        else "Ask the operator whether the directory was moved, unmounted or deleted, and whether its filesystem "
        "supports flock.",
        retryable=is_short,
    )


def _does_not_answer(workspace: Workspace) -> Refusal:
    return Refusal(
        "WORKSPACE_BUSY",
        f"The directory of workspace {workspace.id} does not answer (a hung disk or network); nothing was done.",
        next_step="Send the same call again later, or ask the operator to look at the filesystem below the workspace.",
        details={"holder": "the filesystem"},
    )


def _busy(workspace: Workspace, blocker: Occupant | None) -> Refusal:
    if blocker is None:
        return Refusal(
            "WORKSPACE_BUSY",
            f"Another program holds the lock of workspace {workspace.id}; nothing was done.",
            next_step="Another CodeSpace daemon uses this directory, or a command has locked it, or one above it, "
            "itself. Send the same call again later.",
            details={"holder": "another program"},
        )
    if blocker.kind == "patch":
        return Refusal(
            "WORKSPACE_BUSY",
            f"A patch is being applied to workspace {workspace.id}; nothing was done.",
            next_step="Send the same call again in a moment.",
            details=blocker.details(),
        )
    return Refusal(
        "WORKSPACE_BUSY",
        f"Process {blocker.process_id} runs in workspace {workspace.id}; nothing was done.",
        next_step="Wait for it with read_process (wait_seconds), or end it with terminate_process, then send the same "
        "call again. The operator can set `occupancy: shared` to let processes and patches run side by side.",
        details=blocker.details(),
        process_id=blocker.process_id,
    )
