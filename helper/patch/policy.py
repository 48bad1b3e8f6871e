"""Which paths a patch may not touch, by name and by what is there.

Names come from the operator (or the built-in list) with `open`. Git directories are known by name,
in any letter case, and by content wherever they lie: git runs hooks and filters out of them by
itself. A patch may not make one from parts either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from codespace.beneath import STAGED_PREFIX, Hidden, Root
from codespace.beneath.names import fold
from codespace.errors import Refusal
from codespace.sandbox.inventory import gitconfig

_GIT_NAMES: Final = frozenset({".git", "git~1"})  # the second is the short name of the first on FAT and NTFS
_IGNORED_AT_THE_END: Final = ". "  # FAT and NTFS drop them from a name


class Policy:
    """The protected paths of one workspace."""

    def __init__(self, root: Root, protected: Sequence[str], *, git: bool) -> None:
        self._root = root
        self._protected = Hidden(protected)
        self._git = git

    def check(self, touched: Sequence[str], written: Sequence[str]) -> None:
        """Refuse protected paths.

        Args:
            touched: Every cleaned path that the patch names.
            written: Those of them under which it puts a file.
        Raises: Refusal PROTECTED_PATH.
        """
        known: dict[str, bool] = {}
        configured = self._configured(touched)
        for path in touched:
            self._check_name(path)
            if configured.covers_folded(path):
                raise _protected(path, "the configuration of the repository has git read it, or run what is in it")
            if self._git:
                self._check_repository(path, known)
        for path in written:
            if self._root.is_hidden(path):
                # The same words whether something is there or not: a hidden path tells nothing of itself.
                raise _protected(path, "it is not open to patches")
        if self._git:
            self._check_new_repository(written)

    def _configured(self, touched: Sequence[str]) -> Hidden:
        """Return what the configurations name of the repositories that the paths are in."""
        if not self._git:
            return Hidden(())
        above = dict.fromkeys(directory for path in touched for directory in _above(path))
        return Hidden(gitconfig.places_of(self._root, gitconfig.repositories(self._root, above)))

    def _check_name(self, path: str) -> None:
        components = path.split("/")
        if self._git and any(_is_git(component) for component in components):
            raise _protected(path, "it belongs to a git directory")
        if any(component.startswith(STAGED_PREFIX) for component in components):
            raise _protected(path, f"names that begin with {STAGED_PREFIX} are CodeSpace's own")
        if self._protected.covers_folded(path):
            raise _protected(path, "editors, agents or git run what is in it by themselves, or the operator keeps it")

    def _check_repository(self, path: str, known: dict[str, bool]) -> None:
        for above in _above(path):
            if above not in known:
                known[above] = self._is_repository(above)
            if known[above]:
                raise _protected(path, "it belongs to a git directory")

    def _is_repository(self, directory: str) -> bool:
        inside = "" if directory == "." else f"{directory}/"
        if not self._there(f"{inside}HEAD"):
            return False
        return self._there(f"{inside}commondir") or (self._there(f"{inside}objects") and self._there(f"{inside}refs"))

    def _check_new_repository(self, written: Sequence[str]) -> None:
        # In any letter case: git finds its files by whatever spelling the filesystem takes for the same.
        made = {fold(part) for path in written for part in (path, *_above(path))}
        for path in written:
            for directory in _candidates(path):
                inside = "" if directory == "." else f"{directory}/"

                def has(name: str, inside: str = inside) -> bool:
                    return fold(f"{inside}{name}") in made or self._there(f"{inside}{name}")

                if has("HEAD") and (has("commondir") or (has("objects") and has("refs"))):
                    raise _protected(path, f"it would make {directory} a git directory")

    def _there(self, path: str) -> bool:
        try:
            return self._root.look(path) is not None
        except Refusal:
            return False  # below a file or a link: git finds no directory there either


def _is_git(component: str) -> bool:
    return fold(component).rstrip(_IGNORED_AT_THE_END) in _GIT_NAMES


def _above(path: str) -> Iterator[str]:
    """Yield the directories above `path`, the root first."""
    yield "."
    position = path.find("/")
    while position >= 0:
        yield path[:position]
        position = path.find("/", position + 1)


def _candidates(path: str) -> Iterator[str]:
    """Yield each directory that `path` could be a part of a repository in."""
    components = path.split("/")
    last = len(components) - 1
    for position, component in enumerate(map(fold, components)):
        if component in ("objects", "refs") or (position == last and component in ("head", "commondir")):
            yield "/".join(components[:position]) or "."


def _protected(path: str, why: str) -> Refusal:
    return Refusal(
        "PROTECTED_PATH",
        f"{path} may not be changed by a patch: {why}. Nothing was written.",
        details={"path": path},
    )
