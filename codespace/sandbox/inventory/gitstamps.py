"""What git goes by in a repository, and the stamps that tell of a change: its index, and what it has in hand.

A rebase runs commands once it is continued, and git-prompt has the shell run what its counter says. Nothing here runs
git.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from codespace import limits
from codespace.beneath import Root
from codespace.beneath.reading import Stamp
from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitconfig, gitways
from codespace.sandbox.inventory.gitconfig import WORKTREES

_IN_HAND: Final = ("rebase-merge", "rebase-apply", "sequencer", "MERGE_RR", "MERGE_AUTOSTASH")
"""The next commit writes over the files that MERGE_RR names, wherever they are, or keeps what they hold; and it takes
the stash that MERGE_AUTOSTASH names."""
_MOST_STAMPS: Final = 10_000
"""What one look keeps for as long as its run lasts: some 4 MB. A rebase has some thirty files, or one for each patch.
"""

Stamped = frozenset[tuple[str, Stamp | bytes | None]]
"""Names in a directory, and the stamp or a digest of each: equal where none of these files was changed."""


class Stamps:
    """Takes the stamps of one look, in however many repositories: a command can make as many files as it likes."""

    def __init__(self) -> None:
        self._room = _MOST_STAMPS
        self._until = time.monotonic() + limits.SANDBOX_SCAN_SECONDS

    def take(self, root: Root, directory: str) -> Stamped:
        """Return the stamps of a file, or of a directory and of all that lies in it.

        Raises: OSError for a shortage; Refusal SANDBOX_UNAVAILABLE as `look_at_clock` does, and for very many names.
        """
        return self._take(root, directory, ".", "", root.stamp)

    def take_index(self, root: Root, directory: str) -> Stamped:
        """Return what was in the index of a git directory, and in those that it may have been split from: git believes
        that these hold what they held, and sets their time whenever it reads them.

        Raises: OSError, Refusal as `take` does.
        """
        return self._take(root, directory, "index", "sharedindex.", partial(_digest, root))

    def take_content(self, root: Root, directory: str, name: str) -> Stamped:
        """Return what is in one file of a directory: git writes a worktree's `gitdir` again every day.

        Raises: OSError, Refusal as `take` does.
        """
        return self._take(root, directory, name, None, partial(_digest, root))

    def _take(
        self, root: Root, directory: str, first: str, prefix: str | None, stamp: Callable[[str], Stamp | bytes | None]
    ) -> Stamped:
        looked = (first, *(names(root, directory, prefix, self._room) if prefix is not None else ()))
        self._room -= len(looked)
        if self._room < 0:
            raise _too_many(root, directory)
        found: list[tuple[str, Stamp | bytes | None]] = []
        for name in looked:
            self.look_at_clock()
            found.append((name, stamp(posixpath.normpath(f"{directory}/{name}"))))  # of a file there is no `/.`
        return frozenset(found)

    def look_at_clock(self) -> None:
        """Raises: Refusal SANDBOX_UNAVAILABLE where the look takes long."""
        if time.monotonic() > self._until:
            raise too_much("what git has in hand in")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the indexes of however many repositories."""

    until: float
    stamps: Stamps | None = None
    """None where no command may write an index: names in it are not looked at then."""

    def at_clock(self) -> None:
        """Raises: Refusal SANDBOX_UNAVAILABLE where the look takes long."""
        if time.monotonic() > self.until:
            raise too_much("the indexes of the git repositories in")


def _digest(root: Root, path: str) -> Stamp | bytes | None:
    """Return a digest of a file; the stamp of what cannot be read, or is too large to be looked through."""
    try:
        return hashlib.sha256(root.read(path, limits.SANDBOX_INDEX_BYTES)[0]).digest()
    except Refusal as refused:
        if shortage.is_behind(refused):
            raise
        return root.stamp(path)


def in_hand(root: Root, path: str, stamps: Stamps, workspace: Root | None = None) -> dict[str, Stamped]:
    """Return what git has in hand in a repository and its linked worktrees, with the stamps of all that it goes by; and
    those of these worktrees whose tree is not in the workspace: `git worktree repair` writes a gitfile there, wherever
    that is.

    Args:
        workspace: None where it is `root`.
    Raises: OSError, Refusal as `Stamps.take` does.
    """
    below = "" if path == "." else path + "/"
    worktrees = [f"{below}{WORKTREES}/{name}" for name in names(root, below + WORKTREES)]
    found: dict[str, Stamped] = {}
    for top in (below, *(f"{worktree}/" for worktree in worktrees)):
        stamps.look_at_clock()
        # An empty file is what git leaves once a conflict is resolved.
        there = (place for name in _IN_HAND if root.is_filled(place := top + name))
        found |= {place: stamps.take(root, place) for place in there}
    for worktree in worktrees:
        stamps.look_at_clock()
        if _leads_out(root, worktree, root if workspace is None else workspace):
            found[worktree] = stamps.take_content(root, worktree, "gitdir")
    return found


def _leads_out(root: Root, worktree: str, workspace: Root) -> bool:
    """Return whether the tree of a linked worktree is not in the workspace, or not to be told."""
    place = f"{worktree}/gitdir"
    if not root.is_filled(place):
        return False
    said = gitways.pointed(gitconfig.text(root, place), string.whitespace)
    tree = posixpath.dirname(posixpath.join(root.path, worktree, said))
    return not said or gitways.follow(workspace, tree).end is None


def names(root: Root, directory: str, prefix: str = "", most: int | None = None) -> list[str]:
    """Return the names that lie in a directory and begin with `prefix`; none where it cannot be listed.

    Raises: OSError for a shortage.
    """
    try:
        descriptor = root.open_listing(directory)
        try:
            with os.scandir(descriptor) as entries:
                found = (entry.name for entry in entries)
                return list(itertools.islice((name for name in found if name.startswith(prefix)), most))
        finally:
            os.close(descriptor)
    except OSError as error:
        if shortage.is_behind(error):
            raise
        return []


def too_much(what: str) -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"Looking through {what} the workspace took over {limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was started.",
        next_step="Ask the operator to look at the size of their `index` files and the number of their worktrees, or "
        "to register a smaller directory.",
    )


def too_many_submodules() -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "The indexes of the git repositories in the workspace name more submodules than can be looked at. Nothing was "
        "started.",
        next_step="Ask the operator to remove repositories that commands left in the workspace (`find . -name .git`), "
        "or to register a smaller directory.",
    )


def _too_many(root: Root, directory: str) -> Refusal:
    place = display(posixpath.normpath(posixpath.join(root.path, directory)), limit=200)
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"What git goes by in {place} is too many files to be looked at, {_MOST_STAMPS:,} at most with what it has in "
        "hand elsewhere in the workspace. Nothing was started.",
        next_step="Ask the operator to look at what lies there: `git rebase --abort` and `git am --abort` end what git "
        "has in hand.",
    )
