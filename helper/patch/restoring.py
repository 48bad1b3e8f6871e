"""Restore: put back what still is as the patch left it, and leave alone what is not.

It works from the manifest and from what is on disk, never from memory, so the same code answers a
failed install, a failed verify and a crash. What was found installed is noted in the journal before
the first step back, so that a second crash does not change the answer.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.flush import Flush
from helper.patch.journal import Journal
from helper.patch.manifest import Directory, Manifest, Slot
from helper.patch.patience import Patience, leads_elsewhere
from helper.patch.renames import exchange, mend, put, step_back, take
from helper.patch.sight import Sight, Unreadable, discard, is_after, is_before, is_lost, reach, see, sync_parents
from helper.patch.staging import sweep, write_beside
from helper.patch.strays import astray, missed, sweep_strays

_PASSING: Final = frozenset({"EROFS", "EIO", "ENOSPC", "EDQUOT", "ENOTCONN", "ESTALE", "ETIMEDOUT", "EHOSTDOWN"})
_DENIED: Final = frozenset({"EACCES", "EPERM"})  # a directory outside the root gives them too, so they are waited out


@dataclass(slots=True)
class Restored:
    """How it went. `kept`: paths that a third party changed and that were left alone."""

    kept: list[str]
    rescued: tuple[str, ...]


def restore(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> Restored:
    """Take the patch back as far as nobody else's work is in the way."""
    mend(root, manifest, journal, patience)
    installed = _installed(root, manifest, journal, patience)
    if installed:
        journal.sync_before()  # of a slot that somebody changed, the journal alone has the bytes before from here on
    kept: list[str] = []
    moved = astray(root, manifest, journal, patience)
    lost: set[int] = set()
    if journal.marked("staged"):
        moving = {slot.number: partial(_is_moved, root, slot, installed) for slot in manifest.slots}
        lost = {number for number, is_moved in moving.items() if patience.insist(is_moved, otherwise=True)}
        moved |= missed(journal, lost)
    for slot in reversed(manifest.slots):
        if slot.number in installed and not patience.insist(partial(_is_out, root, slot)):
            put_back = partial(_put_back, root, slot, journal)
            if not patience.insist(put_back, _require_passable, lasting=_require_allowed):
                kept.append(slot.path)
        elif not patience.insist(partial(discard, root, slot, (_left(slot),), journal), _require_passable):
            moved.add(slot.number)
    unmade = journal.paths("unmade") or frozenset()
    made = reversed(manifest.directories) if journal.marked("installing") else ()
    for directory in made:
        if directory.path not in unmade:
            patience.insist(partial(_take_away, root, directory))
    left = sweep(root, manifest, journal, patience) | moved
    if left or lost:
        sweep_strays(root, manifest, journal, left)
    sync_parents(root, manifest)
    return Restored(sorted(kept), journal.rescued())


def _is_moved(root: Root, slot: Slot, installed: Collection[int]) -> bool:
    """Return whether what lay beside the slot is not there, without our doing: its directory was moved, perhaps."""
    if slot.number not in installed:
        return slot.action != "remove" and is_lost(root, slot.beside)
    return slot.action != "create" and is_lost(root, slot.beside) and is_lost(root, slot.path)


def is_applied(root: Root, manifest: Manifest) -> bool:
    """Return whether every path is as the patch leaves it; that one was removed, the file set aside must prove."""
    for slot in manifest.slots:
        sight = see(root, slot.path)
        is_removed = sight.absent and slot.action == "remove" and is_before(slot, see(root, slot.beside))
        if not (is_removed or is_after(slot, sight)):
            return False
    return all(_is_directory(root, directory.path) for directory in manifest.directories)


def _is_directory(root: Root, path: str) -> bool:
    try:
        os.close(root.open_directory(path))
    except Refusal:
        return False
    return True


