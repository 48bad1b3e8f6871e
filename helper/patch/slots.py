"""From net changes to slots and directories: which names they get, and in which order they are installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from codespace import v4a
from codespace.errors import Refusal
from codespace.v4a import paths
from helper.patch.manifest import Action, Directory, Slot, staged_name
from helper.patch.tree import Tree

ORDER: Final[Mapping[Action, int]] = {"create": 0, "replace": 1, "remove": 2}


def slots_of(
    tree: Tree, changes: Iterable[v4a.NetChange], operation: str
) -> tuple[list[Slot], dict[int, bytes], dict[int, bytes]]:
    """Return the slots in the order of install, with bare names beside, and the bytes before and after by number."""
    effects = sorted(_effects(tree, changes), key=lambda effect: ORDER[effect[0]])
    slots: list[Slot] = []
    versions = tree.versions
    befores: dict[int, bytes] = {}
    afters: dict[int, bytes] = {}
    for number, (action, path, before, after, source, mode) in enumerate(effects):
        name = staged_name(operation, number, "aside" if action == "remove" else "staged")
        slots.append(Slot(number, action, path, name, versions.of(before), versions.of(after), source, mode))
        if before is not None:
            befores[number] = before
        if after is not None:
            afters[number] = after
    return slots, befores, afters


_Effect = tuple[Action, str, bytes | None, bytes | None, str | None, int | None]


def _effects(tree: Tree, changes: Iterable[v4a.NetChange]) -> Iterator[_Effect]:
    for change in changes:
        if change.after is None:
            yield "remove", change.path, change.before, None, None, None
        elif change.kind == "update":
            yield "replace", change.path, tree.bytes_at(change.path), change.after, change.path, change.mode
        else:
            yield "create", change.path, None, change.after, change.from_path, change.mode
        if change.kind == "move" and change.from_path is not None:
            yield "remove", change.from_path, change.before, None, None, None


def missing_directories(tree: Tree, created: Iterable[str], emptied: Iterable[str]) -> dict[str, None]:
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


class Near:
    """Where a name can be staged: the nearest directory above it that is there already."""

    def __init__(self, missing: Mapping[str, None]) -> None:
        self._missing = missing

    def place(self, path: str, name: str) -> str:
        """Return where `name` goes for `path`."""
        above = path.rpartition("/")[0]
        while above in self._missing:
            above = above.rpartition("/")[0]
        return f"{above}/{name}" if above else name


def beside(slot: Slot, near: Near) -> Slot:
    """Return the slot with the place of its staged or set-aside name."""
    return replace(slot, beside=near.place(slot.path, slot.beside))


def directories_of(
    missing: Mapping[str, None], near: Near, operation: str, modes: Mapping[str, int] | None = None
) -> Iterator[Directory]:
    """Yield the directories to make, parents before children.

    Args:
        modes: Permission bits of those that had some before.
    """
    for number, path in enumerate(missing):
        mode = None if modes is None else modes.get(path)
        yield Directory(path, near.place(path, staged_name(operation, f"d{number}")), mode)
