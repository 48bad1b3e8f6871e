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
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # a command locked directories, as Go's module cache does
        _unlock(path)
        for above, folders, _ in os.walk(path):
            for folder in folders:
                _unlock(os.path.join(above, folder))
        shutil.rmtree(path, ignore_errors=True)


def _unlock(directory: str) -> None:
    with contextlib.suppress(OSError):  # not a directory, or gone
        held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{held}", 0o700)  # chmod takes no O_NOFOLLOW; by descriptor no link is followed
        finally:
            os.close(held)
