"""How the operator signs in to the console: tickets that only `codespace console` makes, and the sessions behind them.

A ticket is a file of the operator's own (0600) named by the ticket's digest: whoever can make one is the
operator. It is taken by removing the file, so that it is good once; and it is good for a short time. A
session lives in memory and ends with the daemon.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from codespace import limits, locks

FOLDER: Final = "console"
"""Below the state directory: tickets, and where consoles listen."""
_ADDRESS: Final = "address-"
_WORD_SECONDS: Final = 60.0  # far over what a word takes from being written to being locked
_TICKETS: Final = "tickets"
_READ_BYTES: Final = 4_096  # far over anything that is written here
_DIGITS: Final = frozenset("0123456789abcdef")


class Tickets:
    """The tickets below one state directory. Blocking, for milliseconds."""

    def __init__(self, state_dir: str, wall_clock: Callable[[], float]) -> None:
        self._folder = os.path.join(state_dir, FOLDER, _TICKETS)
        self._wall_clock = wall_clock

    def issue(self) -> str:
        """Make a ticket and return it; tickets whose time is over go. Raises: OSError."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._sweep()
        ticket = secrets.token_urlsafe(limits.TOKEN_BYTES)
        write_private(self._path(ticket), f"{self._wall_clock() + limits.CONSOLE_TICKET_SECONDS}")
        return ticket

    def take(self, ticket: str) -> bool:
        """Use a ticket up; return whether it was good."""
        path = self._path(ticket)
        try:
            until = _read(path)
            os.unlink(path)  # of two who come at once, one finds nothing here
        except OSError:
            return False
        return _is_before(self._wall_clock(), until)

    def _path(self, ticket: str) -> str:
        return os.path.join(self._folder, _digest(ticket))

    def _sweep(self) -> None:
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            with suppress(OSError):
                if set(name) <= _DIGITS and not _is_before(self._wall_clock(), _read(path)):
                    os.unlink(path)


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser."""

    csrf: str
    """What each of its forms carries: a page of another site cannot know it."""
    until: float
    """On the loop's clock."""


class Sessions:
    """The browsers that are signed in to this daemon.

    Args:
        clock: The loop's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def open(self) -> str:
        """Return the cookie of a new session; of too many, the oldest ends."""
        while len(self._sessions) >= limits.CONSOLE_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(limits.TOKEN_BYTES)
        until = self._clock() + limits.CONSOLE_SESSION_SECONDS
        self._sessions[_digest(cookie)] = Session(secrets.token_urlsafe(limits.TOKEN_BYTES), until)
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, if it is there and its time is not over."""
        session = None if cookie is None else self._sessions.get(_digest(cookie))
        if session is not None and session.until <= self._clock():
            self.close(cookie)
            return None
        return session

    def close(self, cookie: str | None) -> None:
        """End a session."""
        if cookie is not None:
            self._sessions.pop(_digest(cookie), None)


class Word:
    """Where one console listens, left for `codespace console`. Blocking, for milliseconds.

    It is good as long as its daemon lives, told by a lock that the kernel drops with it: several daemons of one state
    directory have each its own, and one that is killed leaves none.

    Raises: OSError.
    """

    def __init__(self, state_dir: str, url: str) -> None:
        announced(state_dir)  # what daemons left that are gone, goes
        folder = os.path.join(state_dir, FOLDER)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        name = f"{_ADDRESS}{secrets.token_hex(8)}"
        self._path = os.path.join(folder, f".{name}")  # not taken for one that nobody holds before it is locked
        self._lock: int | None = None
        try:
            write_private(self._path, url)
            self._lock = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self._path, os.path.join(folder, name))
        except BaseException:
            self.withdraw()
            raise
        self._path = os.path.join(folder, name)

    def withdraw(self) -> None:
        """Take it back."""
        with suppress(OSError):
            os.unlink(self._path)
        if self._lock is not None:
            os.close(self._lock)


def announced(state_dir: str) -> list[str]:
    """Return where the consoles of daemons that live listen, the newest first; the words of others go."""
    found: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(os.path.join(state_dir, FOLDER)) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.name.removeprefix(".").startswith(_ADDRESS):
                    continue
                written = entry.stat(follow_symlinks=False).st_mtime
                if locks.is_held(entry.path):
                    found.append((written, _read(entry.path)))
                elif not entry.name.startswith(".") or written < time.time() - _WORD_SECONDS:
                    os.unlink(entry.path)
    return [url for _, url in sorted(found, reverse=True)]


def write_private(path: str, text: str) -> None:
    """Write a file of the operator's own (0600), at once. Raises: OSError."""
    staged = f"{path}.{secrets.token_hex(8)}"
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise


def _read(path: str) -> str:
    """Return the text of a file of ours. Raises: OSError, also where it is somebody else's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} is not a file of this user alone")
        return file.read(_READ_BYTES).decode("utf-8", "replace")


def _is_before(now: float, until: str) -> bool:
    try:
        return now < float(until)
    except ValueError:
        return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
