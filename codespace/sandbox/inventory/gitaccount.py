"""The configuration of git that lies outside of every workspace: the account's own and the machine's.

It holds for every repository in a workspace, and it may name what lies in one. No command can write it, unless the way
to it leads through a workspace. What a look at it found stands for a while, as it is asked for before every run.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import pwd
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from codespace.sandbox import shortage
from codespace.sandbox.inventory import gitsettings
from codespace.sandbox.inventory.gitsettings import Named
from codespace.sandbox.lasting import Look

BYTES: Final = 1_048_576
"""Largest configuration that is read."""
FILES: Final = 64
"""Most configurations that are read for one repository; git itself stops at ten, one in another."""
_MACHINE: Final = ("/etc/gitconfig", "/usr/local/etc/gitconfig", "/opt/homebrew/etc/gitconfig")
_VARIABLES: Final = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")


@dataclass(frozen=True, slots=True)
class Account:
    """What a look found."""

    files: tuple[str, ...] = ()
    """Where git looks for configuration, absolute, and what that includes in turn; each may be a link, or missing."""
    named: tuple[Named, ...] = ()
    """What it names but for more configuration."""


def recall() -> Account:
    """Return what the configuration of the daemon's account and of the machine says, at most half a minute old."""
    return _LAST.recall(tuple(map(os.environ.get, _VARIABLES)))


def look(files: Iterator[str]) -> Account:
    """Return what configurations name, and those that they include. Blocks."""
    left = deque(dict.fromkeys(files))
    seen: dict[str, None] = {}
    named: dict[Named, None] = {}
    while left and len(seen) < FILES:
        path = left.popleft()
        if path in seen:
            continue
        seen[path] = None
        for each in gitsettings.named(text(path)):
            if each.kind == "configuration":
                left.append(beside(path, each.path))
            elif each.kind != "top":  # that is one repository's to say
                named[each] = None
    return Account(tuple(seen), tuple(named))


def starts(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield where git looks for the configuration of the machine and of the account, missing ones among them.

    Source: FILES in git-config(1).
    """
    yield from (path for path in (environ.get("GIT_CONFIG_SYSTEM"), *_MACHINE) if path and posixpath.isabs(path))
    homes = [environ.get("HOME")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.geteuid()).pw_dir)
    folders = [environ.get("XDG_CONFIG_HOME"), *(home and posixpath.join(home, ".config") for home in homes)]
    for path in (
        environ.get("GIT_CONFIG_GLOBAL"),
        *(folder and posixpath.join(folder, "git/config") for folder in folders),
        *(home and posixpath.join(home, ".gitconfig") for home in homes),
    ):
        if path and posixpath.isabs(path):
            yield path


_LAST: Final = Look(lambda: look(starts(os.environ)), Account())


def beside(path: str, said: str) -> str:
    """Return where a path leads that the configuration at `path` includes: relative to the name that git has of it."""
    return posixpath.join(posixpath.dirname(path), posixpath.expanduser(said))


def text(path: str) -> str:
    """Return the text of a configuration outside of a root, as git would read it; empty where there is none.

    Raises: OSError for a shortage.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if shortage.is_behind(error):
            raise
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return content(descriptor)
    finally:
        os.close(descriptor)


def content(descriptor: int) -> str:
    """Return the text of a regular file; empty where it is too large, or cannot be read."""
    parts: list[bytes] = []
    left = BYTES + 1
    try:
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
    except OSError:
        return ""
    return os.fsdecode(b"".join(parts)) if left else ""
