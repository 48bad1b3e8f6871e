"""Which directory may be a root, and what must never lie inside one.

What lies inside a root can be changed by an agent, and what lies inside a readable path can be read
by its commands: so the program's own files, its settings and its secrets lie in neither.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codespace.contract import Workspace
from codespace.settings import kinds
from codespace.settings.answer import ask
from codespace.settings.fault import SettingsError, whole

ANOTHER_PYTHON: Final = (
    "Make CodeSpace's environment from another Python first, such as /usr/bin/python3 "
    "(`/usr/bin/python3 -m venv DIR`), or name a smaller directory."
)
"""Another virtual environment of the same Python would be told the same."""
_FIRST_PERSON = 1000
_NO_LOGIN = frozenset({"nologin", "false"})
# Homes of system accounts (/bin, /var/www, /var/lib/postgresql) and of those that nobody can log in to are nobody's
# home: a service may live in a project, or have all of /srv for its own.


@dataclass(frozen=True, slots=True)
class Guarded:
    """One thing that may lie in no root and no readable path. `fix` says how to move it away."""

    what: str
    path: str
    fix: str
    whole: bool = False
    """A directory of ours: no root and no readable path may lie in it either."""


_OF_THE_KERNEL: Final = ("/proc", "/sys", "/dev")
OF_THE_SANDBOX: Final = ("/proc", "/tmp", "/var/tmp", "/run", "/home/sandbox")  # noqa: S108 - compared, not written to
"""What is the sandbox's own inside; below the host's /tmp a directory may be shown, and of /run one that is named."""


def resolve(key: str, path: str) -> str:
    """Return the real path of a root: links in it are followed here, once, and never again."""
    real, is_there, is_directory = ask(key, path, lambda: _look(path))
    kinds.refuse_undecodable(key, real)
    if not is_there:
        raise SettingsError(key, f"{whole(path)} does not exist.", "Make the directory first, or correct the path.")
    if not is_directory:
        raise SettingsError(key, f"{whole(path)} is not a directory.", "Name a directory.")
    return real


def _look(path: str) -> tuple[str, bool, bool]:
    real = os.path.realpath(path)
    return real, os.path.exists(real), os.path.isdir(real)


def check(workspaces: Mapping[str, Workspace], guarded: Sequence[Guarded], home: str) -> None:
    """Refuse roots that are too wide, that overlap, or that hold what is guarded."""
    homes = ask("workspaces", "A home directory of this machine", lambda: _homes(home))
    for workspace in workspaces.values():
        key = f"workspaces.{workspace.id}.root"
        if workspace.root == "/":
            raise SettingsError(key, "`/` is the whole machine.", "Name the directory of one project.")
        held = next((each for each in homes if within(each, workspace.root)), None)
        if held is not None:
            problem = f"{whole(workspace.root)} is or holds a home directory ({whole(held)})."
            raise SettingsError(key, problem, "Name the directory of one project.")
        for path, where in _open_paths(workspace):
            _refuse_guarded(where, path, guarded)
        _refuse_installation(key, workspace.root)
    _refuse_overlap(list(workspaces.values()))


def installation() -> Iterator[Guarded]:
    """Yield where CodeSpace itself lies: changing these changes what runs outside of every lock."""
    fix = "Install CodeSpace elsewhere, in a virtual environment of its own."
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    yield Guarded("CodeSpace's own code", package, fix)
    if sys.prefix != sys.base_prefix:
        yield Guarded("CodeSpace's own Python", os.path.realpath(sys.prefix), fix)
    yield Guarded("The Python that CodeSpace runs on", os.path.realpath(sys.base_prefix), ANOTHER_PYTHON)


def refuse_own(key: str, path: str) -> None:
    """Refuse a readable path that would take the place of what a sandbox has for itself, or show the host's.

    Raises: SettingsError.
    """
    if any(within(path, place) for place in _OF_THE_KERNEL) or any(within(place, path) for place in OF_THE_SANDBOX):
        raise SettingsError(
            key,
            f"{whole(path)} is or holds what a sandbox has of its own.",
            "Name the directory itself that is needed.",
        )


def within(path: str, directory: str) -> bool:
    """Return whether `path` is `directory` or lies below it; both are real paths."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _open_paths(workspace: Workspace) -> Iterable[tuple[str, str]]:
    where = f"workspaces.{workspace.id}"
    yield workspace.root, f"{where}.root"
    for index, path in enumerate(workspace.readable_paths):
        yield path, f"{where}.readable_paths[{index}]"


def _refuse_guarded(key: str, path: str, guarded: Sequence[Guarded]) -> None:
    for item in guarded:
        if within(item.path, path):
            raise SettingsError(key, f"{item.what} ({whole(item.path)}) lies inside {whole(path)}.", item.fix)
        if item.whole and within(path, item.path):
            raise SettingsError(key, f"{whole(path)} lies inside {whole(item.path)}: {item.what.lower()}.", item.fix)


def _refuse_installation(key: str, root: str) -> None:
    own = [os.path.dirname(os.path.dirname(os.path.realpath(__file__)))]
    if sys.prefix != sys.base_prefix:  # a virtual environment; a system prefix such as /usr holds much else
        own.append(os.path.realpath(sys.prefix))
    for path in own:
        if within(root, path):
            raise SettingsError(
                key, f"{whole(root)} lies inside CodeSpace's own installation.", "Name the directory of a project."
            )


def _refuse_overlap(workspaces: Sequence[Workspace]) -> None:
    for index, later in enumerate(workspaces):
        for earlier in workspaces[:index]:
            if within(later.root, earlier.root) or within(earlier.root, later.root):
                raise SettingsError(
                    f"workspaces.{later.id}.root",
                    f"{whole(later.root)} overlaps the root of `{earlier.id}` ({whole(earlier.root)}).",
                    "Keep one of the two, or choose directories beside each other.",
                )


def _homes(home: str) -> Sequence[str]:
    """Return the real paths of our own homes, by `home` and by our account, and of those of people."""
    own = os.getuid()
    homes = {home, *(entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid == own or _is_person(entry))}
    with contextlib.suppress(KeyError):
        homes.add(pwd.getpwuid(own).pw_dir)  # a directory service may list nobody, and know one who is asked for
    return sorted(os.path.realpath(path) for path in homes if path)


def _is_person(entry: pwd.struct_passwd) -> bool:
    may_be = entry.pw_uid == 0 or entry.pw_uid >= _FIRST_PERSON
    return may_be and os.path.basename(entry.pw_shell) not in _NO_LOGIN
