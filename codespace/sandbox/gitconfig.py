"""What a repository's own configuration makes git run, or believe, that lies in the workspace: hooks and the like.

`include.path = ../.gitconfig` and `core.hooksPath = tools/hooks` are the operator's choice, and from then on who writes
such a file chooses what runs at the next git command on the host. Nothing here runs git.

Source: git-config(1).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox.scan import GitDirectory

_BYTES: Final = 1_048_576
_FILES: Final = 20
# Configurations that are read for one repository; git itself stops at ten, one in another.
_SECTION: Final = re.compile(r'\s*+\[\s*+([A-Za-z0-9.-]++)\s*+("(?:[^"\\]|\\.)*+")?+\s*+\]')
# It never goes back: a command can have made the configuration that is read.
_PART: Final = re.compile(r'\\(.)|(")|([#;])|(.)')
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b"}


def places(root: Root, common: str | None = None) -> tuple[str, ...]:
    """Return a glob for each place below `root` that the configuration of its repository names.

    Args:
        common: The git directory outside the root that a worktree belongs to; None where there is none.
    """
    found: dict[str, None] = {}
    if common is not None:
        with contextlib.suppress(Refusal), Root.open(common) as outside:
            _note(root, root.path, common, _text(outside, "config"), found)
    _follow(root, root.path, (".git",), found)
    return _globs(found)


def places_of(root: Root, repositories: Iterable[GitDirectory]) -> tuple[str, ...]:
    """Return what `places` does, for all repositories that lie below the root with their configuration."""
    return _globs(paths_of(root, repositories))


def paths_of(root: Root, repositories: Iterable[GitDirectory]) -> Iterable[str]:
    """Return the paths themselves, relative to the root. Raises: Refusal SANDBOX_UNAVAILABLE for what takes long."""
    found: dict[str, None] = {}
    deadline = time.monotonic() + limits.SANDBOX_SCAN_SECONDS
    for repository in repositories:
        if time.monotonic() > deadline:
            raise _too_much()
        own: dict[str, None] = {}
        whole = posixpath.normpath(posixpath.join(root.path, repository.path))
        top = whole if repository.kind == "bare" else posixpath.dirname(whole)
        _follow(root, top, _directories(root, repository), own)
        found |= own
    return found


def repositories(root: Root, directories: Iterable[str]) -> Iterator[GitDirectory]:
    """Yield those that directories are the working trees of."""
    for directory in directories:
        path = ".git" if directory == "." else f"{directory}/.git"
        try:
            status = root.look(path)
        except Refusal:
            continue
        if status is not None and not stat.S_ISLNK(status.st_mode):
            yield GitDirectory(path, "directory" if stat.S_ISDIR(status.st_mode) else "gitfile")


def leads_to(root: Root, gitfile: str) -> str:
    """Return the absolute path that a gitfile names, wherever that is; what cannot be read names its own directory."""
    named = _text(root, gitfile).partition("\n")[0].removeprefix("gitdir: ")
    return posixpath.normpath(posixpath.join(root.path, posixpath.dirname(gitfile), named))


def _directories(root: Root, repository: GitDirectory) -> list[str]:
    """Return where below the root the configuration of a repository lies: a linked worktree has a part of its own."""
    if repository.kind != "gitfile":
        return [repository.path]
    directory = _inside(root, leads_to(root, repository.path))
    if directory is None:
        return []
    said = _text(root, f"{directory}/commondir").partition("\n")[0]
    common = _inside(root, posixpath.join(root.path, directory, said)) if said else None
    return [directory] if common is None else [common, directory]


def _follow(root: Root, top: str, directories: Sequence[str], found: dict[str, None]) -> None:
    """Add to `found` what the configurations in git directories name, and those that they include."""
    starts = [f"{directory}/{name}" for directory in directories for name in ("config", "config.worktree")]
    seen: set[str] = set()
    while len(seen) < _FILES:
        path = next((path for path in (*starts, *found) if path not in seen), None)
        if path is None:
            return
        seen.add(path)
        _note(root, top, posixpath.join(root.path, posixpath.dirname(path)), _text(root, path), found)


def _note(root: Root, top: str, directory: str, text: str, found: dict[str, None]) -> None:
    """Add to `found` what one configuration in `directory` names; hooks are found from the top of the working tree."""
    for section, key, said in _settings(text):
        base = {("include", "path"): directory, ("core", "hookspath"): top}.get((section, key))
        value = "" if base is None else _plain(said)
        if base is None or not value or "\0" in value:
            continue  # an empty one takes no hooks from anywhere
        place = _inside(root, posixpath.join(base, posixpath.expanduser(value)))
        if place is not None and len(found) < limits.SANDBOX_BINDS:  # more could not be mounted
            found[place] = None


def _globs(found: Iterable[str]) -> tuple[str, ...]:
    return tuple("/" + re.sub(r"[*?\[\]\\]", "?", place) for place in found)


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
    """Yield section, key and value of each setting, the value as it is written; section and key in small letters."""
    section = ""
    for line in _lines(text.replace("\r\n", "\n")):
        end = 0
        while found := _SECTION.match(line, end):
            section = found[1].lower().partition(".")[0]
            end = found.end()
        key, equals, value = line[end:].partition("=")
        if equals:
            yield "include" if section == "includeif" else section, key.strip().lower(), value.strip()


def _lines(text: str) -> Iterator[str]:
    """Yield each line, with those joined that a backslash continues; a comment ends with its line."""
    begun: list[str] = []
    for line in text.split("\n"):
        escapes = len(line) - len(line.rstrip("\\"))
        if escapes % 2 and (begun or not line.lstrip().startswith(("#", ";"))):
            begun.append(line[:-1])
        else:
            yield "".join([*begun, line])
            begun = []
    yield "".join(begun)


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


def _too_much() -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "Reading the configuration of the git repositories in the workspace took over "
        f"{limits.SANDBOX_SCAN_SECONDS:g} s. Nothing was started.",
        next_step="Ask the operator to look at the size of their `config` files, or to register a smaller directory.",
    )
