"""Links on the way to protected paths, and the places that they lead to.

`.vscode/tasks.json` is protected by that name. With `.vscode -> build` an editor reads `build/tasks.json`, which no
glob says anything of. Nothing is opened here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Root
from codespace.sandbox import gitways

_SPECIAL: Final = re.compile(r"[*?\[\]\\]")


@dataclass(frozen=True, slots=True)
class Detours:
    """What was found below one root."""

    links: tuple[str, ...] = ()
    """Relative to the root."""
    globs: tuple[str, ...] = ()
    """Of what is protected behind them."""


def look(root: Root, protected: Iterable[str]) -> Detours:
    """Return the links on the way to what globs protect at one place. What a name of any depth protects has no way."""
    links: dict[str, None] = {}
    globs: dict[str, None] = {}
    for glob in protected:
        directory, rest = _placed(glob)
        if not directory:
            continue
        way = gitways.follow(root, posixpath.join(root.path, directory))
        links |= dict.fromkeys(way.links)
        if way.links and way.end is not None:
            globs[posixpath.normpath("/" + _SPECIAL.sub("?", way.end)) + "/" + rest] = None
    return Detours(tuple(links), tuple(globs))


def _placed(glob: str) -> tuple[str, str]:
    """Return the directories that a glob begins with, spelled out, and the rest of it."""
    names = glob.strip("/").split("/")
    plain = next((at for at, name in enumerate(names) if _SPECIAL.search(name)), len(names))
    end = min(plain, len(names) - 1)
    return "/".join(names[:end]), "/".join(names[end:])
