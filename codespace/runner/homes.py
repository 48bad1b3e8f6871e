"""Private, empty home directories: one for each run, gone with it."""

from __future__ import annotations

import contextlib
import os
import shutil

from codespace.runner.ownfolder import OwnFolder


class Homes:
    """The home directories of one supervisor. All methods touch the disk: call them in a thread."""

    def __init__(self, state_dir: str) -> None:
        """Make the folder and take its lock. Raises: OSError."""
        self._folder = OwnFolder(os.path.join(state_dir, "homes"))

    def make(self, name: str) -> str:
        """Return a new, empty directory that only its owner can enter. Raises: OSError."""
        path = self.path(name)
        os.mkdir(path, 0o700)
        return path

    def path(self, name: str) -> str:
        """Return where the home of `name` is or would be."""
        return os.path.join(self._folder.path, name)

    def remove(self, name: str) -> None:
        """Remove a home and all below it; what cannot be removed is left for a later sweep."""
        _remove(self.path(name))

    def close(self) -> None:
        """Remove the whole folder and let go of it."""
        _remove(self._folder.path)
        self._folder.let_go()

    def sweep(self) -> None:
        """Remove the folders of supervisors that are gone."""
        for folder in self._folder.abandoned():
            _remove(folder)


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
