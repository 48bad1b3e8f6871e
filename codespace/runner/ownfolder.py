"""A folder that belongs to one living supervisor: a lock on it tells it from what a dead one left.

Several daemons may share a state directory, and a killed one removes nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets


class OwnFolder:
    """A new folder with its lock. All methods touch the disk: call them in a thread."""

    def __init__(self, above: str) -> None:
        """Make the folder below `above`, and that where it is missing. Raises: OSError."""
        os.makedirs(above, mode=0o700, exist_ok=True)
        self._above = above
        self.path = os.path.join(above, secrets.token_hex(8))
        os.mkdir(self.path, 0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # a sweeper that looked between mkdir and here lets go at once

    def abandoned(self) -> list[str]:
        """Return the folders beside this one whose supervisors are gone."""
        with os.scandir(self._above) as entries:
            folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [folder for folder in folders if folder != self.path and _is_abandoned(folder)]

    def let_go(self) -> None:
        """Let go of the lock: from now on the folder counts as abandoned."""
        os.close(self._lock)


def _is_abandoned(folder: str) -> bool:
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
