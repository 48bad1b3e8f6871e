"""Install: each slot by one rename that never loses what it finds, and a look at what came out.

It stops at the first surprise. Putting back is restore's part; the slot that met the surprise takes
its own step back at once where it can.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from codespace.beneath import Root
from codespace.beneath.faults import refusal
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Action, Directory, Manifest, Slot, spare_name
from helper.patch.renames import exchange_at, put, put_at, step_back_at, take_at
from helper.patch.sight import Identity, Sight, identity, is_after, is_before, see, see_at, sync_parents
from helper.patch.staging import changed

_LEFT: Final = "What was installed before it is put back."


@dataclass(frozen=True, slots=True)
class Installed:
    """How far it went: the slots that may be installed, and why it stopped, if it did."""

    slots: tuple[int, ...]
    refusal: Refusal | None = None


def install(
    root: Root, manifest: Manifest, identities: Mapping[int, Identity], journal: Journal, devices: Collection[int]
) -> Installed:
    """Put every staged file in place and move every removed one aside.

    Args:
        devices: That may be written to. Where the journal is on another one, a loss of power could leave the renames
            and take the mark that they began.
    """
    journal.mark("installing")
    if journal.is_apart(devices):
        journal.sync()
    slots: list[int] = []
    try:
        made_by_others = [each.path for each in manifest.directories if not _make(root, each)]
        if made_by_others:
            journal.mark("unmade", made_by_others)
        for slot in manifest.slots:
            slots.append(slot.number)
            surprise = _STEPS[slot.action](root, slot, identities.get(slot.number))
            if surprise is not None:
                slots.pop()  # it has stepped back, so nothing of it is installed
                return Installed(tuple(slots), surprise)
        sync_parents(root, manifest)
    except _Unreached as unreached:
        return Installed(tuple(slots[:-1]), unreached.refusal)
    except Refusal as refused:
        return Installed(tuple(slots), refused)
    return Installed(tuple(slots))


class _Unreached(Exception):
    """The directory of a slot is no longer there, so nothing of the slot was done."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def _make(root: Root, directory: Directory) -> bool:
    """Return whether the directory is the patch's own, and not somebody else's that came meanwhile."""
    try:
        put(root, directory.beside, directory.path)
    except FileExistsError:
        status = root.look(directory.path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise Refusal(
                "VERSION_CONFLICT",
                f"Something that is no directory came to be at {directory.path}. {_LEFT}",
                details={"path": directory.path, "expected": "absent", "actual": "other"},
            ) from None
        return False  # which is as well; the staged one stays where it is and is swept
    return True


def _create(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    try:
        numbered = put(root, slot.beside, slot.path)
    except FileExistsError:
        return changed(slot, see(root, slot.path).version, _LEFT)
    ours = _identity(root, slot.path) == staged if numbered else is_after(slot, see(root, slot.path))
    if not ours:
        raise _replaced(slot)
    return None


def _replace(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    with _held(root, slot) as (directory, name, beside):
        spare = spare_name(slot).rpartition("/")[2]
        try:
            numbered = exchange_at(directory, beside, name, spare)
        except FileNotFoundError:
            return changed(slot, see_at(directory, name).version, _LEFT)
        except FileExistsError:
            raise changed(slot, see_at(directory, name).version, _LEFT) from None
        out = see_at(directory, beside)
        if not _is_planned(slot, out):
            surprise = changed(slot, _told(slot, out), _LEFT)
            try:
                step_back_at(directory, beside, name, spare, partial(is_after, slot))
            except (FileExistsError, FileNotFoundError):
                raise surprise from None  # they changed it once more: restore rescues what it finds in our names
            return surprise
        if numbered:
            ours = identity(os.stat(name, dir_fd=directory, follow_symlinks=False)) == staged
        else:
            ours = is_after(slot, see_at(directory, name))
        if not ours:
            raise _replaced(slot)
    return None


def _remove(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    with _held(root, slot) as (directory, name, beside):
        try:
            take_at(directory, name, beside)
        except FileExistsError:
            return _replaced(slot)
        except FileNotFoundError:
            return changed(slot, "absent", _LEFT)
        out = see_at(directory, beside)
        if _is_planned(slot, out):
            return None
        surprise = changed(slot, _told(slot, out), _LEFT)
        try:
            put_at(directory, beside, directory, name)
        except FileExistsError:
            raise surprise from None  # a third file came: restore rescues the second and leaves the third
        return surprise


@contextlib.contextmanager
def _held(root: Root, slot: Slot) -> Iterator[tuple[int, str, str]]:
    """Hold the directory of a slot whose two names lie in it, for all that is done there in a row."""
    with contextlib.ExitStack() as held:
        try:
            directory, name = held.enter_context(root.parent(slot.path))
        except Refusal as refused:
            raise _Unreached(refused) from refused
        try:
            yield directory, name, slot.beside.rpartition("/")[2]
        except OSError as error:
            raise refusal(error, slot.path, _LEFT) from error


_STEPS: Final[Mapping[Action, Callable[[Root, Slot, Identity | None], Refusal | None]]] = {
    "create": _create,
    "replace": _replace,
    "remove": _remove,
}
# Each returns a refusal where it stepped back, and raises one where something of it may be left.


def _identity(root: Root, path: str) -> Identity | None:
    status = root.look(path)
    return None if status is None else identity(status)


def _is_planned(slot: Slot, out: Sight) -> bool:
    """Return whether what came out is what the plan, and the staged copy of its metadata, were made from."""
    metadata = slot.metadata
    return is_before(slot, out) and metadata is not None and (out.mode, out.owner) == (metadata.mode, metadata.owner)


def _told(slot: Slot, out: Sight) -> str:
    return out.version if out.version != slot.before else f"{out.version} with another mode or owner"


def _replaced(slot: Slot) -> Refusal:
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"What the patch staged for {slot.path} was replaced by another program. {_LEFT}",
        details={"path": slot.path},
    )