def _installed(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> frozenset[int]:
    """Return the slots that may be installed, as noted when install stopped or when putting back first began."""
    noted = journal.numbers("restoring")
    if noted is not None:
        return noted
    begun = journal.marked("installing")
    found = frozenset(
        slot.number
        for slot in manifest.slots
        # One that cannot be seen may be installed: putting back looks again.
        if patience.insist(partial(_was_installed, root, slot, begun=begun), otherwise=begun)
    )
    journal.mark("restoring", sorted(found))
    return found


def _was_installed(root: Root, slot: Slot, *, begun: bool) -> bool:
    there, beside = reach(root, slot.path), reach(root, slot.beside)
    if slot.action == "remove":
        return not beside.absent or (begun and not is_before(slot, there))
    if is_after(slot, beside):
        # Still staged, or stepped back from. Without the flags of rename the old file may have been on its way here.
        return begun and slot.action == "replace" and there.absent
    if slot.action == "replace" and is_before(slot, beside):
        return True
    if not begun:
        return False  # staging was cut off; whatever is at the path is not ours
    return not (there.absent if slot.action == "create" else is_before(slot, there))


def _is_out(root: Root, slot: Slot) -> bool:
    """Return whether nothing of the slot is in place, so that at most a file beside it is left to be thrown away."""
    if slot.action == "create":
        return reach(root, slot.path).absent or is_after(slot, reach(root, slot.beside))
    return is_before(slot, reach(root, slot.path))


def _left(slot: Slot) -> str:
    """Return the version of what lies beside a slot that is out."""
    return slot.before if slot.action == "remove" else slot.after


def _put_back(root: Root, slot: Slot, journal: Journal) -> bool:
    """Undo one installed slot. Returns: False where the path is not as before, by somebody else's doing."""
    there, beside = reach(root, slot.path), reach(root, slot.beside)
    if slot.action == "create":
        return _put_back_create(root, slot, there, beside, journal)
    if slot.action == "replace":
        return _put_back_replace(root, slot, there, beside, journal)
    return _put_back_remove(root, slot, there, beside, journal)


def _put_back_create(root: Root, slot: Slot, there: Sight, beside: Sight, journal: Journal) -> bool:
    if there.absent or is_after(slot, beside):
        return discard(root, slot, (slot.after,), journal)
    if not is_after(slot, there) or not discard(root, slot, (slot.after,), journal):
        return False
    take(root, slot)
    if is_after(slot, reach(root, slot.beside)):
        return discard(root, slot, (slot.after,), journal)
    with contextlib.suppress(FileExistsError):
        put(root, slot.beside, slot.path)  # it changed just now: their file goes back
    discard(root, slot, (slot.after,), journal)
    return False


def _put_back_replace(root: Root, slot: Slot, there: Sight, beside: Sight, journal: Journal) -> bool:
    if is_before(slot, there):
        return discard(root, slot, (slot.after,), journal)
    if not is_after(slot, there):
        discard(root, slot, (slot.before, slot.after), journal)  # the journal has the bytes before
        return False
    if beside.absent:
        if not _make_again(root, slot, journal):
            return False
        beside = reach(root, slot.beside)
    foreign = not is_before(slot, beside)
    exchange(root, slot)
    if not is_after(slot, reach(root, slot.beside)):
        step_back(root, slot, partial(operator.eq, beside))  # it changed just now: their file goes back
        discard(root, slot, (slot.before, slot.after), journal)
        return False
    discard(root, slot, (slot.after,), journal)
    return not foreign


def _put_back_remove(root: Root, slot: Slot, there: Sight, beside: Sight, journal: Journal) -> bool:
    if is_before(slot, there):
        return discard(root, slot, (slot.before,), journal)
    if not there.absent:
        discard(root, slot, (slot.before,), journal)
        return False
    if beside.absent:
        return False  # whoever took the one that was set aside away may want it gone; the journal has the bytes
    try:
        put(root, slot.beside, slot.path)
    except FileExistsError:
        discard(root, slot, (slot.before,), journal)
        return False
    return is_before(slot, reach(root, slot.path))


def _require_allowed(error: Exception) -> None:
    """As `_require_passable`, also where the account may not write; a file that it may not read is somebody's work."""
    if not isinstance(error, Unreadable):
        _require_passable(error, _PASSING | _DENIED)


def _require_passable(error: Exception, codes: Collection[str] = _PASSING) -> None:
    """Refuse to give an outcome where the disk, and nobody's work, is in the way: it is asked again later."""
    if isinstance(error, Refusal):
        code = (error.details or {}).get("errno")
    else:
        code = errno.errorcode.get(getattr(error, "errno", 0))
    if code in codes:
        raise Refusal(
            "FILE_OPERATION_FAILED",
            f"The disk stands in the way of putting files back ({code}); each file is whole, and the journal is kept.",
            next_step="Make the directory writable, free some space, mount what is gone; it is tried again then.",
            retryable=True,
            details={"errno": code},
        ) from error


def _make_again(root: Root, slot: Slot, journal: Journal) -> bool:
    """Stage the old file once more from the journal, where somebody took away the one that was set aside."""
    data = journal.before(slot.number)
    metadata = slot.metadata
    if data is None or metadata is None:
        return False
    again = Slot(slot.number, "replace", slot.path, slot.beside, slot.before, slot.after, None, None, given=metadata)
    flush = Flush()
    try:
        descriptor, _ = write_beside(root, again, data)
        flush.add(descriptor)
        flush.wait()
    finally:
        flush.drop()
    return is_before(slot, reach(root, slot.beside))


def _take_away(root: Root, directory: Directory) -> bool:
    """Remove a directory that the patch made, if it is empty; a staged one that is still there proves it did not."""
    try:
        if root.look(directory.beside) is None:
            root.remove_directory(directory.path)
    except Refusal as refused:
        if leads_elsewhere(refused):
            raise
    return True
