"""Plan an undo: from the journal of an applied patch to slots that make everything as it was before it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from codespace import limits, v4a
from codespace.beneath import Root
from codespace.digest import ABSENT
from codespace.display import display
from codespace.errors import Refusal
from helper.patch import dress
from helper.patch.journal import Journal
from helper.patch.manifest import Action, Emptied, Manifest, Metadata, Slot, staged_name
from helper.patch.planning import Bounds, Planned, told_mode
from helper.patch.policy import Policy
from helper.patch.slots import ORDER, Near, beside, directories_of, missing_directories
from helper.patch.tree import Tree

_ACCESS_LIST: Final = "system.posix_acl_access"
_SHOWN: Final = 3  # most attributes that a refusal names
_INVERSE: Final[Mapping[Action, Action]] = {"create": "remove", "replace": "replace", "remove": "create"}


def plan_undo(root: Root, policy: Policy, bounds: Bounds, operation: str, journal: Journal) -> Planned:
    """Plan to take back the patch of `journal`, which was applied.

    Raises: Refusal; VERSION_CONFLICT unless every file is as the patch left it, SNAPSHOT_EXPIRED where bytes that
        are needed are no longer kept. Nothing was written.
    """
    undone = journal.manifest()
    if undone is None or not journal.marked("installing"):
        raise expired()
    tree = Tree(root, bounds.file_bytes)
    paths = [slot.path for slot in undone.slots]
    made = [each.path for each in undone.emptied]
    policy.check(paths, [*(slot.path for slot in undone.slots if slot.action == "remove"), *made])
    emptied = tuple(_emptied(root, undone, journal))
    _check(root, tree, undone, emptied)
    kept = _kept(undone, journal, tree)
    slots, before, after = _slots(undone, tree, kept, operation)
    created = (slot.path for slot in slots if slot.action == "create")
    missing = missing_directories(tree, created, made)
    near = Near(missing)
    modes = {each.path: each.mode for each in undone.emptied}
    changes = [_net(change, undone, tree, kept) for change in undone.changes]
    diff, truncated = v4a.unified_diff(changes, limits.DIFF_BYTES)
    manifest = Manifest(
        operation=operation,
        root=root.path,
        identity=root.identity,
        directories=tuple(directories_of(missing, near, operation, modes)),
        slots=tuple(beside(slot, near) for slot in slots),
        changes=tuple(_inverted(change) | _mode(change, undone, tree) for change in undone.changes),
        emptied=emptied,
    )
    return Planned(manifest, before, after, diff, truncated, changes)


def expired() -> Refusal:
    """Return the refusal for an operation whose bytes before are no longer kept."""
    return Refusal("SNAPSHOT_EXPIRED", "The bytes before this operation are no longer kept. Nothing was written.")


def _check(root: Root, tree: Tree, undone: Manifest, emptied: Collection[Emptied]) -> None:
    """Refuse unless every file is as the patch left it, beside its bytes too as far as the journal knows that."""
    there = {slot.path: _version(tree, slot.path) for slot in undone.slots}
    is_undone = all(_is_undone(tree, slot, there[slot.path]) for slot in undone.slots)
    if not undone.slots:  # it made or took away directories and nothing else
        is_undone = not emptied and all(tree.kind(each.path) != "absent" for each in undone.emptied)
    if is_undone:
        raise Refusal(
            "VERSION_CONFLICT",
            "Everything is as it was before that operation already, so there is nothing to undo. Nothing was written.",
            next_step="Take it as done; read the files if you are not sure.",
        )
    carried = {slot.path: slot.metadata for slot in undone.slots}
    for slot in undone.slots:
        is_left = there[slot.path] == slot.after
        other = _other_dress(root, slot, carried) if is_left else None
        if is_left and other is None:
            continue
        said = f"is at {there[slot.path]}, the operation left it at {slot.after}" if other is None else f"has {other}"
        raise Refusal(
            "VERSION_CONFLICT",
            f"{slot.path} {said}. Nothing was written.",
            next_step="Somebody changed it since; take the change back with a patch of your own.",
            details={"path": slot.path, "expected": slot.after, "actual": there[slot.path]},
        )


def _is_undone(tree: Tree, slot: Slot, version: str) -> bool:
    if version != slot.before or slot.before != slot.after or slot.metadata is None:
        return version == slot.before
    there = tree.look(slot.path)  # the patch changed a mode alone
    return isinstance(there, v4a.File) and there.mode == slot.metadata.mode


def _version(tree: Tree, path: str) -> str:
    return "other" if isinstance(tree.look(path), v4a.Directory) else tree.version(path)


def _other_dress(root: Root, slot: Slot, carried: Mapping[str, Metadata | None]) -> str | None:
    """Say what the file carries otherwise than the patch left it; None where nothing, or where the umask decided it."""
    left = slot.given or (None if slot.source is None else carried.get(slot.source))
    if left is None:
        return None
    held = root.hold(slot.path)
    try:
        now = dress.carried(held)
    finally:
        os.close(held)
    mode = left.mode if slot.mode is None else slot.mode
    if now.mode != mode:
        return f"mode {now.mode:04o}, the operation left it with {mode:04o}"
    if now.owner != left.owner:
        return "another owner or group than the operation left it with"
    names = {name for name, _ in now.attributes.items() ^ left.attributes.items()}
    if mode != left.mode:
        names.discard(_ACCESS_LIST)  # in which that mode was written
    shown = ", ".join(display(name, limit=100) for name in sorted(names)[:_SHOWN])
    return f"other attributes than the operation left it with ({shown})" if names else None


def _kept(undone: Manifest, journal: Journal, tree: Tree) -> dict[int, bytes]:
    """Return the bytes before of each slot that had some, each as its hash says."""
    kept = journal.befores()
    for slot in undone.slots:
        if slot.action != "create" and (
            slot.metadata is None or tree.versions.of(kept.get(slot.number)) != slot.before
        ):
            raise expired()
    return kept


def _slots(
    undone: Manifest, tree: Tree, kept: Mapping[int, bytes], operation: str
) -> tuple[list[Slot], dict[int, bytes], dict[int, bytes]]:
    slots: list[Slot] = []
    before: dict[int, bytes] = {}
    after: dict[int, bytes] = {}
    for number, old in enumerate(sorted(undone.slots, key=lambda slot: ORDER[_INVERSE[slot.action]])):
        action = _INVERSE[old.action]
        name = staged_name(operation, number, "aside" if action == "remove" else "staged")
        mode = None if old.metadata is None else old.metadata.mode
        slots.append(Slot(number, action, old.path, name, old.after, old.before, None, mode, None, given=old.metadata))
        present = tree.bytes_at(old.path)
        if present is not None:
            before[number] = present
        if action != "remove":
            after[number] = kept[old.number]
    return slots, before, after


def _emptied(root: Root, undone: Manifest, journal: Journal) -> Iterator[Emptied]:
    """Yield the directories that the patch made and that are still there, children before parents."""
    unmade = journal.paths("unmade") or frozenset()
    for directory in reversed(undone.directories):
        status = None if directory.path in unmade else root.look(directory.path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            yield Emptied(directory.path, stat.S_IMODE(status.st_mode))


def _mode(change: Mapping[str, Any], undone: Manifest, tree: Tree) -> dict[str, str]:
    """Return what is told of the permission bits that the inverse of a change brings back."""
    path = change.get("from_path", change["path"])
    (slot,) = (slot for slot in undone.slots if slot.path == path)
    return told_mode(tree.mode_at(path), None if slot.metadata is None else slot.metadata.mode)


def _inverted(change: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"add": "delete", "delete": "add"}.get(change["kind"], change["kind"])
    told = {name: value for name, value in change.items() if name != "mode"} | {
        "kind": kind,
        "before_version": change["after_version"],
        "after_version": change["before_version"],
    }
    if kind == "move":
        told |= {"path": change["from_path"], "from_path": change["path"]}
    return told


def _net(change: Mapping[str, Any], undone: Manifest, tree: Tree, kept: Mapping[int, bytes]) -> v4a.NetChange:
    """Return the inverse of one change with its bytes, for the diff."""
    told = _inverted(change)
    source = told.get("from_path", told["path"])
    before = None if told["before_version"] == ABSENT else tree.bytes_at(source)
    after = None
    if told["after_version"] != ABSENT:
        (after,) = (kept[slot.number] for slot in undone.slots if slot.path == told["path"])
    return v4a.NetChange(told["path"], told["kind"], told.get("from_path"), before, after, None)
