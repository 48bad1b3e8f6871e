"""Links on the way to protected paths, and the places that they lead to.

`.vscode/tasks.json` is protected by that name. With `.vscode -> build` an editor reads `build/tasks.json`, which no
glob says anything of. Nothing but directories is opened here.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Hidden, Root
from codespace.beneath.names import fold
from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitways
from codespace.sandbox.inventory.scan import is_git_name

_EVERYTHING: Final = "/**"
_SPECIAL: Final = re.compile(r"[*?\[\]\\]")
_LINKS: Final = 1_024
# Most that one look follows, some ten milliseconds; of their ends no more than SANDBOX_BINDS could be mounted.
_NAMES: Final = 16_384
# Most that it looks at; an agent's plugins with all that they depend on are a few thousand files.
_DEPTH: Final = 32  # of directories in one that is protected
BOUNDS: Final = f"{_LINKS:,} links, {_NAMES:,} names, {_DEPTH} directories deep"
"""For people."""
_DATA: Final = frozenset(
    (
        *(f"{agent}/worktrees" for agent in (".claude", ".gemini", ".kilo", ".kilocode")),
        *(f"{store}/store/{data}" for store in (".hg", ".sl") for data in ("data", "dh", "meta")),
        *(f".jj/repo/{data}" for data in ("index", "op_store", "store/git")),
    )
)
"""Whole checkouts that agents keep for themselves, and histories: very much, and nothing there runs by its name."""


@dataclass(frozen=True, slots=True)
class Detours:
    """What was found below one root."""

    links: tuple[str, ...] = ()
    """Relative to the root."""
    globs: tuple[str, ...] = ()
    """Of what is protected behind them."""
    lost: tuple[str, ...] = ()
    """Those that nothing can be protected behind, as everybody comes to another place by them."""
    blind: tuple[str, ...] = ()
    """Directories where not every link was followed: too much lies there, or it can be entered and not listed."""


class Blind(Exception):
    """Not every link was followed. Its argument is the directory."""


def look(root: Root, protected: Iterable[str], named: Iterable[str] = ()) -> Detours:
    """Return the links on the way to what globs protect at one place, and where those lead that lie in what is
    protected as a whole. Of what a name of any depth protects, that at the root counts.

    Args:
        named: More globs, of what git's configuration names: it knows itself which links there count, and among
            hundreds in `node_modules/.bin` that is one.
    """
    links: dict[str, None] = {}
    globs: dict[str, None] = {}
    lost: dict[str, None] = {}
    protected = tuple(protected)
    placed = [_placed(glob) for glob in (*protected, *named)]
    ways = {
        directory: gitways.follow(root, posixpath.join(root.path, directory))
        for directory in dict.fromkeys(directory for directory, _ in placed if directory)
    }
    for directory, rest in placed:
        if not directory:
            continue
        way = ways[directory]
        links |= dict.fromkeys(way.links)
        if way.links and way.end is not None:
            globs[_glob(way.end, rest)] = None
        if way.links and way.is_anybodys:
            lost[way.links[-1]] = None
    walk = _Walk(root)
    for path, way in walk.within(_wholes(walk, protected)):
        # The first cannot be changed, or is in what is told as a whole; in a circle it comes again.
        links |= dict.fromkeys(link for link in way.links[1:] if link != path)
        if way.end is not None:
            globs[_glob(way.end, "")] = None
        if way.is_anybodys:
            lost[path] = None
    return Detours(tuple(links), tuple(globs), tuple(lost), tuple(walk.blind))


def behind(root: Root, protected: Iterable[str], named: Iterable[str] = ()) -> dict[str, str]:
    """Return globs of the places that links make protected, and for each the link: those on the way, as `look` finds
    them, those that lie in what is protected, and those that stand under a protected name themselves. A command is
    refused for the last; a patch is not. `named` is as in `look`.

    Of what a name of any depth protects, links at the root count. Raises: Blind; OSError for a shortage.
    """
    found: dict[str, str] = {}
    walk = _Walk(root)
    wholes: list[str] = []
    for step in walk.along(tuple(protected), tuple(named)):
        if step.is_anybodys:
            found[_EVERYTHING] = step.path
        if step.is_link and step.end is not None:
            found |= {_glob(step.end, "/".join(rest)): step.path for rest in step.below}
        wholes.extend(step.wholes)
    for path, way in walk.within(wholes):
        if way.is_anybodys:
            found[_EVERYTHING] = path
        elif way.end is not None:
            found[_glob(way.end, "")] = path
    for directory in walk.blind:
        raise Blind(directory)
    return found


def _wholes(walk: _Walk, protected: tuple[str, ...]) -> list[str]:
    return [directory for step in walk.along(protected) for directory in step.wholes]


@dataclass(frozen=True, slots=True)
class _Step:
    """A link or a directory on the way to what is protected."""

    path: str
    is_link: bool
    end: str | None
    is_anybodys: bool
    below: _Rests

    @property
    def wholes(self) -> tuple[str, ...]:
        """Where everything below is protected; what git directories hold follows rules of its own."""
        whole = self.end is not None and () in self.below and not is_git_name(posixpath.basename(self.path))
        return (self.end,) if whole and self.end is not None else ()


class _Walk:
    """One look at a root. It ends where bounds are reached, and `blind` says so."""

    def __init__(self, root: Root) -> None:
        self.blind: dict[str, None] = {}
        self._root = root
        self._links = _LINKS
        self._names = _NAMES

    def along(self, protected: tuple[str, ...], named: tuple[str, ...] = ()) -> Iterator[_Step]:
        """Yield what globs name, as far as it is a link or a directory. Raises: OSError for a shortage."""
        left = [(".", _split(protected, named))]
        while left:
            directory, rests = left.pop()
            for name, is_link, below in _on_the_way(self._root, directory, rests):
                path = name if directory == "." else f"{directory}/{name}"
                if not self._may_go_on(directory, is_link=is_link):
                    return
                way = self._follow(path) if is_link else None
                end = path if way is None else way.end
                yield _Step(path, is_link, end, way is not None and way.is_anybodys, below)
                if end is not None and (further := tuple(rest for rest in below if any(rest))):
                    left.append((end, further))  # shorter each time, so a circle of links ends

    def within(self, directories: Iterable[str]) -> Iterator[tuple[str, gitways.Way]]:
        """Yield each link that lies in directories, or in what those links lead to, and where it leads, but for what
        leads to a place in the same directory. Raises: OSError for a shortage.
        """
        left = [(directory, directory, 0) for directory in directories]
        seen = {directory for directory, _, _ in left}
        while left:
            directory, top, depth = left.pop()
            if directory == ".":  # everything is protected
                continue
            for name, is_link in self._held(directory):
                if not self._may_go_on(top, is_link=is_link) or depth > _DEPTH:
                    self.blind[top] = None
                    return
                path = f"{directory}/{name}"
                if not is_link:
                    if path not in seen and fold(path) not in _DATA and not is_git_name(name):
                        seen.add(path)
                        left.append((path, top, depth + 1))
                    continue
                way = self._follow(path)
                is_beyond = way.end is None or not f"{way.end}/".startswith(f"{top}/")
                if is_beyond:
                    yield path, way
                if way.end is not None and way.end not in seen:
                    seen.add(way.end)
                    left.append((way.end, way.end if is_beyond else top, 0 if is_beyond else depth + 1))

    def _follow(self, path: str) -> gitways.Way:
        return gitways.follow(self._root, posixpath.join(self._root.path, path))

    def _may_go_on(self, directory: str, *, is_link: bool) -> bool:
        self._links -= is_link
        self._names -= 1
        if self._links < 0 or self._names < 0:
            self.blind[directory] = None
        return not self.blind

    def _held(self, directory: str) -> Iterator[tuple[str, bool]]:
        """Yield what a directory holds and is no file, and whether it is a link; files count as what was looked at."""
        try:
            descriptor = self._root.open_listing(directory)
        except OSError as error:
            if shortage.is_behind(error):
                raise
            if error.errno == errno.EACCES and os.access(directory, os.X_OK, dir_fd=self._root.fd):
                self.blind[directory] = None  # what it holds is opened by whoever knows the name
            return
        try:
            with os.scandir(descriptor) as entries:
                listed = list(itertools.islice(entries, max(self._names, 0) + 1))
            self._names -= len(listed)
            if self._names < 0:
                self.blind[directory] = None
            others = [entry for entry in listed if not entry.is_file(follow_symlinks=False)]
            yield from ((entry.name, entry.is_symlink()) for entry in others)
        finally:
            os.close(descriptor)


_Rests = tuple[tuple[str, ...], ...]
"""The components of globs, from some directory on."""


@functools.lru_cache(maxsize=64)
def _split(globs: tuple[str, ...], named: tuple[str, ...]) -> _Rests:
    """Those of the second kind end with an empty component, as nothing is looked for in what they name."""
    split = (tuple(glob.strip("/").removeprefix("**/").split("/")) for glob in globs)
    ended = ((*glob.strip("/").removeprefix("**/").split("/"), "") for glob in named)
    return tuple(dict.fromkeys((*split, *ended)))


@functools.lru_cache(maxsize=256)
def _by_name(rests: _Rests) -> tuple[dict[str, _Rests], tuple[tuple[Hidden, tuple[str, ...]], ...], Hidden]:
    """Return what comes behind each plain name, folded, and behind each pattern of one name, and all these as one."""
    plain: dict[str, _Rests] = {}
    patterns: list[tuple[Hidden, tuple[str, ...]]] = []
    for first, *more in rests:
        if not _SPECIAL.search(first):
            plain[fold(first)] = (*plain.get(fold(first), ()), tuple(more))
        elif "**" not in first:
            patterns.append((Hidden([f"/{first}"]), tuple(more)))
    return plain, tuple(patterns), Hidden([glob for pattern, _ in patterns for glob in pattern.globs])


def _on_the_way(root: Root, directory: str, rests: _Rests) -> Iterator[tuple[str, bool, _Rests]]:
    """Yield the links and directories in a directory that globs name, whether each is a link, and what comes behind."""
    plain, patterns, any_pattern = _by_name(rests)
    for name, is_link in _listed(root, directory, plain):
        matching: Iterable[tuple[str, ...]] = ()
        if patterns and any_pattern.covers_folded(name):
            matching = (rest for pattern, rest in patterns if pattern.covers_folded(name))
        if below := (*plain.get(fold(name), ()), *matching):
            yield name, is_link, below


def _listed(root: Root, directory: str, names: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield what is no file in a directory, and whether it is a link; where it cannot be listed, links of `names`."""
    try:
        descriptor = root.open_listing(directory)
    except OSError as error:
        if shortage.is_behind(error):
            raise
        if error.errno == errno.EACCES:
            places = ((name, posixpath.join(root.path, directory, name)) for name in names)
            yield from ((name, True) for name, place in places if gitways.follow(root, place).links)
        return
    try:
        with os.scandir(descriptor) as entries:  # most are files, of which the kernel told so with the name
            others = [entry for entry in entries if not entry.is_file(follow_symlinks=False)]
        yield from ((entry.name, entry.is_symlink()) for entry in others)
    finally:
        os.close(descriptor)


def _glob(end: str, rest: str) -> str:
    """Return a glob of what comes behind the place that links lead to, or of that place where nothing does."""
    place = "" if end == "." else "/" + _SPECIAL.sub("?", end)
    return f"{place}/{rest}" if rest else place or _EVERYTHING


def _placed(glob: str) -> tuple[str, str]:
    """Return the directories that a glob begins with, spelled out, and the rest of it."""
    names = glob.strip("/").split("/")
    plain = next((at for at, name in enumerate(names) if _SPECIAL.search(name)), len(names))
    end = min(plain, len(names) - 1)
    return "/".join(names[:end]), "/".join(names[end:])
