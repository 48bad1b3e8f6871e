"""What is at a path now, in the few words that a decision needs; and throwing away with a last look."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.beneath import Root, kernel
from codespace.digest import ABSENT, Digest, version_of
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest, Slot
from helper.patch.patience import leads_elsewhere

OTHER: Final = "other"
"""The version of what is no regular file, or cannot be reached or read."""

_EMPTY: Final = version_of(b"")
"""Such as a file that was made when its helper died: there is nothing in it to rescue."""

_BLOCK_BYTES: Final = 1_048_576  # of one read while hashing: large enough that system calls do not count


class Unreadable(PermissionError):
    """A file may not be read: somebody made it so, or its directory is outside the root for a moment."""


Identity = tuple[int, int, int, int]
"""Device, inode, size and time of the last write: inode numbers alone are given again at once."""


def identity(status: os.stat_result) -> Identity:
    """Return what tells one file from another that came to its name."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Sight:
    """The version of a path and, where a regular file is there, its permission bits and owner."""

    version: str
    mode: int = 0
    owner: tuple[int, int] = (-1, -1)

    @property
    def absent(self) -> bool:
        """Whether nothing is there."""
        return self.version == ABSENT


def see(root: Root, path: str) -> Sight:
    """Look at `path` and hash it. Never raises a Refusal: what cannot be read is OTHER."""
    try:
        held = root.hold(path)
    except Refusal as refused:
        return _unseen(refused)
    try:
        return _read(held)
    except OSError:
        return Sight(OTHER)


def reach(root: Root, path: str) -> Sight:
    """As `see`, for who decides by it what to do.

    Raises: Refusal where a link or a mount lies on the way, a directory may not be searched, or a mount's server is
        gone; Unreadable where the file may not be read, as Landlock has it while its directory is outside the root.
        Nobody can say then what is at `path`.
    """
    try:
        held = root.hold(path)
    except Refusal as refused:
        if leads_elsewhere(refused) or refused.code == "FILE_OPERATION_FAILED":
            raise
        return _unseen(refused)
    return _read(held)


def reach_at(directory: int, name: str) -> Sight:
    """As `reach`, for one name in a directory that is held already."""
    try:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return Sight(ABSENT)
    return _read(held)


def see_at(directory: int, name: str) -> Sight:
    """As `see`, for one name in a directory that is held already."""
    try:
        return reach_at(directory, name)
    except OSError:
        return Sight(OTHER)


def _unseen(refused: Refusal) -> Sight:
    return Sight(ABSENT if refused.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY") else OTHER)


def _read(held: int) -> Sight:
    """Look at what is held, and give it up."""
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limits.PATCH_TREE_BYTES:
            return Sight(OTHER)
        version = _version(held)
    finally:
        os.close(held)
    return Sight(version, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def _version(held: int) -> str:
    try:
        descriptor = kernel.open_held(held)  # the type was looked at
    except PermissionError as error:
        raise Unreadable(*error.args) from error
    try:
        digest = Digest()
        left = limits.PATCH_TREE_BYTES  # it may grow while it is read, and faster than it is read
        while part := os.read(descriptor, _BLOCK_BYTES):
            digest.update(part)
            left -= len(part)
            if left < 0:
                return OTHER
    finally:
        os.close(descriptor)
    return digest.version


def is_before(slot: Slot, sight: Sight) -> bool:
    """Return whether `sight` is the file that the slot replaces or removes."""
    if sight.version != slot.before or slot.metadata is None:
        return False
    return slot.before != slot.after or sight.mode == slot.metadata.mode  # a slot may change a mode alone


def is_after(slot: Slot, sight: Sight) -> bool:
    """Return whether `sight` is the file that the slot puts in place."""
    if sight.version != slot.after or sight.absent:
        return False
    return slot.before != slot.after or slot.mode is None or sight.mode == slot.mode


def is_lost(root: Root, path: str) -> bool:
    """Return whether nothing of ours can be at `path`.

    Raises: Refusal where a link or a mount lies on the way, so that nobody can say what is at `path`.
    """
    try:
        status = root.look(path)
    except Refusal as refused:
        if leads_elsewhere(refused):
            raise
        return True
    return status is None or not stat.S_ISREG(status.st_mode)


def discard(root: Root, slot: Slot, versions: tuple[str, ...], journal: Journal) -> bool:
    """Throw away what lies beside, after a look: bytes that are none of `versions` are rescued first.

    Returns: whether nothing is there any more. What is no regular file is never thrown away.
    """
    return throw_away(root, slot.number, slot.beside, versions, journal)


def throw_away(root: Root, number: int, path: str, versions: tuple[str, ...], journal: Journal) -> bool:
    """As `discard`, for any name that is ours; what is rescued is kept under `number`."""
    try:
        with root.parent(path) as (directory, name):
            return _throw_away(root, number, path, versions, journal, directory, name)
    except Refusal as refused:
        if refused.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY"):
            return True  # not even its directory is there
        raise


def _throw_away(
    root: Root, number: int, path: str, versions: tuple[str, ...], journal: Journal, directory: int, name: str
) -> bool:
    saved = {*versions, _EMPTY}
    for _ in range(limits.RESTORE_TRIES):
        sight = reach_at(directory, name)
        if sight.absent:
            return True
        if sight.version == OTHER:
            return False
        if sight.version in saved:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            return True
        data, _ = root.read(path, limits.PATCH_TREE_BYTES)
        journal.rescue(number, data)
        saved.add(version_of(data))  # and look again: to save it took a while
    return False


def sync_parents(root: Root, manifest: Manifest) -> None:
    """Flush every directory that the patch renames in, so that what it did stays done without power."""
    for directory in manifest.parents:
        with contextlib.suppress(Refusal):  # gone or swapped meanwhile: verify and restore see what that means
            root.sync_directory(directory)


def mounts_of(root: Root, manifest: Manifest) -> dict[str, str]:
    """Return where each directory of the patch is mounted that is not on the root's own filesystem."""
    found = {directory: root.mount_of(directory) for directory in manifest.parents}
    return {directory: point for directory, point in found.items() if point != "."}


def require_mounts(root: Root, manifest: Manifest) -> None:
    """Refuse where a directory is not on the filesystem that it was patched on: its files are elsewhere, not lost."""
    if manifest.mounts is None:
        return
    for directory in manifest.parents:
        try:
            found = root.mount_of(directory)
        except Refusal as refused:
            if refused.code != "PATH_ESCAPE":
                continue  # who puts files back finds out what that means
            found = None
        if found != manifest.mounts.get(directory, "."):
            raise Refusal(
                "FILE_OPERATION_FAILED",
                f"{directory} is on another filesystem than when it was patched. Nothing was done.",
                next_step="Mount what was there, with `allow_submounts` as it was; it is tried again then.",
                retryable=True,
                details={"path": directory},
            )
