"""Finish: throw away what was set aside, after another look, and close the journal."""

from __future__ import annotations

import contextlib

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest
from helper.patch.renames import mend
from helper.patch.sight import discard
from helper.patch.staging import sweep


def finish(root: Root, manifest: Manifest, journal: Journal) -> tuple[list[str], tuple[str, ...]]:
    """End an operation, whichever way it went.

    An installed patch keeps its journal (undo reads it); one that was taken back or never installed
    keeps it only where bytes were rescued.

    Returns: paths beside which something was left that is no regular file, and the rescued files.
    """
    if journal.marked("restoring") or not journal.marked("installing"):
        mend(root, manifest, journal)
        clean = sweep(root, manifest, journal)
        rescued = journal.rescued()
        if clean and not rescued and not _kept_anything(journal):
            journal.purge()
        elif clean:
            journal.mark("finished")
        return [], rescued
    return _throw_away(root, manifest, journal), journal.rescued()


def _throw_away(root: Root, manifest: Manifest, journal: Journal) -> list[str]:
    journal.mark("finishing")
    journal.sync_before()  # from here on the journal alone has the bytes before
    left = []
    for slot in manifest.slots:
        if slot.action == "create":
            continue
        try:
            gone = discard(root, slot, (slot.before,), journal)
        except (Refusal, OSError):
            gone = False
        if not gone:
            left.append(slot.path)
    for directory in manifest.directories:
        with contextlib.suppress(Refusal, OSError):
            root.remove_directory(directory.beside)
    for emptied in manifest.emptied:
        with contextlib.suppress(Refusal, OSError):  # somebody put something there meanwhile: it stays
            root.remove_directory(emptied.path)
    if not left:
        journal.mark("finished")
    return left


def _kept_anything(journal: Journal) -> bool:
    outcome = journal.note("outcome")
    return bool(outcome and outcome.get("kept"))
