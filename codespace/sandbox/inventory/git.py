"""Git directories: what of them a command may change, so that the next `git` on the host runs no code of its.

A written `.git/config`, hook or `commondir`, or an embedded repository under a path that git enters by
itself, runs programs the next time a person types `git status`. Nothing here runs git.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import re
import stat
import string
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitconfig, gitindex, gitstamps, gitways
from codespace.sandbox.inventory.gitconfig import WORKTREES
from codespace.sandbox.inventory.gitstamps import Look, Stamped, Stamps
from codespace.sandbox.inventory.scan import GitDirectory, Inventory, is_git_name

Mode = Literal["read_only", "commit", "unprotected"]

RULING: Final = ("hooks", "config", "config.worktree", "modules", "commondir", "remotes", "branches", "gitweb")
"""What decides which programs git runs; read-only also where commands may commit. `remotes` and `branches` say where a
push goes that no configuration says anything of: into a repository with hooks of its own. In `gitweb` git-instaweb
looks for the server that it starts."""
_DATA: Final = ("objects", "lfs/objects", "annex/objects")
_PIECES: Final = re.compile(r"/(?:objects/[0-9a-f]{2}|(?:lfs|annex)/objects/[^/]+/[^/]+)")
"""Directories of a repository's data that hold nothing but pieces under names of their own, which a link in its place
keeps from being written; there may be very many."""
NEEDED: Final = ("hooks", "config")
"""Without these a command could make them: there is nothing to mount on. Such a repository stays read-only."""
GUARD: Final = b".\n"
"""A `commondir` that says what is so anyway; where it is, no other can be put there."""
GUARDS: Final[Mapping[str, bytes | None]] = {
    "commondir": GUARD,
    "config.worktree": b"",
    "modules": None,
    "remotes": None,
    "branches": None,
    "gitweb": None,
}
"""What is made where it is missing, and changes nothing; None: a directory. With another `commondir` or
`config.worktree` the next git would run its programs; of `modules` the next `git submodule update` believes that it
has cloned what lies there."""
_OF_WORKTREE: Final = ("commondir", "gitdir")
"""Without these it is no linked worktree."""
_GUARDS_OF_WORKTREE: Final[Mapping[str, bytes | None]] = {"config.worktree": b"", "modules": b"", "gitweb": None}
# With a directory `modules` it would be taken for one with submodules, and `git worktree remove` would refuse. Where
# there are submodules it must be one, or git could not clone them.
_SMALL_BYTES: Final = 4096
_LOOKED_AT_ONCE: Final = 1_024  # most submodules between two looks at the clock
_PLACES_BYTES: Final = 67_108_864  # most that the names of all places where git expects one may take


def split(
    root: Root, found: GitDirectory, mode: Mode, named: gitconfig.Found, until: float
) -> tuple[list[str], list[str]]:
    """Return the paths of a git directory that are writable mounts, and those that are read-only.

    In the mode `commit` a missing guard is made, the one thing that the sandbox ever puts anywhere.

    Args:
        named: What the configuration of all repositories names below the root.
        until: As `links` has it.
    """
    if found.kind == "link":
        return [], []
    if mode == "read_only" or found.kind == "gitfile":
        return [], [found.path]
    return committing(root, found.path, root.path, named, until)


def committing(
    root: Root, path: str, workspace: str, named: gitconfig.Found, until: float
) -> tuple[list[str], list[str]]:
    """Return what `split` does in the mode `commit`, for the repository at `path` below any root.

    A linked worktree's own part is open only where its tree lies in the workspace: a command that could change which
    repository another's belongs to would run programs in that one. A repository with a link where git writes stays
    read-only: what git wrote next would go where the link leads. So does one that takes long to look through for links,
    and one whose working tree is elsewhere, which git would not ask its configuration for any more where there is a
    `commondir`.
    """
    below = "" if path == "." else path + "/"
    inside = {place: is_pushed for place, is_pushed in named.items() if _is_open(place, path, below)}
    needed = [*(below + name for name in NEEDED), *(place for place, is_pushed in inside.items() if not is_pushed)]
    if path in inside or not all(_kind(root, place) for place in needed) or any(links(root, path, until)):
        return [], [path]
    if gitconfig.tops(root, GitDirectory(path, "bare")):
        return [], [path]
    if not _guarded(root, below, GUARDS):
        return [], [path]
    has_worktrees = _kind(root, below + WORKTREES)
    own, others = _worktrees(root, below + WORKTREES, workspace, until) if has_worktrees else ([], [])
    opened = [place for place in inside if not any(place.startswith(f"{other}/") for other in others)]
    if not all(_kind(root, place) or _made(root, place) for place in opened):
        return [], [path]
    ruling = [below + name for name in RULING if _kind(root, below + name)]
    return [path, *own], [*ruling, *others, *opened]


def _is_open(place: str, path: str, below: str) -> bool:
    """Return whether a place is the repository itself, or lies in it where nothing else closes it."""
    return place == path or (place.startswith(below) and place[len(below) :].partition("/")[0] not in RULING)


def deadline() -> float:
    """Return until when a look for links that begins now may take, in however many repositories."""
    return time.monotonic() + limits.SANDBOX_SCAN_SECONDS


def links(root: Root, path: str, until: float) -> Iterator[str]:
    """Yield the links in a repository, and what cannot be looked into: but for where no command writes, and for its
    data one by one. One that takes long stands for what was not looked at of it.

    Args:
        until: The `deadline` of the whole look.
    Raises: OSError for a shortage.
    """
    return _links(root, path, (path,), until)


def links_among_data(root: Root, path: str, until: float) -> Iterator[str]:
    """Yield those of `links` that lie where `scan` does not look: git writes to some names there through a link, and
    what it keeps lands in any directory that one leads to."""
    return _links(root, path, (posixpath.join(path, name) for name in _DATA), until)


def _links(root: Root, path: str, starts: Iterable[str], until: float) -> Iterator[str]:
    without = {posixpath.join(path, name) for name in RULING}
    left = list(starts)
    while left:
        if time.monotonic() > until:
            yield path
            return
        directory = left.pop()
        try:
            entries = _listed(root, directory)
        except FileNotFoundError:
            continue  # git removes empty directories
        except OSError as error:
            if shortage.is_behind(error):
                raise
            yield directory
            continue
        places = ((posixpath.join(directory, name), kind) for name, kind in entries)
        kept = [(place, kind) for place, kind in places if place not in without]
        yield from (place for place, kind in kept if kind == "link")
        left += [place for place, kind in kept if kind == "directory" and not _PIECES.fullmatch(place, len(path))]


def _listed(root: Root, directory: str) -> list[tuple[str, str]]:
    """Return the names of links and directories, and which it is: of some filesystems that is asked through the
    descriptor. Of files there may be very many."""
    descriptor = root.open_listing(directory)
    try:
        with os.scandir(descriptor) as entries:
            kinds = ((entry.name, _kind_of(entry)) for entry in entries)
            return [(name, kind) for name, kind in kinds if kind != "file"]
    finally:
        os.close(descriptor)


def _kind_of(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "directory" if entry.is_dir(follow_symlinks=False) else "file"


def _worktrees(root: Root, path: str, workspace: str, until: float) -> tuple[list[str], list[str]]:
    """Return the writable and the read-only mounts in a repository's `worktrees`; all of it, if it cannot be read, or
    takes long."""
    writable = [path]
    closed: list[str] = []
    try:
        descriptor = root.open_listing(path)
    except OSError:
        return [], [path]
    try:
        names = os.listdir(descriptor)
    finally:
        os.close(descriptor)
    for name in names:
        below = f"{path}/{name}/"
        try:
            Look(until).at_clock()
            is_open = _tree_in(root, below, workspace) and _guarded(root, below, _guards(root, f"{path}/{name}", until))
        except Refusal as refused:
            if shortage.is_behind(refused):
                raise
            return [], [path]
        if is_open:
            writable.append(f"{path}/{name}")
            closed += [below + part for part in (*_OF_WORKTREE, *RULING) if _kind(root, below + part)]
        elif _kind(root, f"{path}/{name}") or _is_there(root, f"{path}/{name}"):  # the second: also by an odd name
            closed.append(f"{path}/{name}")
    return writable, sorted(set(closed))


def _guards(root: Root, worktree: str, until: float) -> Mapping[str, bytes | None]:
    repository = GitDirectory(posixpath.dirname(posixpath.dirname(worktree)) or ".", "bare")
    has_submodules = not _kind(root, f"{worktree}/modules") and bool(
        _indexed(root, worktree, repository, Look(until)).expected
    )
    return {**_GUARDS_OF_WORKTREE, "modules": None} if has_submodules else _GUARDS_OF_WORKTREE


def _tree_in(root: Root, below: str, workspace: str) -> str | None:
    """Return where the tree of a linked worktree is; None where that is not in the workspace."""
    if not all(_kind(root, below + name) for name in _OF_WORKTREE):
        return None
    try:
        data, _ = root.read(below + "gitdir", _SMALL_BYTES)
    except Refusal:
        return None
    said = gitways.pointed(os.fsdecode(data), string.whitespace)
    gitfile = os.path.join(root.path, below, said)  # git 2.48 can make it relative
    tree = os.path.dirname(os.path.normpath(gitfile))
    return tree if f"{tree}/".startswith(workspace.rstrip("/") + "/") else None


def _guarded(root: Root, below: str, guards: Mapping[str, bytes | None]) -> bool:
    """Return whether each guard is there, made where it was missing."""
    for name, content in guards.items():
        try:
            if _kind(root, below + name):
                continue
            if content is None:
                root.make_directory(below + name, 0o755)
            else:
                root.create(below + name, content, 0o644)
        except (FileExistsError, Refusal):
            return False
    return True


def _made(root: Root, path: str) -> bool:
    """Return whether an empty directory could be made at `path`, with those above it.

    With hooks in it, git would run them the next time that somebody pushes into the repository.
    """
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        above = "/".join(parts[:end])
        try:
            if root.look(above) is None:
                root.make_directory(above, 0o755)
        except (FileExistsError, Refusal):
            return False
    return _kind(root, path)


def _kind(root: Root, path: str) -> bool:
    """Return whether a file or directory is there; a link counts as nothing, so that it is never mounted on."""
    try:
        status = root.look(path)
    except Refusal as refused:
        if shortage.is_behind(refused):
            raise
        return False
    return status is not None and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


@dataclass(frozen=True, slots=True)
class Submodules:
    """What git takes for submodules, by its indexes."""

    places: Mapping[str, bool]
    """Each path at which it expects one, and whether a directory is there: a repository put there is entered by the
    host's next `git status`."""
    entered: frozenset[str]
    """The `.git` of each repository that stands at one."""
    unread: Mapping[str, Stamped]
    """The git directory of each whose index cannot be looked through, and what tells that from another where a command
    may write it: what the other has git do is as little known."""


