"""Unknown argument names: which are nearly a known one, so that a typing slip never turns a preview into a write.

A claim that grants nothing (`approved`, `user_id`, `network`) is no slip: it is ignored and named in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal
from codespace.protocol.arguments import Argument, refuse

_LONGEST_COMPARED: Final = 64
# A longer name is no slip of a known one, and comparing takes quadratic time.
_SHORTEST_COMPARED: Final = 4
# Three letters are one slip away from too many words (`cmd`, `cwd`).
_MOST_ALLOWED: Final = 2
# More slips than this make another word.


def sort_out(sent: Iterable[str], known: Sequence[Argument], prefix: str = "") -> list[str]:
    """Return the names in `sent` that are ignored, safe to show.

    Raises: Refusal INVALID_ARGUMENT for a name that is nearly a known one, naming that one.
    """
    names = {argument.name for argument in known}
    unknown = [name for name in sent if name not in names]
    if len(unknown) > limits.UNKNOWN_ARGUMENTS:
        raise Refusal("INVALID_ARGUMENT", f"{len(unknown)} unknown arguments were sent. Nothing was done.")
    aliases = {alias: argument.name for argument in known for alias in argument.aliases}
    for name in unknown:
        meant = aliases.get(name.lower()) or nearest(name, names)
        if meant is not None:
            raise _slip(prefix + name, meant)
    return [prefix + display(name, limit=limits.SHOWN_NAME_CHARACTERS) for name in unknown]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a slip of: letter case, underscores, a cut word, a letter or two."""
    if len(name) > _LONGEST_COMPARED:
        return None
    bare = _bare(name)
    for candidate in sorted(known):
        if bare == _bare(candidate) or candidate.startswith(f"{name.lower()}_"):
            return candidate
    folded = name.lower()
    distances: Mapping[str, int] = {
        candidate: _distance(folded, candidate)
        for candidate in known
        if abs(len(folded) - len(candidate)) <= _MOST_ALLOWED  # each letter more is one slip
    }
    close = [candidate for candidate, distance in distances.items() if distance <= _allowed(name, candidate)]
    return min(close, key=lambda candidate: (distances[candidate], candidate), default=None)


def _slip(name: str, meant: str) -> Refusal:
    shown = display(name, limit=limits.SHOWN_NAME_CHARACTERS)
    unit = ", in seconds," if meant.endswith("_seconds") and not name.lower().endswith("seconds") else ","
    refusal = refuse(
        shown,
        f"is not an argument of this tool; `{meant}` is",
        next_step=f"Send it as `{meant}`{unit} or leave it out.",
    )
    assert refusal.details is not None
    refusal.details["meant"] = meant
    return refusal


def _allowed(name: str, candidate: str) -> int:
    shorter = min(len(name), len(candidate))
    if shorter < _SHORTEST_COMPARED:
        return 0
    return _MOST_ALLOWED if shorter >= 6 else 1


def _bare(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _distance(left: str, right: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(right) + 1))
    for index, letter in enumerate(left, 1):
        before, row[0] = row[0], index
        for column, other in enumerate(right, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (letter != other))
    return row[-1]
