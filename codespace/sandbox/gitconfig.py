"""What a repository's own configuration makes git run, or believe, that lies in the workspace: hooks and the like.

`include.path = ../.gitconfig` and `core.hooksPath = tools/hooks` are the operator's choice, and from then on who writes
such a file chooses what runs at the next git command on the host. Nothing here runs git; only the repository at the
root is looked at.

Source: git-config(1).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator
from typing import Final

from codespace.beneath import Root
from codespace.errors import Refusal

_BYTES: Final = 1_048_576
_FILES: Final = 20
# Configurations that are read for one repository; git itself stops at ten, one in another.
_SECTION: Final = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*("(?:[^"\\]|\\.)*")?\s*\]')
_PART: Final = re.compile(r'\\(.)|(")|([#;])|(.)')
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b"}


def places(root: Root, common: str | None = None) -> tuple[str, ...]:
    """Return a glob for each place below `root` that the configuration of its repository names.

    Args:
        common: The git directory outside the root that a worktree belongs to; None where there is none.
    """
    found: dict[str, None] = {}
    for directory, text in _configurations(root, common, found):
        for section, key, value in _settings(text):
            base = {("include", "path"): directory, ("core", "hookspath"): root.path}.get((section, key))
            place = None if base is None else _inside(root, posixpath.join(base, posixpath.expanduser(value)))
            if place is not None:
                found[place] = None
    return tuple("/" + re.sub(r"[*?\[\]\\]", "?", place) for place in found)


def _configurations(root: Root, common: str | None, named: dict[str, None]) -> Iterator[tuple[str, str]]:
    """Yield each configuration with the directory that it is in: those of the repository, then what is in `named`."""
    if common is not None:
        with contextlib.suppress(Refusal), Root.open(common) as outside:
            yield common, _text(outside, "config")
    seen: set[str] = set()
    while len(seen) < _FILES:
        path = next((path for path in (".git/config", ".git/config.worktree", *named) if path not in seen), None)
        if path is None:
            return
        seen.add(path)
        yield posixpath.join(root.path, posixpath.dirname(path)), _text(root, path)


def _text(root: Root, path: str) -> str:
    try:
        return os.fsdecode(root.read(path, _BYTES)[0])
    except Refusal:
        return ""


def _inside(root: Root, path: str) -> str | None:
    above = root.path.rstrip("/") + "/"
    path = posixpath.normpath(path)
    return path[len(above) :] if path.startswith(above) else None


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each setting; section and key in small letters, without a subsection."""
    section = ""
    for line in text.replace("\r\n", "\n").replace("\\\n", "").split("\n"):
        left = line.strip()
        while found := _SECTION.match(left):
            section = found[1].lower().partition(".")[0]
            left = left[found.end() :].strip()
        key, equals, value = left.partition("=")
        if equals:
            yield "include" if section == "includeif" else section, key.strip().lower(), _plain(value.strip())


def _plain(value: str) -> str:
    """Return a value without its quotes, escapes and comment."""
    kept: list[str] = []
    quoted = False
    for escaped, quote, comment, letter in _PART.findall(value):
        if comment and not quoted:
            break
        quoted ^= bool(quote)
        kept.append(_ESCAPES.get(escaped, escaped) if escaped else letter or comment)
    return "".join(kept).rstrip()
