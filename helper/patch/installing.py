"""Install: each slot by one rename that never loses what it finds, and a look at what came out.

It stops at the first surprise. Putting back is restore's part; the slot that met the surprise takes
its own step back at once where it can.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.journal import Journal
from helper.patch.manifest import Action, Directory, Manifest, Slot
from helper.patch.sight import Identity, Sight, identity, is_before, see, sync_parents
from helper.patch.staging import changed

_LEFT: Final = "What was installed before it is put back."


@dataclass(frozen=True, slots=True)
class Installed:
    """How far it went: the slots that may be installed, and why it stopped, if it did."""

    slots: tuple[int, ...]
    refusal: Refusal | None = None


def install(root: Root, manifest: Manifest, identities: Mapping[int, Identity], journal: Journal) -> Installed:
    """Put every staged file in place and move every removed one aside."""
    journal.mark("installing")
    slots: list[int] = []
    try:
        for directory in manifest.directories:
            _make(root, directory)
        for slot in manifest.slots:
            slots.append(slot.number)
            refusal = _STEPS[slot.action](root, slot, identities.get(slot.number))
            if refusal is not None:
                slots.pop()  # it has stepped back, so nothing of it is installed
                return Installed(tuple(slots), refusal)
        sync_parents(root, manifest)
    except Refusal as refusal:
        return Installed(tuple(slots), refusal)
    return Installed(tuple(slots))


def _make(root: Root, directory: Directory) -> None:
    try:
        root.move(directory.beside, directory.path)
    except FileExistsError:
        status = root.look(directory.path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise Refusal(
                "VERSION_CONFLICT",
                f"Something that is no directory came to be at {directory.path}. {_LEFT}",
                details={"path": directory.path, "expected": "absent", "actual": "other"},
            ) from None
        # Someone made it meanwhile, which is as well; the staged one stays where it is and is swept.


def _create(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    try:
        root.move(slot.beside, slot.path)
    except FileExistsError:
        return changed(slot, see(root, slot.path).version, _LEFT)
    if _identity(root, slot.path) != staged:
        raise _replaced(slot)
    return None


def _replace(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    try:
        root.exchange(slot.beside, slot.path)
    except Refusal as refused:
        if refused.code == "FILE_NOT_FOUND":
            return changed(slot, see(root, slot.path).version, _LEFT)
        raise
    out = see(root, slot.beside)
    if not _is_planned(slot, out):
        root.exchange(slot.beside, slot.path)
        return changed(slot, _told(slot, out), _LEFT)
    if _identity(root, slot.path) != staged:
        raise _replaced(slot)
    return None


def _remove(root: Root, slot: Slot, staged: Identity | None) -> Refusal | None:
    try:
        root.move(slot.path, slot.beside)
    except FileExistsError:
        return _replaced(slot)
    except Refusal as refused:
        if refused.code == "FILE_NOT_FOUND":
            return changed(slot, "absent", _LEFT)
        raise
    out = see(root, slot.beside)
    if _is_planned(slot, out):
        return None
    surprise = changed(slot, _told(slot, out), _LEFT)
    try:
        root.move(slot.beside, slot.path)
    except FileExistsError:
        raise surprise from None  # a third file came: restore rescues the second and leaves the third
    return surprise


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
