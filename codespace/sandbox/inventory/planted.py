"""What a run left behind that runs by itself on the host: what there was before it, compared with what there is after.

A run can make it in steps, each harmless: a repository first and then the index that has git enter it, or a link where
an editor looks. So whatever decides that something runs is compared, not only what runs.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codespace import limits
from codespace.beneath import Hidden, Root
from codespace.errors import Refusal
from codespace.sandbox.inventory import git, gitstamps
from codespace.sandbox.inventory.scan import Inventory, is_git_name


@dataclass(frozen=True, slots=True)
class Planted:
    """Something that a run has made and that git, an editor or an agent on the host would run by itself."""

    path: str
    """Relative to the root; absolute in a repository outside."""
    loud: bool
    """It lies where the host's next look runs it: at the root, or where git expects a submodule."""
    is_closed: bool = False
    """It is a directory that cannot be looked into and may hold such: programs open what they know the name of."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What there was at one time."""

    inventory: Inventory
    submodules: git.Submodules
    links: frozenset[str]
    """On the way to what is protected, and in repositories that commands may write to though `scan` finds none there:
    in bare ones, in those outside, and among data. A repository itself, where that was not looked at for taking long.
    """
    in_hand: Mapping[str, object]
    """What git has in hand, in the same repositories and in others, linked worktrees elsewhere, and what tells that it
    was changed."""
    covered: frozenset[tuple[int, ...]]
    """Device and inode of what was hidden from the command, which can move it with a directory above it; of a link,
    which it can remove, the whole stamp: something else may have its inode behind it."""


def see(
    root: Root,
    inventory: Inventory,
    links: Sequence[str],
    writable: Sequence[str] = (),
    *,
    commits: bool,
    outside: Sequence[str] = (),
) -> Sight:
    """Take note of what there is.

    Args:
        links: On the way to what is protected.
        commits: Whether commands may write to repositories below the root.
        writable: Repositories outside of the root that a command could write to, which it can where none has a link.
        outside: Those that it may write to.
    Raises: OSError, Refusal where it cannot be looked at.
    """
    return Sight(
        inventory,
        git.submodules(root, inventory, checked=commits, outside=outside),
        frozenset((*links, *_links(root, inventory if commits else Inventory(), writable))),
        _in_hand(root, inventory if commits else Inventory(), outside),
        frozenset(_covered(root, inventory)),
    )


def _covered(root: Root, inventory: Inventory) -> Iterator[tuple[int, ...]]:
    for path in (*inventory.hidden_directories, *inventory.hidden_files):
        if (stamp := root.stamp(path)) is not None:
            yield stamp[:2]
    for path in inventory.hidden_links:
        if (stamp := root.stamp(path)) is not None:
            yield stamp


def _links(root: Root, inventory: Inventory, outside: Sequence[str]) -> Iterator[str]:
    until = git.deadline()
    for found in inventory.git:
        if found.kind == "bare":
            yield from map(posixpath.normpath, git.links(root, found.path, until))
        elif found.kind == "directory":
            yield from git.links_among_data(root, found.path, until)
    for directory in outside:
        with Root.open(directory) as repository:
            links = git.links(repository, ".", until)
            yield from (posixpath.normpath(posixpath.join(directory, link)) for link in links)


def _in_hand(root: Root, inventory: Inventory, outside: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    stamps = gitstamps.Stamps()
    for each in inventory.git:
        if each.kind in ("directory", "bare"):
            found |= gitstamps.in_hand(root, each.path, stamps)
    for directory in outside:
        with Root.open(directory) as repository:
            handed = gitstamps.in_hand(repository, ".", stamps, root)
            found |= {posixpath.join(directory, place): state for place, state in handed.items()}
    return found


def compare(
    root: Root, before: Sight, after: Sight, hidden: Sequence[str], protected: Sequence[str] = ()
) -> list[Planted]:
    """Return what is there after a run and was not before; the loud first.

    Args:
        after: Seen without regard to what is hidden: what the run itself has made under such a name counts.
        hidden: Globs of what no command may see. What was there under one was covered, so the run has not made it, and
            its name is nobody's to know.
        protected: Globs in force: of a closed directory, its name says whether anything is looked for in it.
    """
    unread = _changed(before.submodules.unread, after.submodules.unread)
    entered = (after.submodules.entered - before.submodules.entered) | unread
    closed = {*after.inventory.unreadable} - {*before.inventory.unreadable}
    handed = _changed(before.in_hand, after.in_hand)
    linked = after.links - before.links
    found = (_running(after) - _running(before)) | linked | entered | closed | handed
    covered = _Covered(root, before.covered, hidden)
    placed = Hidden([glob for glob in protected if glob.startswith("/")])
    ways = Hidden([f"/{name}" for glob in protected if "**" not in (name := glob.strip("/").partition("/")[0])])

    def is_loud(path: str) -> bool:
        opened = path not in closed or path == "." or is_git_name(posixpath.basename(path)) or ways.covers_folded(path)
        if path in handed:  # of a repository outside, the root is a worktree
            return posixpath.isabs(path) or _is_next(posixpath.dirname(path), after)
        return path in entered or (opened and (_is_next(path, after) or placed.covers_folded(path)))

    planted = [Planted(path, is_loud(path), path in closed) for path in found if not covered.cover(path)]
    return sorted(planted, key=lambda one: (not one.loud, one.path))


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {path for path, state in after.items() if state != before.get(path)}


def _running(sight: Sight) -> set[str]:
    inventory = sight.inventory
    return {*(found.path for found in inventory.git), *inventory.protected, *inventory.links}


def _is_next(path: str, sight: Sight) -> bool:
    return "/" not in path or path == "." or posixpath.dirname(path) in sight.submodules.places


class _Covered:
    """What was hidden before a run, under whatever name that was.

    Each directory is asked about once, for all that is found below it: a command can make very many, very deep.
    """

    def __init__(self, root: Root, stamps: frozenset[tuple[int, ...]], hidden: Sequence[str]) -> None:
        self._root = root
        self._stamps = stamps
        self._hidden = Hidden(hidden)
        self._known = {"": False, "/": False}
        self._deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS

    def cover(self, path: str) -> bool:
        """Return whether `path`, or a directory above it, was hidden. Raises: Refusal SANDBOX_UNAVAILABLE."""
        if not self._stamps:
            return False
        unknown: list[str] = []
        while path not in self._known:
            unknown.append(path)
            path = posixpath.dirname(path)
        was_above = self._known[path]
        for place in reversed(unknown):
            self._known[place] = was_above = was_above or self._covers(place)
        return was_above

    def _covers(self, place: str) -> bool:
        if time.monotonic() > self._deadline:
            raise _too_many()
        if not self._hidden.covers(place):
            return False
        stamp = self._root.stamp(place)
        return stamp is not None and (stamp in self._stamps or stamp[:2] in self._stamps)


def _too_many() -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "Telling what a run left from what was hidden before it took over "
        f"{limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was told of it.",
        next_step="Ask the operator to look at what commands left in the workspace (`find . -name .git`).",
    )
