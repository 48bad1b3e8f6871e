"""A folder that belongs to one living supervisor: a lock on it tells it from what a dead one left.

Several daemons may share a state directory, and a killed one removes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from typing import Final

_TRIES: Final = 16  # at a new folder: a sweep can take one away only in its first moments


class OwnFolder:
    """A new folder with its lock. All methods touch the disk: call them in a thread."""

    def __init__(self, above: str) -> None:
        """Make the folder below `above`, and that where it is missing. Raises: OSError."""
        os.makedirs(above, mode=0o700, exist_ok=True)
        self._above = above
        for _ in range(_TRIES):
            self.path = os.path.join(above, secrets.token_hex(8))
            os.mkdir(self.path, 0o700)
            held = _hold(self.path, fcntl.LOCK_EX)  # a sweep that has it already lets go once it has removed it
            if held is not None:
                self._lock = held
                return
        raise FileNotFoundError(errno.ENOENT, "New folders disappear", above)

    def abandoned(self) -> Iterator[str]:
        """Lend the folders beside this one whose supervisors are gone, one after the other.

        Each is locked until the next is asked for: nobody who has just made one takes it for theirs meanwhile. What
        cannot be looked at, for want of descriptors or as the state directory went, is left to a later sweep.
        """
        for folder in self._beside():
            held = None
            with contextlib.suppress(OSError):
                held = _hold(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held is not None:
                try:
                    yield folder
                finally:
                    os.close(held)

    def _beside(self) -> list[str]:
        try:
            with os.scandir(self._above) as entries:
                return [
                    entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.path != self.path
                ]
        except OSError:
            return []

    def let_go(self) -> None:
        """Let go of the lock: from now on the folder counts as abandoned."""
        os.close(self._lock)


def _hold(folder: str, how: int) -> int | None:
    """Return a descriptor that holds the lock of a folder; None where another has it, or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, how)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder, follow_symlinks=False)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
