"""Plan: from a patch text to slots, each with the hashes before and after. Nothing is written."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from codespace import limits, v4a
from codespace.beneath import Root
from codespace.errors import CODES, Refusal
from codespace.v4a import paths
from helper.patch.manifest import Manifest
from helper.patch.policy import Policy
from helper.patch.slots import Near, beside, directories_of, missing_directories, slots_of
from helper.patch.tree import Tree

_RUNS_AS: Final = stat.S_ISUID | stat.S_ISGID
_EXECUTED: Final = 0o111 | _RUNS_AS
_AS_READ: Final = "Correct the chunk by details.nearest, or by what you read: the file is as you read it."


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one workspace that a plan keeps."""

    file_bytes: int
    patch_bytes: int


@dataclass(slots=True)
class Planned:
    """A plan with its bytes, as the helper holds it until it is staged."""

    manifest: Manifest
    before: Mapping[int, bytes]
    after: dict[int, bytes]
    diff: str
    diff_truncated: bool
    changes: Sequence[v4a.NetChange]
    notes: Sequence[str] = ()

    @property
    def size_bytes(self) -> int:
        """How much of the helper's memory the plan's contents take."""
        return sum(map(len, self.before.values())) + sum(map(len, self.after.values()))

    def whole_diff(self) -> str | None:
        """Return all of the diff where `diff` was cut: to limits.DIFF_WHOLE_BYTES, which it says if it is over that."""
        return v4a.unified_diff(self.changes, limits.DIFF_WHOLE_BYTES)[0] if self.diff_truncated else None


def plan(root: Root, policy: Policy, bounds: Bounds, operation: str, text: str, expected: Mapping[str, str]) -> Planned:
    """Plan `text` on the tree as it is now.

    Raises: Refusal; nothing was written.
    """
    patch = v4a.parse(text)
    _check_count(patch)
    policy.check(*_named(patch))
    tree = Tree(root, bounds.file_bytes)
    _check_versions(tree, expected)
    until = time.monotonic() + limits.PLACE_SECONDS
    try:
        net = v4a.plan(patch, tree, lambda: time.monotonic() > until)
    except Refusal as refusal:
        raise _as_read(refusal, expected) from None
    _check_sizes(net.changes, bounds.file_bytes)
    slots, before, after = slots_of(tree, net.changes, operation)
    missing = missing_directories(tree, (slot.path for slot in slots if slot.action == "create"), net.directories)
    near = Near(missing)
    placed = tuple(beside(slot, near) for slot in slots)
    diff, truncated = v4a.unified_diff(net.changes, limits.DIFF_BYTES)
    manifest = Manifest(
        operation=operation,
        root=root.path,
        identity=root.identity,
        directories=tuple(directories_of(missing, near, operation)),
        slots=placed,
        changes=tuple(_told(change, tree) for change in net.changes),
    )
    return Planned(manifest, before, after, diff, truncated, net.changes, net.notes)


def _check_count(patch: v4a.Patch) -> None:
    count = len(patch.operations)
    if count > limits.PATCH_OPERATIONS:
        raise Refusal(
            "LIMIT_REACHED",
            f"The patch has {count} operations, over the limit of {limits.PATCH_OPERATIONS}. Nothing was written.",
            next_step="Send it as several patches.",
            details={"limit": "PATCH_OPERATIONS", "value": limits.PATCH_OPERATIONS},
        )


def _named(patch: v4a.Patch) -> tuple[list[str], list[str]]:
    """Return the clean paths that a patch names, and those under which it puts a file that was not there."""
    touched: list[str] = []
    written: list[str] = []
    for operation in patch.operations:
        path = paths.clean(operation.path)
        touched.append(path)
        if isinstance(operation, v4a.Add):
            written.append(path)
        elif isinstance(operation, v4a.Update) and operation.move_to is not None:
            target = paths.clean(operation.move_to)
            touched.append(target)
            written.append(target)
    return touched, written


def _check_versions(tree: Tree, expected: Mapping[str, str]) -> None:
    for path, version in expected.items():
        actual = tree.version(paths.clean(path))
        if actual != version:
            raise Refusal(
                "VERSION_CONFLICT",
                f"{path} is at {actual}, the patch was made for {version}. Nothing was written.",
                details={"path": path, "expected": version, "actual": actual},
            )


def _as_read(refusal: Refusal, expected: Mapping[str, str]) -> Refusal:
    """Send nobody to read again what is as they read it: the versions were looked at, so the patch is what is wrong."""
    usual = CODES["INVALID_PATCH"].next_step
    if refusal.next_step == usual and (refusal.details or {}).get("path") in {paths.clean(path) for path in expected}:
        refusal.next_step = _AS_READ
    return refusal


def _check_sizes(changes: Iterable[v4a.NetChange], file_bytes: int) -> None:
    total = 0
    for change in changes:
        size = len(change.after or b"")
        total += size
        if size > file_bytes or total > limits.PATCH_TREE_BYTES:
            limit = min(file_bytes, limits.PATCH_TREE_BYTES)
            raise Refusal(
                "FILE_TOO_LARGE",
                f"{change.path}, with what the patch writes before it, is over {limit:,} bytes. Nothing was written.",
                details={"path": change.path, "limit_bytes": limit},
            )


def told_mode(before: int | None, after: int | None) -> dict[str, str]:
    """Return what is told of a file's permission bits; nothing where a person need not see them to know the change.

    Args:
        before, after: Those of the file at a path; None where there is none, or where the umask decides.
    """
    if after is None or (before is None and not after & _EXECUTED) or (before == after and not after & _RUNS_AS):
        return {}
    return {"mode": f"{after:04o}" if before in (None, after) else f"{before:04o} -> {after:04o}"}


def _told(change: v4a.NetChange, tree: Tree) -> dict[str, Any]:
    told: dict[str, Any] = {
        "path": change.path,
        "kind": change.kind,
        "before_version": tree.versions.of(change.before),
        "after_version": tree.versions.of(change.after),
    }
    if change.from_path is not None:
        told["from_path"] = change.from_path
    return told | told_mode(tree.mode_at(change.path) if change.kind == "update" else None, change.mode)