@dataclass(frozen=True, slots=True)
class _Index:
    """What an index says."""

    expected: Sequence[str] = ()
    unread: Stamped | None = None
    """What tells it from another where it cannot be looked through; of one that no command writes, nothing."""


def submodules(root: Root, inventory: Inventory, *, checked: bool = False, outside: Sequence[str] = ()) -> Submodules:
    """Return the submodules of all repositories that lie below the root or have it in their trees.

    Args:
        checked: Whether the names in their indexes are looked at too, as where commands may write those.
        outside: Git directories outside of the root that commands may write to; looked at in the same way.
    Raises: OSError, Refusal for a shortage; Refusal SANDBOX_UNAVAILABLE for what takes long.
    """
    places: dict[str, bool] = {}
    sparse: set[str] = set()
    unread: dict[str, Stamped] = {}
    room = _PLACES_BYTES
    until = deadline()
    unchecked, checking = Look(until), Look(until, Stamps())
    indexes = itertools.chain(
        _indexes_below(root, inventory, checking if checked else unchecked),
        _indexes_above(root, outside, unchecked),
        *(_indexes_outside(root, directory, checking) for directory in outside),
    )
    for top, repository, index in indexes:
        if index.unread is not None:
            unread[repository] = index.unread.union(unread.get(repository, ()))
        for number, (path, is_sparse) in enumerate(_normal(root, top, index.expected)):
            if number % _LOOKED_AT_ONCE == 0:
                unchecked.at_clock()
            room -= len(path)
            if room < 0:
                raise gitstamps.too_many_submodules()
            if is_sparse:
                sparse.add(path)
            elif (there := _is_there(root, path)) is not None:
                places[path] = there
    # Looked for where an index says, as a command can put one where `scan` looks for none: among git's own data.
    entered = {place for path, there in places.items() if there and root.stamp(place := f"{path}/.git") is not None}
    if sparse:
        entered |= {found.path for found in inventory.git if _lies_in_any(found.path, sparse, unchecked)}
    return Submodules(places, frozenset(entered), unread)


