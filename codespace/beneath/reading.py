"""The read side of a root: look, open, read, hash, walk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from codespace import limits
from codespace.beneath import kernel
from codespace.beneath.faults import not_a_file, refusal
from codespace.beneath.names import Hidden, clean, fold
from codespace.beneath.reach import REACH, Anchor, Primitive, primitive_in_force
from codespace.beneath.walking import Entry, Walk
from codespace.digest import ABSENT, Digest
from codespace.errors import Refusal

_BLOCK_BYTES: Final = 1_048_576  # of one read while hashing: large enough that system calls do not count


_LOCAL: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
# ext2 to ext4, XFS, Btrfs, F2FS and tmpfs: nothing changes in their directories behind this kernel's back.

Stamp = tuple[int, int, int, int]
"""Device, inode, and the times of the last write and of the last change: nobody can set the last one."""
SETTLED_NANOSECONDS: Final = 3_000_000_000
"""A directory that changed so short before it was listed may change again at the same time of the clock, which some
filesystems keep in whole seconds."""


class Reader:
    """One directory and everything below it, by a descriptor that no rename leads astray.

    Paths are relative to the root and are cleaned again by every verb. What a hidden glob covers
    does not exist. Each verb raises Refusal: SYMLINK_REJECTED, SPECIAL_FILE_REJECTED,
    FILE_NOT_FOUND, PATH_NOT_DIRECTORY, PATH_ESCAPE (also for a mount below the root),
    FILE_TOO_LARGE, or FILE_OPERATION_FAILED naming the errno.
    """

    def __init__(self, path: str, anchor: Anchor, identity: tuple[int, int], hidden: Hidden, primitive: Primitive):
        self.path = path
        self.fd = anchor.descriptor
        self.identity = identity
        self.primitive: Primitive = primitive
        self.hidden = hidden
        self._anchor = anchor
        self._reach = REACH[primitive]
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        allow_submounts: bool = False,
        hidden: Sequence[str] = (),
        primitive: Primitive | None = None,
    ) -> Self:
        """Open the directory at `path`, which is the operator's and may lie behind links.

        Args:
            path: Absolute.
            allow_submounts: Whether what is mounted below the root belongs to it.
            hidden: Globs of the .gitignore kind for what does not exist.
            primitive: `openat2` or `openat`; None for what the kernel allows.
        Returns: A root to close, or to use as a context.
        Raises: Refusal FILE_NOT_FOUND, PATH_NOT_DIRECTORY, FILE_OPERATION_FAILED.
        """
        chosen = primitive or primitive_in_force()
        try:
            descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            refused = refusal(error, path)
            refused.next_step = "Ask the operator whether the directory was moved, unmounted or deleted."
            raise refused from error
        status = os.fstat(descriptor)
        anchor = Anchor(descriptor, status.st_dev, kernel.mount_id(descriptor), allow_submounts)
        return cls(path, anchor, (status.st_dev, status.st_ino), Hidden(hidden), chosen)

    def unveiled(self) -> Self:
        """Return the same root with nothing hidden, for what was decided on already; it is closed with this one."""
        whole = type(self)(self.path, self._anchor, self.identity, Hidden(()), self.primitive)
        whole._closed = True  # the descriptor is this one's
        return whole

    def close(self) -> None:
        """Close the root's descriptor; a second time does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_in_place(self) -> None:
        """Refuse where the root's path no longer names the directory that was opened."""
        try:
            status = os.stat(self.path)
            found = (status.st_dev, status.st_ino)
        except OSError:
            found = None
        if found != self.identity:
            raise Refusal(
                "FILE_OPERATION_FAILED",
                "The workspace root was moved, removed or replaced since it was opened. Nothing was done.",
                next_step="Ask the operator to put the directory back, or to restart the daemon.",
                details={"root_replaced": True},
            )

    def look(self, path: str) -> os.stat_result | None:
        """Return the status of what is at `path` itself (a link's own, like lstat); None where nothing is.

        Raises: Refusal SYMLINK_REJECTED where a link lies on the way, PATH_NOT_DIRECTORY, PATH_ESCAPE.
        """
        try:
            descriptor = self.hold(path)
        except Refusal as absent:
            if absent.code == "FILE_NOT_FOUND":
                return None
            raise
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def hold(self, path: str) -> int:
        """Return an O_PATH descriptor of what is at `path`, whatever its type; the caller closes it."""
        return self._hold(clean(path))

    def open_directory(self, path: str) -> int:
        """Return an O_PATH descriptor of the directory at `path`; the caller closes it."""
        descriptor = self.hold(path)
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError as error:  # of a mount whose server is gone
            os.close(descriptor)
            raise refusal(error, path) from error
        if stat.S_ISDIR(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISLNK(mode):
            raise not_a_file(mode, path)
        raise refusal(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), path)

    def open_file(self, path: str) -> int:
        """Return a read-only descriptor of the regular file at `path`; the caller closes it.

        The file is held by O_PATH and its type looked at before it is opened, so nothing else is ever opened.
        """
        return self._open_file(clean(path))

    def open_entry(self, entry: Entry) -> int:
        """Return a read-only descriptor of a file that a walk named, whatever characters its name has."""
        return self._open_file(entry.path)

    def read(self, path: str, limit_bytes: int) -> tuple[bytes, os.stat_result]:
        """Return the whole file's bytes and its status.

        Raises: Refusal FILE_TOO_LARGE over `limit_bytes`.
        """
        descriptor = self.open_file(path)
        try:
            status = os.fstat(descriptor)
            if status.st_size > limit_bytes:
                raise _too_large(path, status.st_size, limit_bytes)
            parts: list[bytes] = []
            left = limit_bytes + 1  # the file may grow while it is read
            while left and (part := os.read(descriptor, min(left, max(status.st_size + 1, 4096)))):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise refusal(error, path) from error
        finally:
            os.close(descriptor)
        if not left:
            raise _too_large(path, limit_bytes + 1, limit_bytes)
        return b"".join(parts), status

    def version(self, path: str, limit_bytes: int = limits.FILE_BYTES) -> str:
        """Return `sha256:<64 hex>` of the file's bytes, or `absent` where no file can be.

        Memory is bounded whatever the size. Links and special files are refused, never hashed.
        """
        try:
            descriptor = self.open_file(path)
        except Refusal as absent:
            if absent.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY"):
                return ABSENT
            raise
        digest = Digest()
        total = 0
        try:
            while part := os.read(descriptor, _BLOCK_BYTES):
                digest.update(part)
                total += len(part)
                if total > limit_bytes:
                    raise _too_large(path, max(total, os.fstat(descriptor).st_size), limit_bytes)
        except OSError as error:
            raise refusal(error, path) from error
        finally:
            os.close(descriptor)
        return digest.version

    def walk(self, path: str = ".", skip: Callable[[Entry], bool] | None = None) -> Walk:
        """Return an iteration over everything visible below `path`, names sorted, directories before what they hold.

        Links and special files are named, never followed. A mount below the root, a hidden name and a
        directory that cannot be read are left out; how many of the last, `Walk.unreadable` says.

        Args:
            skip: Leaves an entry out, and so everything below it.
        """

        def leave_out(entry: Entry) -> bool:
            return self.is_hidden(entry.path) or (skip is not None and skip(entry))

        return Walk(clean(path), self.open_listing, leave_out)

    def open_listing(self, path: str) -> int:
        """Return a descriptor for listing the directory that a listing named, hidden or not; the caller closes it.

        Raises: OSError where there is none; ELOOP, ENOTDIR, EXDEV as the primitives.
        """
        held = self._reach(self._anchor, path)
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
        finally:
            os.close(held)

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp of a directory that a listing named; None where nothing is there, or a link in its place.

        Only to be compared with an earlier one, its parents' first: equal means that it is the same directory in
        the same place, so a link on the way, which nothing here looks for, makes no difference.
        """
        try:
            return stamp_of(os.stat(path, dir_fd=self.fd, follow_symlinks=False))
        except OSError:
            return None

    def is_filled(self, path: str) -> bool:
        """Return whether anything is at `path` but an empty file; nothing is behind a link, or on a mount.

        Raises: OSError for a shortage of descriptors or memory.
        """
        try:
            held = self._reach(self._anchor, path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return False
        try:
            status = os.fstat(held)
        finally:
            os.close(held)
        return status.st_size > 0 or not stat.S_ISREG(status.st_mode)

    def tells_changes(self) -> bool:
        """Return whether a name that comes or goes always shows in its directory's stamp, seconds later at the latest.

        Not on network filesystems and the like, and never for what is mounted below.
        """
        return kernel.filesystem(self.fd) in _LOCAL

    def reaches(self, path: str) -> bool:
        """Return whether something that a listing named is there, on no link and no mount; whatever its characters."""
        return self._identity(path) is not None

    def is_hidden(self, path: str) -> bool:
        """Return whether a hidden glob covers the cleaned `path`, also through a filesystem that folds letter case."""
        if not self.hidden or path == "." or not self.hidden.may_cover(path):  # the root is no name of one letter
            return False
        return self.hidden.covers(path) or self._folds(path)

    def _hold(self, path: str) -> int:
        if self.is_hidden(path):
            raise refusal(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path)
        try:
            return self._reach(self._anchor, path)
        except OSError as error:
            raise refusal(error, path) from error

    def _open_file(self, path: str) -> int:
        held = self._hold(path)
        try:
            mode = os.fstat(held).st_mode
            if not stat.S_ISREG(mode):
                raise not_a_file(mode, path)
            return kernel.open_held(held)
        except OSError as error:
            raise refusal(error, path) from error
        finally:
            os.close(held)

    def _folds(self, path: str) -> bool:
        """Return whether another spelling of one component reaches the same thing."""
        identity = self._identity(path)
        if identity is None:
            return True  # nothing is there: hidden and absent are the same answer
        components = path.split("/")
        for position, component in enumerate(components):
            plain = fold(component)
            other = plain if plain != component else plain.upper()
            spelt = "/".join((*components[:position], other, *components[position + 1 :]))
            if other != component and self._identity(spelt) == identity:
                return True
        return False

    def _identity(self, path: str) -> tuple[int, int] | None:
        try:
            held = self._reach(self._anchor, path)
        except OSError:
            return None
        try:
            status = os.fstat(held)
            return status.st_dev, status.st_ino
        finally:
            os.close(held)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp that a directory's status holds."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _too_large(path: str, size: int, limit_bytes: int) -> Refusal:
    return Refusal(
        "FILE_TOO_LARGE",
        f"{path} has at least {size:,} bytes, over the limit of {limit_bytes:,}. Nothing was done.",
        details={"path": path, "size_bytes": size, "limit_bytes": limit_bytes},
    )
