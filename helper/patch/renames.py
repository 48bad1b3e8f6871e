"""The renames of the transaction, none of which ever replaces what nobody looked at.

The kernel does each in one step where the filesystem lets it. Elsewhere (NFS, some FUSE and network
filesystems) they are made of steps: what is at a path is moved away by a plain rename onto a name of
our own, and what is ours is linked, which never replaces, and then unlinked. Bytes are as safe; but
for a moment the path is empty, and a crash in it is mended by `mend`. On some of them (sshfs) a link has
an inode number of its own, so that only the bytes tell that two names are one file.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from codespace import limits
from codespace.beneath import RENAME_EXCHANGE, RENAME_NOREPLACE, Root, kernel
from codespace.beneath.faults import refusal
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest, Slot, spare_name
from helper.patch.patience import Patience, leads_elsewhere
from helper.patch.sight import Sight, is_after, reach, see_at, throw_away

_UNKNOWN_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EACCES})


def exchange_at(directory: int, beside: str, name: str, spare: str) -> bool:
    """Swap our `beside` and what is at `name`, both in one directory.

    Returns: as `put_at`.
    Raises: FileNotFoundError where nothing is at `name`; FileExistsError where a third file came to it between
        two steps: then `spare` has what was there.
    """
    try:
        kernel.renameat2(directory, beside, directory, name, RENAME_EXCHANGE)
        return True
    except OSError as error:
        if error.errno not in _UNKNOWN_FLAGS:
            raise
    take_at(directory, name, spare)
    numbered = put_at(directory, beside, directory, name)
    os.rename(spare, beside, src_dir_fd=directory, dst_dir_fd=directory)
    return numbered


def step_back_at(directory: int, beside: str, name: str, spare: str, is_ours: Callable[[Sight], bool]) -> None:
    """Swap back what others had at `name`, and once more for each file that they put there meanwhile: the newest stays.

    The older ones end up at `beside`, at most one at a time; so does the newest of somebody who never stops.

    Args:
        is_ours: Says of what comes out whether it is what we had put at `name`.
    Raises: as `exchange_at`.
    """
    for _ in range(limits.RESTORE_TRIES):
        theirs = see_at(directory, beside)
        exchange_at(directory, beside, name, spare)
        if is_ours(see_at(directory, beside)):
            return
        is_ours = partial(operator.eq, theirs)


def take_at(directory: int, name: str, beside: str) -> None:
    """Move what is at `name` to our own name beside it.

    Raises: FileExistsError where something is at `beside`.
    """
    try:
        kernel.renameat2(directory, name, directory, beside, RENAME_NOREPLACE)
        return
    except OSError as error:
        if error.errno not in _UNKNOWN_FLAGS:
            raise
    _require_free(directory, beside)  # the name is ours: nobody else has a reason to come to it
    os.rename(name, beside, src_dir_fd=directory, dst_dir_fd=directory)


def put_at(source: int, beside: str, target: int, name: str) -> bool:
    """Move our `beside` to `name`, never over anything.

    Returns: whether its inode number has moved with it.
    Raises: FileExistsError where something is at `name`.
    """
    try:
        kernel.renameat2(source, beside, target, name, RENAME_NOREPLACE)
        return True
    except OSError as error:
        if error.errno not in _UNKNOWN_FLAGS:
            raise
    if stat.S_ISDIR(os.stat(beside, dir_fd=source, follow_symlinks=False).st_mode):
        _put_directory(source, beside, target, name)
        return True
    return _put_file(source, beside, target, name)


def _put_directory(source: int, beside: str, target: int, name: str) -> None:
    try:
        os.rename(beside, name, src_dir_fd=source, dst_dir_fd=target)  # over an empty directory at worst
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        raise


def _put_file(source: int, beside: str, target: int, name: str) -> bool:
    try:
        os.link(beside, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Neither flags nor hard links (FAT on an old kernel): a look is all that there is.
        _require_free(target, name)
        os.rename(beside, name, src_dir_fd=source, dst_dir_fd=target)
        return True
    numbered = _is_one_inode(source, beside, target, name)
    os.unlink(beside, dir_fd=source)
    return numbered


def _is_one_inode(source: int, beside: str, target: int, name: str) -> bool:
    try:
        there = os.stat(name, dir_fd=target, follow_symlinks=False)
        return os.path.samestat(os.stat(beside, dir_fd=source, follow_symlinks=False), there)
    except FileNotFoundError:  # somebody took one away just now: a look at the bytes says more
        return False


def _require_free(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def put(root: Root, beside: str, path: str) -> bool:
    """As `put_at`, from one path of the root to another.

    Raises: FileExistsError; Refusal for everything else.
    """
    with _refusing(path), root.parent(beside) as (below, ours), root.parent(path) as (above, name):
        return put_at(below, ours, above, name)


def take(root: Root, slot: Slot) -> None:
    """Move what is at the slot's path to its name beside, which may lie in a directory above.

    Raises: FileExistsError; Refusal for everything else.
    """
    with _refusing(slot.path), root.parent(slot.path) as (below, name), root.parent(slot.beside) as (above, ours):
        try:
            kernel.renameat2(below, name, above, ours, RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in _UNKNOWN_FLAGS:
                raise
            _require_free(above, ours)
            os.rename(name, ours, src_dir_fd=below, dst_dir_fd=above)


def exchange(root: Root, slot: Slot) -> None:
    """As `exchange_at`, for the two names of a slot that replaces."""
    spare = spare_name(slot).rpartition("/")[2]
    with _refusing(slot.path), root.parent(slot.path) as (directory, name):
        exchange_at(directory, slot.beside.rpartition("/")[2], name, spare)


def step_back(root: Root, slot: Slot, is_ours: Callable[[Sight], bool]) -> None:
    """As `step_back_at`, for the two names of a slot that replaces."""
    spare = spare_name(slot).rpartition("/")[2]
    with _refusing(slot.path), root.parent(slot.path) as (directory, name):
        step_back_at(directory, slot.beside.rpartition("/")[2], name, spare, is_ours)


def mend(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> None:
    """Bring what was cut off between two steps to an end, or back to its beginning."""
    for slot in manifest.slots:
        if slot.action != "remove":
            try:
                patience.persist(partial(_mend, root, slot, journal))
            except Refusal as refused:
                if not leads_elsewhere(refused):
                    raise  # what a disk refuses is told, and nothing is decided


def _mend(root: Root, slot: Slot, journal: Journal) -> None:
    with contextlib.suppress(FileExistsError):
        _bring_to_an_end(root, slot, journal)


def _bring_to_an_end(root: Root, slot: Slot, journal: Journal) -> None:
    if _look(root, _link_name(slot)) is not None:
        throw_away(root, slot.number, _link_name(slot), (slot.after,), journal)
    beside, there = _look(root, slot.beside), _look(root, slot.path)
    if beside is not None and there is not None and _is_one_file(root, slot, beside, there):
        root.remove(slot.beside)
        beside = None
    if slot.action != "replace" or _look(root, spare_name(slot)) is None:
        return
    with _refusing(slot.path), root.parent(slot.path) as (directory, name):
        ours, spare = slot.beside.rpartition("/")[2], spare_name(slot).rpartition("/")[2]
        if beside is None:
            os.rename(spare, ours, src_dir_fd=directory, dst_dir_fd=directory)
        elif there is None:
            put_at(directory, spare, directory, name)
        else:  # a third file came between the steps: it stays, and what it displaced is kept if nobody planned it
            throw_away(root, slot.number, spare_name(slot), (slot.before, slot.after), journal)


def _is_one_file(root: Root, slot: Slot, beside: os.stat_result, there: os.stat_result) -> bool:
    """Return whether both names of the slot are one file, which was cut off between its link and its unlink."""
    if os.path.samestat(beside, there):
        return True
    if not (is_after(slot, reach(root, slot.beside)) and is_after(slot, reach(root, slot.path))):
        return False
    return not _links_are_numbered(root, slot)  # else somebody made a file of the same bytes


def _links_are_numbered(root: Root, slot: Slot) -> bool:
    """Return whether a link has the inode number of its file here, found by trying."""
    with _refusing(slot.path), root.parent(slot.beside) as (directory, ours):
        probe = _link_name(slot).rpartition("/")[2]
        try:
            os.link(ours, probe, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return True  # then nothing was ever linked either
            raise
        try:
            return _is_one_inode(directory, ours, directory, probe)
        finally:
            os.unlink(probe, dir_fd=directory)


def _link_name(slot: Slot) -> str:
    return f"{slot.beside.removesuffix('.staged')}.link"


def _look(root: Root, path: str) -> os.stat_result | None:
    try:
        return root.look(path)
    except Refusal as refused:
        if leads_elsewhere(refused):
            raise
        return None


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise refusal(error, path) from error
