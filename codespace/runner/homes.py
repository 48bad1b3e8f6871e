"""Private, empty home directories: one for each run, gone with it.

Each supervisor has its own folder below the state dir and holds a lock on it for as long as it
lives, so that a later one can tell what a killed daemon left from what a living one uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from typing import Any


class Homes:
    """The home directories of one supervisor. All methods touch the disk: call them in a thread."""

    def __init__(self, state_dir: str) -> None:
        """Make the folder and take its lock. Raises: OSError."""
        self._above = os.path.join(state_dir, "homes")
        os.makedirs(self._above, mode=0o700, exist_ok=True)
        self._folder = os.path.join(self._above, secrets.token_hex(8))
        os.mkdir(self._folder, 0o700)
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # a sweeper that looked between mkdir and here lets go at once

    def make(self, name: str) -> str:
        """Return a new, empty directory that only its owner can enter. Raises: OSError."""
        path = self.path(name)
        os.mkdir(path, 0o700)
        return path

    def path(self, name: str) -> str:
        """Return where the home of `name` is or would be."""
        return os.path.join(self._folder, name)

    def remove(self, name: str) -> None:
        """Remove a home and all below it; what cannot be removed is left for a later sweep."""
        _remove(self.path(name))

    def close(self) -> None:
        """Remove the whole folder and let go of it."""
        _remove(self._folder)
        os.close(self._lock)

    def sweep(self) -> None:
        """Remove the folders of supervisors that are gone."""
        with os.scandir(self._above) as entries:
            folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            if folder != self._folder and _abandoned(folder):
                _remove(folder)


def _abandoned(folder: str) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # its supervisor lives
    finally:
        os.close(descriptor)
    return True


def _remove(path: str) -> None:
    # rmtree works through directory descriptors, so a link that a command left leads nowhere.
    shutil.rmtree(path, onerror=_open_up)


def _open_up(function: Callable[..., Any], path: str, _: object) -> None:
    """Try once more after giving ourselves the directory that a command had locked (Go's module cache)."""
    with contextlib.suppress(OSError):
        for directory in (os.path.dirname(path), path):
            if stat.S_ISDIR(os.lstat(directory).st_mode):
                os.chmod(directory, 0o700, follow_symlinks=False) if os.chmod in os.supports_follow_symlinks else None
        if function is os.unlink or function is os.rmdir:
            function(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
