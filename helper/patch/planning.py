"""Plan: from a patch text to slots, each with the hashes before and after. Nothing is written."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from codespace import limits, v4a
from codespace.beneath import STAGED_PREFIX, Root
from codespace.contract import ABSENT
from codespace.errors import Refusal
from codespace.v4a import paths
from helper.patch.manifest import Action, Directory, Manifest, Slot
from helper.patch.policy import Policy

_ORDER: Final[Mapping[Action, int]] = {"create": 0, "replace": 1, "remove": 2}
_SHORT_CHARACTERS: Final = 12  # of an operation id in staged names; O_EXCL guards what chance leaves


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


def version_of(data: bytes | None) -> str:
    """Return the contract's version of bytes; `absent` for None."""
    return ABSENT if data is None else "sha256:" + hashlib.sha256(data).hexdigest()


def plan(root: Root, policy: Policy, bounds: Bounds, operation: str, text: str, expected: Mapping[str, str]) -> Planned:
    """Plan `text` on the tree as it is now.

    Raises: Refusal; nothing was written.
    """
    patch = v4a.parse(text)
    _check_count(patch)
    policy.check(*_named(patch))
    tree = _Tree(root, bounds.file_bytes)
    _check_versions(tree, expected)
    until = time.monotonic() + limits.PLACE_SECONDS
    net = v4a.plan(patch, tree, lambda: time.monotonic() > until)
    _check_sizes(net.changes, bounds.file_bytes)
    prefix = f"{STAGED_PREFIX}{operation[-_SHORT_CHARACTERS:]}"
    slots, before, after = _slots(tree, net.changes, prefix)
    missing = _missing(tree, (slot.path for slot in slots if slot.action == "create"), net.directories)
    near = _Near(missing)
    placed = tuple(_beside(slot, near) for slot in slots)
    diff, truncated = v4a.unified_diff(net.changes, limits.DIFF_BYTES)
    manifest = Manifest(
        operation=operation,
        root=root.path,
        identity=root.identity,
        directories=tuple(_directories(missing, near, prefix)),
        slots=placed,
        changes=tuple(_told(change) for change in net.changes),
    )
    return Planned(manifest, before, after, diff, truncated)


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


class _Tree:
    """The root as the engine sees it: each path is read once, and all reads together are bounded."""

    def __init__(self, root: Root, file_bytes: int) -> None:
        self._root = root
        self._file_bytes = file_bytes
        self._left = limits.PATCH_TREE_BYTES
        self._seen: dict[str, v4a.File | v4a.Directory | None] = {}

    def look(self, path: str) -> v4a.File | v4a.Directory | None:
        if path not in self._seen:
            self._seen[path] = self._look(path)
        return self._seen[path]

    def version(self, path: str) -> str:
        there = self.look(path)
        return version_of(there.data if isinstance(there, v4a.File) else None)

    def bytes_at(self, path: str) -> bytes | None:
        there = self.look(path)
        return there.data if isinstance(there, v4a.File) else None

    def kind(self, path: str) -> Literal["directory", "absent", "file"]:
        there = self._seen[path] if path in self._seen else self._root.look(path)
        if there is None:
            return "absent"
        if isinstance(there, os.stat_result):
            return "directory" if stat.S_ISDIR(there.st_mode) else "file"
        return "directory" if isinstance(there, v4a.Directory) else "file"

    def _look(self, path: str) -> v4a.File | v4a.Directory | None:
        try:
            data, status = self._root.read(path, min(self._file_bytes, self._left))
        except Refusal as refused:
            if refused.code in ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY"):
                return None
            if refused.code == "SPECIAL_FILE_REJECTED" and (refused.details or {}).get("kind") == "directory":
                return v4a.Directory()
            raise
        self._left -= len(data)
        return v4a.File(data, stat.S_IMODE(status.st_mode))


def _check_versions(tree: _Tree, expected: Mapping[str, str]) -> None:
    for path, version in expected.items():
        actual = tree.version(paths.clean(path))
        if actual != version:
            raise Refusal(
                "VERSION_CONFLICT",
                f"{path} is at {actual}, the patch was made for {version}. Nothing was written.",
                details={"path": path, "expected": version, "actual": actual},
            )


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


def _slots(
    tree: _Tree, changes: Iterable[v4a.NetChange], prefix: str
) -> tuple[list[Slot], dict[int, bytes], dict[int, bytes]]:
    effects = sorted(_effects(tree, changes), key=lambda effect: _ORDER[effect[0]])
    slots: list[Slot] = []
    befores: dict[int, bytes] = {}
    afters: dict[int, bytes] = {}
    for number, (action, path, before, after, source, mode) in enumerate(effects):
        name = f"{prefix}-{number}.{'aside' if action == 'remove' else 'staged'}"
        slots.append(Slot(number, action, path, name, version_of(before), version_of(after), source, mode))
        if before is not None:
            befores[number] = before
        if after is not None:
            afters[number] = after
    return slots, befores, afters


_Effect = tuple[Action, str, bytes | None, bytes | None, str | None, int | None]


def _effects(tree: _Tree, changes: Iterable[v4a.NetChange]) -> Iterator[_Effect]:
    for change in changes:
        if change.after is None:
            yield "remove", change.path, change.before, None, None, None
        elif change.kind == "update":
            yield "replace", change.path, tree.bytes_at(change.path), change.after, change.path, change.mode
        else:
            yield "create", change.path, None, change.after, change.from_path, change.mode
        if change.kind == "move" and change.from_path is not None:
            yield "remove", change.from_path, change.before, None, None, None


def _missing(tree: _Tree, created: Iterable[str], emptied: Iterable[str]) -> dict[str, None]:
    """Return the directories that have to be made, parents before children."""
    missing: dict[str, None] = {}
    present: set[str] = set()
    for directory in (*(above for path in created for above in paths.parents(path)), *_with_parents(emptied)):
        if directory in ("", ".") or directory in missing or directory in present:
            continue
        kind = tree.kind(directory)
        if kind == "directory":
            present.add(directory)
        elif kind == "absent":
            missing[directory] = None
        else:
            raise Refusal(
                "PATH_NOT_DIRECTORY",
                f"{directory} is a file, and a patch never makes a directory of one. Nothing was written.",
                next_step="Delete the file with one patch, then add the directory's files with another.",
                details={"path": directory},
            )
    return dict.fromkeys(sorted(missing, key=lambda path: path.count("/")))


def _with_parents(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        yield from paths.parents(directory)
        yield directory


class _Near:
    """Where a name can be staged: the nearest directory above it that is there already."""

    def __init__(self, missing: Mapping[str, None]) -> None:
        self._missing = missing

    def place(self, path: str, name: str) -> str:
        above = path.rpartition("/")[0]
        while above in self._missing:
            above = above.rpartition("/")[0]
        return f"{above}/{name}" if above else name


def _beside(slot: Slot, near: _Near) -> Slot:
    return replace(slot, beside=near.place(slot.path, slot.beside))


def _directories(missing: Mapping[str, None], near: _Near, prefix: str) -> Iterator[Directory]:
    for number, path in enumerate(missing):
        yield Directory(path, near.place(path, f"{prefix}-d{number}.staged"))


def _told(change: v4a.NetChange) -> dict[str, Any]:
    told: dict[str, Any] = {
        "path": change.path,
        "kind": change.kind,
        "before_version": version_of(change.before),
        "after_version": version_of(change.after),
    }
    if change.from_path is not None:
        told["from_path"] = change.from_path
    return told
