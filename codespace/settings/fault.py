"""What is wrong with the operator's settings: the key, the problem, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from codespace.display import display

_SHOWN_CHARACTERS = 80  # enough to recognise a value; a whole misplaced file is not repeated
_PATH_CHARACTERS = 4096  # PATH_MAX of the kernel


class SettingsError(Exception):
    """A setting is refused; nothing was started.

    Args:
        key: The setting as it is written, such as `workspaces.app.root` or `CODESPACE_HTTP_PORT`.
        problem: What is wrong with it, a whole sentence.
        fix: What to write instead, a whole sentence.
    """

    def __init__(self, key: str, problem: str, fix: str) -> None:
        self.key = display(key, limit=200)
        self.problem = problem
        self.fix = fix
        super().__init__(f"{self.key}: {problem} {fix}")


def shown(value: object) -> str:
    """Return `value` as a message may repeat it: short, and harmless on a terminal."""
    return display(value if isinstance(value, str) else repr(value), limit=_SHOWN_CHARACTERS)


def whole(path: str) -> str:
    """Return a path in full, for it is looked for and copied: harmless on a terminal, cut where none can be so long."""
    return display(path, limit=_PATH_CHARACTERS)


def near(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be."""
    folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.7)
    if not found and len(name) >= 3:  # `memory` for `memory_bytes`
        found = [candidate for candidate in folded if candidate.startswith(name.casefold())][:1]
    return folded[found[0]] if found else None


def unknown_key(where: str, name: str, known: Iterable[str]) -> SettingsError:
    """Return the error for a key that does not exist, with the one that was probably meant."""
    names = sorted(known)
    meant = near(name, names)
    fix = f"Did you mean `{meant}`?" if meant else f"Known here: {', '.join(names) or 'nothing'}."
    return SettingsError(f"{where}.{name}" if where else name, "There is no such key.", fix)
