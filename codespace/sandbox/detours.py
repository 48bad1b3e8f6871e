"""Links on the way to protected paths, and the places that they lead to.

`.vscode/tasks.json` is protected by that name. With `.vscode -> build` an editor reads `build/tasks.json`, which no
glob says anything of. Nothing but directories is opened here.
"""

from __future__ import annotations

import errno
import functools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Hidden, Root
from codespace.beneath.names import fold
from codespace.sandbox import gitways, shortage

_EVERYTHING: Final = "/**"
_SPECIAL: Final = re.compile(r"[*?\[\]\\]")


@dataclass(frozen=True, slots=True)
class Detours:
    """What was found below one root."""

    links: tuple[str, ...] = ()
    """Relative to the root."""
    globs: tuple[str, ...] = ()
    """Of what is protected behind them."""
    lost: tuple[str, ...] = ()
    """Those that nothing can be protected behind, as everybody comes to another place by them."""


def look(root: Root, protected: Iterable[str]) -> Detours:
    """Return the links on the way to what globs protect at one place. What a name of any depth protects has no way."""
    links: dict[str, None] = {}
    globs: dict[str, None] = {}
    lost: dict[str, None] = {}
    for glob in protected:
        directory, rest = _placed(glob)
        if not directory:
            continue
        way = gitways.follow(root, posixpath.join(root.path, directory))
        links |= dict.fromkeys(way.links)
        if way.links and way.end is not None:
            globs[_glob(way.end, rest)] = None
        if way.links and way.is_anybodys:
            lost[way.links[-1]] = None
    return Detours(tuple(links), tuple(globs), tuple(lost))


def behind(root: Root, protected: Iterable[str]) -> dict[str, str]:
    """Return globs of the places that links make protected, and for each the link: those on the way, as `look` finds
    them, and those that stand under a protected name themselves. A command is refused for such a one; a patch is not.

    Of what a name of any depth protects, links at the root count. Raises: OSError for a shortage.
    """
    found: dict[str, str] = {}
    left = [(".", _split(tuple(protected)))]
    while left:
        directory, rests = left.pop()
        for name, is_link, below in _on_the_way(root, directory, rests):
            path = name if directory == "." else f"{directory}/{name}"
            way = gitways.follow(root, posixpath.join(root.path, path)) if is_link else None
            end = path if way is None else way.end
            if way is not None and way.is_anybodys:
                found[_EVERYTHING] = path
            if end is None:
                continue
            if is_link:
                found |= {_glob(end, "/".join(rest)): path for rest in below}
            if further := tuple(rest for rest in below if rest):  # shorter each time, so a circle of links ends
                left.append((end, further))
    return found


_Rests = tuple[tuple[str, ...], ...]
"""The components of globs, from some directory on."""


@functools.lru_cache(maxsize=64)
def _split(globs: tuple[str, ...]) -> _Rests:
    return tuple(dict.fromkeys(tuple(glob.strip("/").removeprefix("**/").split("/")) for glob in globs))


@functools.lru_cache(maxsize=256)
def _by_name(rests: _Rests) -> tuple[dict[str, _Rests], tuple[tuple[Hidden, tuple[str, ...]], ...]]:
    """Return what comes behind each plain name, folded, and behind each pattern of one name."""
    plain: dict[str, _Rests] = {}
    patterns: list[tuple[Hidden, tuple[str, ...]]] = []
    for first, *more in rests:
        if not _SPECIAL.search(first):
            plain[fold(first)] = (*plain.get(fold(first), ()), tuple(more))
        elif "**" not in first:
            patterns.append((Hidden([f"/{first}"]), tuple(more)))
    return plain, tuple(patterns)


def _on_the_way(root: Root, directory: str, rests: _Rests) -> Iterator[tuple[str, bool, _Rests]]:
    """Yield the links and directories in a directory that globs name, whether each is a link, and what comes behind."""
    plain, patterns = _by_name(rests)
    for name, is_link in _listed(root, directory, plain):
        matching = (rest for pattern, rest in patterns if (is_link or rest) and pattern.covers_folded(name))
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
