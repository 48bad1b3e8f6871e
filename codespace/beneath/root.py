"""A root with its write side, which the patch transaction alone uses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from codespace.beneath import kernel
from codespace.beneath.faults import refusal
from codespace.beneath.names import clean
from codespace.beneath.reading import Reader
from codespace.errors import Refusal


class Root(Reader):
    """A root that can also be changed. Each verb is one change; undoing a sequence is the caller's part.

    FileExistsError passes through where a verb never replaces, since only the caller knows what it
    means. Everything else is a Refusal. A hidden name is refused with PROTECTED_PATH.
    """

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Lend an O_PATH descriptor of the directory that holds `path`, and the last name in it."""
        cleaned = clean(path)
        if cleaned == ".":
            raise Refusal("SPECIAL_FILE_REJECTED", "The workspace root itself cannot be changed. Nothing was changed.")
        if self.is_hidden(cleaned):
            raise Refusal("PROTECTED_PATH", f"{path} is not open to patches. Nothing was changed.")
        above, _, name = cleaned.rpartition("/")
        descriptor = self.open_directory(above or ".")
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def mount_of(self, path: str) -> str:
        """Return where the filesystem is mounted that `path` is on, or what is there above it; `.` for the root's own.

        Raises: Refusal SYMLINK_REJECTED, PATH_ESCAPE.
        """
        point, mount = ".", _mount(self.fd)
        components = clean(path).split("/")
        # Where no mount is crossed, the kernel says so of the whole way.
        for count in range(1 if self._anchor.submounts else len(components), len(components) + 1):
            above = "/".join(components[:count])
            try:
                held = self.open_directory(above)
            except Refusal as refused:
                if refused.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY"):
                    break
                raise
            try:
                found = _mount(held)
            finally:
                os.close(held)
            if found != mount:
                point, mount = above, found
        return point

    def create(self, path: str, data: bytes, mode: int) -> None:
        """Make a new file with exactly `mode` (no umask) and flush its bytes to the disk.

        A failure on the way removes what was made.

        Raises: FileExistsError; Refusal FILE_OPERATION_FAILED.
        """
        with self._change(path), self.parent(path) as (directory, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
            try:
                _write(descriptor, data)
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            except BaseException:
                _unlink_own(directory, name, descriptor)
                raise
            finally:
                os.close(descriptor)

    def exchange(self, first: str, second: str) -> None:
        """Swap what is at two paths in one step.

        Raises: Refusal FILE_OPERATION_FAILED with details.errno EINVAL where the filesystem cannot.
        """
        self._rename(first, second, kernel.RENAME_EXCHANGE)

    def move(self, source: str, target: str) -> None:
        """Rename in one step, never over anything.

        Raises: FileExistsError where something is at `target`; Refusal with details.errno EINVAL where the
            filesystem cannot.
        """
        self._rename(source, target, kernel.RENAME_NOREPLACE)

    def remove(self, path: str) -> None:
        """Remove the name of a file (of a link itself, if it is one)."""
        with self._change(path), self.parent(path) as (directory, name):
            os.unlink(name, dir_fd=directory)

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory with exactly `mode` (no umask).

        Raises: FileExistsError.
        """
        with self._change(path), self.parent(path) as (directory, name):
            os.mkdir(name, 0o700, dir_fd=directory)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
            try:
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; FILE_OPERATION_FAILED with details.errno ENOTEMPTY where it is not."""
        with self._change(path), self.parent(path) as (directory, name):
            os.rmdir(name, dir_fd=directory)

    def sync_directory(self, path: str) -> None:
        """Flush the names in a directory to the disk, so that a rename outlives a loss of power."""
        with self._change(path):
            held = self.open_directory(path)
            try:
                descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
            finally:
                os.close(held)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _rename(self, source: str, target: str, flags: int) -> None:
        with self._change(source), self.parent(source) as (below, name), self.parent(target) as (above, other):
            kernel.renameat2(below, name, above, other, flags)

    @contextlib.contextmanager
    def _change(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise refusal(error, path) from error


def _mount(descriptor: int) -> int:
    """Return what tells one mount from another; a subvolume has a device number of its own and is none."""
    number = kernel.mount_id(descriptor)
    return os.fstat(descriptor).st_dev if number is None else number


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _unlink_own(directory: int, name: str, descriptor: int) -> None:
    """Remove `name` where it still is the file that was just made; someone may have put another there."""
    with contextlib.suppress(OSError):
        ours = os.fstat(descriptor)
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
            os.unlink(name, dir_fd=directory)
