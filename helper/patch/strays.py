"""What a patch put below the root and what is no longer where it was put: a directory was moved with it inside.

Found by its name, which is the operation's own, on a bounded walk. What was moved out of the root is
out of reach, and stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from functools import partial

from codespace import limits
from codespace.beneath import STAGED_PREFIX, Root
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import PROBE, Manifest, Slot, staged_name
from helper.patch.patience import Patience
from helper.patch.sight import is_lost, throw_away


def sweep_strays(
    root: Root, manifest: Manifest, journal: Journal, expected: Collection[int], *, applied: bool = False
) -> bool:
    """Throw away every file of the operation below the root, wherever it is; foreign bytes are rescued.

    Args:
        applied: Whether the patch is, so that the bytes before are of no more use; else they are rescued too, as
            they could not be put back.
        expected: Slots whose file has to be somewhere, or PROBE. One that is not found is noted in the journal, and
            looked for again the next time.
    Returns: whether nothing is left. What was not found for a day, or could not be looked for, is given up.
    """
    found = _sweep(root, manifest, journal, applied=applied)
    if (found is not None and found >= set(expected)) or journal.age() > limits.JOURNAL_AGE_SECONDS:
        return True
    journal.revise("astray", sorted({*expected, *(journal.numbers("astray") or ())}))
    return False


def missed(journal: Journal, lost: set[int]) -> set[int]:
    """Return which of the slots whose file is not in its place had lost it when that was first looked for.

    The other ones were thrown away by a helper that was cut off, so that they need not be found anywhere.
    """
    noted = journal.numbers("missed")
    if noted is not None:
        return lost & noted
    journal.mark("missed", sorted(lost))
    return lost


def astray(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> set[int]:
    """Return the slots whose file was looked for and not found yet, and is not back in its place either.

    To be asked before what lies in its place is thrown away. A probe's file is not among them: it may never
    have been there, so its directory decides each time.
    """
    noted = journal.numbers("astray") or frozenset()
    return {slot.number for slot in manifest.slots if slot.number in noted and is_gone(root, slot, patience)}


def is_gone(root: Root, slot: Slot, patience: Patience) -> bool:
    """Return whether nothing of ours is beside the slot, or its directory stays away."""
    return patience.insist(partial(is_lost, root, slot.beside), otherwise=True)


def _sweep(root: Root, manifest: Manifest, journal: Journal, *, applied: bool) -> set[int] | None:
    """Return the slots whose file was found and thrown away; None where something may be left."""
    ours = re.compile(re.escape(staged_name(manifest.operation, "")[: -len(".staged")]) + r"(p?\d+)\.[a-z]+\Z")
    known: dict[int, tuple[str, ...]] = {PROBE: ()}  # a probe's file is empty
    known |= {slot.number: (slot.after, slot.before) if applied else (slot.after,) for slot in manifest.slots}
    until = time.monotonic() + limits.STRAYS_SECONDS
    gone: set[int] = set()
    clean = True
    for count, entry in enumerate(root.walk()):
        if count >= limits.STRAYS_ENTRIES or time.monotonic() > until:
            return None
        name = entry.path.rpartition("/")[2]
        found = ours.match(name) if name.startswith(STAGED_PREFIX) else None
        number = None if found is None else PROBE if found[1].startswith("p") else int(found[1])
        if number is not None and number in known:
            try:
                clean &= throw_away(root, number, entry.path, known[number], journal)
                gone.add(number)
            except (Refusal, OSError):
                clean = False
    return gone if clean else None
