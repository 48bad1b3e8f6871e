"""How the operator signs in to the console: tickets that only `codespace console` makes, and the sessions behind them.

A ticket is a file of the operator's own (0600) named by the ticket's digest: whoever can make one is the
operator. It is taken by removing the file, so that it is good once; and it is good for a short time. A
session lives in memory and ends with the daemon.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from codespace import limits

FOLDER: Final = "console"
"""Below the state directory: tickets, and where a console listens."""
_ADDRESS: Final = "address"
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


def announce(state_dir: str, url: str) -> None:
    """Leave word where a console listens, for `codespace console`. Raises: OSError."""
    os.makedirs(os.path.join(state_dir, FOLDER), mode=0o700, exist_ok=True)
    write_private(_address_path(state_dir), url)


def withdraw(state_dir: str, url: str) -> None:
    """Take the word back, unless another daemon has left its own by now."""
    with suppress(OSError):
        if _read(_address_path(state_dir)) == url:
            os.unlink(_address_path(state_dir))


def announced(state_dir: str) -> str | None:
    """Return where a console was said to listen. It may be gone."""
    try:
        return _read(_address_path(state_dir))
    except OSError:
        return None


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


def _address_path(state_dir: str) -> str:
    return os.path.join(state_dir, FOLDER, _ADDRESS)


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
