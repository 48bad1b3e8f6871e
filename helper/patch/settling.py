"""Settle: after a crash, decide from journal and hashes what became of an operation."""

from __future__ import annotations

from functools import partial
from typing import Any

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest
from helper.patch.patience import Patience
from helper.patch.renames import mend
from helper.patch.report import report
from helper.patch.restoring import is_applied, restore
from helper.patch.sight import require_mounts


def settle(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> tuple[str, dict[str, Any]]:
    """Return the outcome and what was found; asking again gives the same answer.

    Raises: Refusal where the operator left its files as they are, a directory of the patch is not mounted as it was, or
        the disk stands in the way.

    `applied`: every path is as the patch leaves it, or was when throwing away began. Otherwise the
    patch is taken back: `failed_rolled_back`, `failed_partial` where somebody else's work was in the
    way, or `rejected` where no rename was ever tried.
    """
    outcome = journal.outcome()
    if outcome is not None:
        word, kept = outcome
        return word, report(kept=kept, rescued=journal.rescued())
    if journal.marked("accepted"):
        raise Refusal(
            "FILE_OPERATION_FAILED",
            "The operator left the files of this patch as they are. Nothing was done.",
            next_step="Have it recorded with `codespace operations settle --accept`.",
        )
    if not journal.marked("finishing"):
        patience.persist(partial(require_mounts, root, manifest))
    mend(root, manifest, journal, patience)
    if not journal.marked("restoring"):
        if journal.marked("finishing"):
            return "applied", report(rescued=journal.rescued())
        if journal.marked("installing") and is_applied(root, manifest):
            return "applied", report(rescued=journal.rescued())
    return take_back(root, manifest, journal, patience)


def take_back(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> tuple[str, dict[str, Any]]:
    """Restore, and note the outcome in the journal."""
    restored = restore(root, manifest, journal, patience)
    tried = journal.marked("installing")
    word = "failed_partial" if restored.kept else "failed_rolled_back" if tried else "rejected"
    journal.mark("outcome", {"outcome": word, "kept": restored.kept})
    return word, report(kept=restored.kept, rescued=restored.rescued)
