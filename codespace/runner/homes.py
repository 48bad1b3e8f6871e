"""Private, empty home directories: one for each run, gone with it."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Final

from codespace.runner.ownfolder import OwnFolder

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
    """Remove a directory and all below it, which a command made as it liked; what cannot be removed stays.

    Neither depth nor length of a path ends it, as each directory is brought up to the top before it is looked into.
    What is mounted there cannot be moved so, and is never entered. No link is followed.
    """
    above, name = os.path.split(path)
    with contextlib.suppress(OSError):
        held = os.open(above, _DIRECTORY)
        try:
            _unlock(held, name)
            top = os.open(name, _DIRECTORY, dir_fd=held)
            try:
                _empty(top)
            finally:
                os.close(top)
            os.rmdir(name, dir_fd=held)
        finally:
            os.close(held)


def _empty(top: int) -> None:
    prefix = secrets.token_hex(8)  # so that nothing is there under the names that directories get
    left: list[str] = []
    _clear(top, top, prefix, left)
    number = 0
    while number < len(left):
        with contextlib.suppress(OSError):
            held = os.open(left[number], _DIRECTORY, dir_fd=top)
            try:
                _clear(held, top, prefix, left)
            finally:
                os.close(held)
            os.rmdir(left[number], dir_fd=top)
        number += 1


def _clear(held: int, top: int, prefix: str, moved: list[str]) -> None:
    """Remove the files of a directory, and move its directories up; their new names are added to `moved`."""
    with os.scandir(held) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        with contextlib.suppress(OSError):
            if is_directory:
                _unlock(held, name)  # a command locked it, as Go's module cache does
                os.rename(name, f"{prefix}-{len(moved)}", src_dir_fd=held, dst_dir_fd=top)
                moved.append(f"{prefix}-{len(moved)}")
            else:
                os.unlink(name, dir_fd=held)


def _unlock(above: int, name: str) -> None:
    held = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{held}", 0o700)  # chmod takes no O_NOFOLLOW; by descriptor no link is followed
    finally:
        os.close(held)
