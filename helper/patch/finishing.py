"""Finish: throw away what was set aside, after another look, and close the journal."""

from __future__ import annotations

import contextlib
from functools import partial

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest, Slot
from helper.patch.patience import Patience
from helper.patch.renames import mend
from helper.patch.sight import discard, is_lost
from helper.patch.staging import sweep
from helper.patch.strays import astray, is_gone, missed, sweep_strays


def finish(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> tuple[list[str], tuple[str, ...]]:
    """End an operation, whichever way it went.

    An installed patch keeps its journal (undo reads it); one that was taken back or never installed
    keeps it only where bytes were rescued.

    Returns: paths beside which something was left that is no regular file, and the rescued files.
    """
    accepted = journal.marked("accepted") and journal.marked("installing")
    if not accepted and (journal.marked("restoring") or not journal.marked("installing")):
        mend(root, manifest, journal, patience)
        moved = astray(root, manifest, journal, patience)
        lost: set[int] = set()
        if journal.marked("staged") and not journal.marked("restoring"):
            lost = {slot.number for slot in manifest.slots if slot.action != "remove" and is_gone(root, slot, patience)}
            moved |= missed(journal, lost)
        moved |= sweep(root, manifest, journal, patience)
        clean = not (moved or lost) or sweep_strays(root, manifest, journal, moved)
        rescued = journal.rescued()
        if clean and not rescued and not _kept_anything(journal):
            journal.purge()
        elif clean:
            journal.mark("finished")
        return [] if clean else [slot.path for slot in manifest.slots], rescued
    if accepted:
        mend(root, manifest, journal, patience)
    return _throw_away(root, manifest, journal, patience, half=accepted), journal.rescued()


def _throw_away(root: Root, manifest: Manifest, journal: Journal, patience: Patience, *, half: bool) -> list[str]:
    """Throw away what was set aside.

    Args:
        half: Whether only a part of the patch may be in place, which stays so: what was staged goes, too.
    """
    if not half:
        journal.mark("finishing")
        if manifest.mounts or journal.is_apart({root.identity[0]}):
            journal.sync()  # what was set aside proves the patch until then
    journal.sync_before()  # from here on the journal alone has the bytes before
    left = []
    moved = astray(root, manifest, journal, patience)
    set_aside = [slot for slot in manifest.slots if half or slot.action != "create"]
    lost = {slot.number for slot in set_aside if is_gone(root, slot, patience)}
    if half:
        lost -= {slot.number for slot in set_aside if patience.insist(partial(_in_place, root, slot))}
    moved |= missed(journal, lost)  # noted before the first is thrown away: what is gone later was
    for slot in set_aside:
        known = (slot.before, slot.after) if half else (slot.before,)
        if not patience.insist(partial(discard, root, slot, known, journal)):
            left.append(slot.path)
            moved.add(slot.number)
    if moved or lost:
        left = [] if sweep_strays(root, manifest, journal, moved, applied=True) else left or ["."]
    for directory in reversed(manifest.directories):
        with contextlib.suppress(Refusal, OSError):
            root.remove_directory(directory.beside)
    for emptied in () if half else manifest.emptied:
        with contextlib.suppress(Refusal, OSError):  # somebody put something there meanwhile: it stays
            root.remove_directory(emptied.path)
    if not left:
        journal.mark("finished")
    return left


def _in_place(root: Root, slot: Slot) -> bool:
    """Return whether nothing need lie beside a slot: it was made, or is not removed yet."""
    return slot.action != "replace" and not is_lost(root, slot.path)


def _kept_anything(journal: Journal) -> bool:
    outcome = journal.outcome()
    return outcome is not None and bool(outcome[1])