def _lies_in_any(path: str, directories: Collection[str], look: Look) -> bool:
    look.at_clock()
    while path := posixpath.dirname(path):
        if path in directories:
            return True
    return False


def _normal(root: Root, top: str, expected: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield what lies below the root of paths from the top of a tree, and whether it stands for all below it.

    git believes `./x` in an index, or `y/../x`.
    """
    own = root.path.rstrip("/") + "/"
    for path in expected:
        whole = "/" + posixpath.normpath(posixpath.join(top, path)).lstrip("/")
        if whole.startswith(own):
            yield whole[len(own) :], path.endswith("/")


def _is_there(root: Root, path: str) -> bool | None:
    """Return whether a directory is there, whatever characters its name has; None where git enters nothing: a file, a
    link, and what is behind one."""
    try:
        os.close(root.open_listing(path))
    except OSError as error:
        if shortage.is_behind(error):
            raise
        return {errno.ENOENT: False, errno.EACCES: True}.get(error.errno or 0)  # what is closed can be gone through
    return True


def _indexes_below(root: Root, inventory: Inventory, look: Look) -> Iterator[tuple[str, str, _Index]]:
    """Yield the top of each working tree, its git directory or gitfile, and what its index says."""
    for found in inventory.git:
        look.at_clock()
        index = _Index() if found.kind == "link" else _index_of(root, found, look)
        beside = posixpath.normpath(posixpath.join(root.path, posixpath.dirname(found.path)))
        for top in (beside, *(gitconfig.tops(root, found) if index.expected else ())):
            yield top, found.path, index


def _indexes_above(root: Root, outside: Sequence[str], look: Look) -> Iterator[tuple[str, str, _Index]]:
    """Yield the same of repositories that the root lies in the trees of, but for what `_indexes_outside` does."""
    for top, directories in gitconfig.above(root):
        if (place := f"{top}/.git") not in outside:
            yield top, place, _indexed_at(directories[-1], look)


def _indexes_outside(root: Root, directory: str, look: Look) -> Iterator[tuple[str, str, _Index]]:
    """Yield the same of a git directory outside and of its linked worktrees in the root, but for the root itself.

    One that is not called `.git` may lie in its tree, wherever that begins: what is expected in it, a command can put
    there, so such an index is as one that cannot be looked through.
    """
    with Root.open(directory) as repository:
        itself = GitDirectory(".", "bare")
        index = _indexed(repository, ".", itself, look)
        if not is_git_name(posixpath.basename(directory)):
            led = any(_leads_into(directory, path) for path in index.expected)
            index = _unread(repository, ".", look) if led else _Index(unread=index.unread)
        yield posixpath.dirname(directory), directory, index
        for name in gitstamps.names(repository, WORKTREES):
            look.at_clock()
            own = f"{WORKTREES}/{name}"
            tree = _tree_in(repository, f"{own}/", root.path)
            if tree is not None and tree != root.path:
                yield tree, f"{directory}/{own}", _indexed(repository, own, itself, look)


def _leads_into(directory: str, path: str) -> bool:
    """Return whether a path in an index leads into a git directory, if its tree begins anywhere above that; or to what
    has it in it, where it stands for all below."""
    parts = directory.strip("/").split("/")
    places = ["/".join(parts[at:]) + "/" for at in range(len(parts))]
    whole = f"{posixpath.normpath(path)}/"
    return any(whole.startswith(own) or (path.endswith("/") and own.startswith(whole)) for own in places)


def _index_of(root: Root, found: GitDirectory, look: Look) -> _Index:
    """Return what the index of a repository says, wherever it is: a submodule's and a worktree's lie elsewhere.

    Outside of the root only that of the root itself is looked for: which place on this machine is opened is not a
    command's to say.
    """
    if found.kind != "gitfile":
        return _indexed(root, found.path, found, look)  # a bare one has one where it is told of a tree
    directory = gitconfig.leads_to(root, found.path)
    own = root.path.rstrip("/") + "/"
    if directory.startswith(own):
        return _indexed(root, directory[len(own) :], found, look)
    return _indexed_at(directory, look) if found.path == ".git" else _Index()


def _indexed(root: Root, directory: str, repository: GitDirectory, look: Look) -> _Index:
    return _index(root, directory, partial(gitconfig.object_bytes, root, repository), look)


def _indexed_at(directory: str, look: Look) -> _Index:
    try:
        elsewhere = Root.open(directory)
    except (Refusal, ValueError) as problem:
        if shortage.is_behind(problem):
            raise
        return _Index()
    with elsewhere:
        return _index(elsewhere, ".", partial(gitconfig.object_bytes_of, directory), look)


def _index(root: Root, directory: str, object_bytes: Callable[[], int], look: Look) -> _Index:
    is_checked = look.stamps is not None
    expected = gitindex.expected(root, directory, object_bytes, look.at_clock, checked=is_checked)
    return _unread(root, directory, look) if expected is None else _Index(expected)


def _unread(root: Root, directory: str, look: Look) -> _Index:
    return _Index(unread=frozenset() if look.stamps is None else look.stamps.take_index(root, directory))


def common_directory(root_path: str) -> str | None:
    """Return the git directory outside the root that a worktree at `root_path` belongs to; None where there is none.

    The gitfile in the root could have been written by a command, so it is believed only where the place that
    it names says in turn that its worktree is here: that file no command can have written, as it lies outside the
    root. And no more is opened than the repository that this place is in (`worktrees/NAME`, as git makes it),
    whatever its `commondir` says.
    """
    gitfile = os.path.join(root_path, ".git")
    named = _pointed(gitfile, "gitdir: ")
    if named is None:
        return None
    directory = os.path.realpath(os.path.join(root_path, named))
    back = _pointed(os.path.join(directory, "gitdir"), "")
    if back is None or os.path.realpath(os.path.join(directory, back)) != os.path.realpath(gitfile):
        return None
    common = _pointed(os.path.join(directory, "commondir"), "")
    if common is None:
        return None
    found = os.path.realpath(os.path.join(directory, common))
    own = f"{os.path.realpath(root_path).rstrip('/')}/"
    inside = any(f"{place}/".startswith(own) for place in (directory, found))
    if inside or os.path.dirname(directory) != os.path.join(found, "worktrees") or not os.path.isdir(found):
        return None
    return found


def _pointed(path: str, prefix: str) -> str | None:
    """Return the path in a small regular file behind `prefix`; None where there is none such."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if shortage.is_behind(error):
            raise
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        line = gitways.pointed(os.fsdecode(os.read(descriptor, _SMALL_BYTES)))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return line[len(prefix) :] if line.startswith(prefix) and len(line) > len(prefix) else None
