"""Other names, in the same root, of files that no command may change.

A hard link has no inside: what is written under one name is there under all. A command that makes `.envrc`, or a
repository, can give its files second names before anybody knows that they are to be protected, and write through those
later. Such links are rare, so the tree is looked through for them only where a protected file has more than one name.
Names outside the root are told by `hardlinks`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterator
from typing import Final

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitstamps
from codespace.sandbox.inventory.git import RULING
from codespace.sandbox.inventory.gitconfig import WORKTREES
from codespace.sandbox.inventory.scan import GitDirectory, Inventory

_DATA: Final = frozenset({"objects", "logs", "refs", "lfs"})
"""Directories of a submodule's repository that hold much and decide nothing; elsewhere such a name says nothing."""
_OF_WORKTREE: Final = (*RULING, "gitdir")
"""What decides which programs git runs in a linked worktree, and which one that is."""


def names(root: Root, inventory: Inventory, *, git: bool) -> set[str]:
    """Return every name of protected files that have more than one, the protected ones among them. Blocks.

    Args:
        git: Whether git directories are protected.
    Raises: Refusal SANDBOX_UNAVAILABLE where the tree is too large to be looked through; OSError for a shortage.
    """
    deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS
    ruling = itertools.chain.from_iterable(_ruling(root, found, deadline) for found in inventory.git if git)
    linked = itertools.chain(
        (_linked(root, place, deadline) for place in inventory.protected),
        (_linked(root, place, deadline, _DATA) for place in ruling),
    )
    files = {_identity(status) for _, status in itertools.chain.from_iterable(linked)}
    return {path for path, status in _linked(root, ".", deadline) if _identity(status) in files} if files else set()


def _ruling(root: Root, found: GitDirectory, deadline: float) -> Iterator[str]:
    """Yield what decides in a repository, one after another: a command can make as many worktrees as it likes. They are
    not counted, or those that it makes first would keep others from being looked at."""
    if found.kind == "gitfile":
        yield found.path
    elif found.kind != "link":
        below = "" if found.path == "." else f"{found.path}/"
        yield from (below + name for name in RULING)
        for worktree in _entries(root, below + WORKTREES):
            if time.monotonic() > deadline:
                raise gitstamps.too_much("the linked worktrees of the git repositories in")
            own = f"{below}{WORKTREES}/{worktree.name}"
            if worktree.is_dir(follow_symlinks=False) and root.stamp(f"{own}/commondir") is not None:  # else it is none
                yield from (f"{own}/{name}" for name in _OF_WORKTREE)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _linked(
    root: Root, path: str, deadline: float, without: frozenset[str] = frozenset()
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each file with several names that `path` is, or that lies below it."""
    try:
        # A link on the way would only add files; and a name of any characters is taken.
        status = os.stat(path, dir_fd=root.fd, follow_symlinks=False)
    except OSError:
        return
    left = [path] if stat.S_ISDIR(status.st_mode) else []
    if not left:
        yield from _several(path, status)
    while left:
        if time.monotonic() > deadline:
            raise _too_large()
        directory = left.pop()
        prefix = "" if directory == "." else directory + "/"
        for entry in _entries(root, directory):
            if entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield from _several(prefix + entry.name, entry.stat(follow_symlinks=False))
            elif entry.is_dir(follow_symlinks=False) and entry.name not in without:
                left.append(prefix + entry.name)


def _several(path: str, status: os.stat_result) -> Iterator[tuple[str, os.stat_result]]:
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        yield path, status


def _entries(root: Root, directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        descriptor = root.open_listing(directory)
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)
    except OSError as error:
        if shortage.is_behind(error):
            raise
        return  # it went, or is closed: `scan` has noted that


def _too_large() -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "A protected file has a second name (a hard link), and looking for it in the workspace took over "
        f"{limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was started.",
        next_step="Ask the operator to part such files (`cp -p FILE FILE.own && mv FILE.own FILE`; to find them: "
        "`find . -type f -links +1`), or to register a smaller directory.",
    )
