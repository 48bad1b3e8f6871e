"""A pattern of `hidden_paths` or `protected_paths`, and the spellings that would hide or protect nothing, silently.

Patterns are those of .gitignore, as `beneath.Hidden` reads them. What a shell, another tool or Windows would
understand and .gitignore does not is refused, not translated; a backslash makes a letter of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from codespace.settings import kinds, roots
from codespace.settings.fault import SettingsError, shown
from codespace.settings.kinds import Kind

_TEXT: Final = kinds.text(
    "pattern", r"(?!(.*/)?\.\.(/|$))[^\x00-\x1f\x7f]+", "a pattern below the root, such as `.env` or `/config/*.pem`"
)
_UNQUOTED: Final = r"(?<!\\)(?:\\\\)*"
"""What follows has no backslash before it that makes a letter of it."""
_OPEN: Final = _UNQUOTED + r"\["  # begins a class
_UNCLOSED: Final = r"^(?:\\.|\[[!^]?+.[^]]*\]|[^\\[])*+\["  # what is closed is passed by for good
_ONE_EACH: Final = "Write one pattern for each, or a backslash before what is a letter of a name."
_SLASHES: Final = "Leave it out; between names write `/`."
_FROM_THE_ROOT: Final = "Write it from the root on, as `/name`."
_SLIPS: Final = (
    (re.compile(r"^!"), "takes nothing back here", "Leave it out, and write the other patterns more narrowly."),
    (re.compile(r"^\s|(?<!\\)\s$"), "begins or ends with a blank", "Remove it."),
    (re.compile(r"^(~|\$HOME)(/|$)"), "begins with a home directory, which nobody looks up", _FROM_THE_ROOT),
    (re.compile(_OPEN + r"[^]]*\[[:.=]"), "has a class of letters by name", "Write the letters, as in `[0-9]`."),
    (re.compile(_UNCLOSED), "has a bracket that nothing closes", "Close it, or write `\\[` for the letter."),
    (re.compile(_OPEN + r"[^]]*\\"), "has a backslash between brackets", "Write one pattern for each letter."),
    (re.compile(_UNQUOTED + r"\\([\w.]|$)"), "has a backslash that quotes nothing", _SLASHES),
)
_LISTS: Final = (
    (re.compile(_UNQUOTED + r"\{.*\}"), "has braces, which mean nothing in .gitignore", _ONE_EACH),
    (re.compile(_UNQUOTED + r"\([^)]*\|"), "has alternatives in parentheses", _ONE_EACH),
    (re.compile(_UNQUOTED + r"[,;:|]\s*[*./!]"), "is a list in one text", _ONE_EACH),
)
_CLASS: Final = re.compile(r"(\\.)|\[[!^]?.[^]]*\]")  # or a letter with its backslash, which begins none


def refuse_whole_paths(key: str, patterns: Iterable[str], places: Collection[str]) -> None:
    """Refuse a pattern that would match nothing: its first slash means the root, not the machine's `/`.

    Args:
        places: The absolute paths that the root goes by: as it was written, and its real one.
    """
    for index, pattern in enumerate(patterns):
        for place in places:
            if roots.within(pattern, place):
                below = pattern.removeprefix(place) or "/"
                fix = f"Write `{shown(below)}`."
                raise SettingsError(f"{key}[{index}]", f"`{shown(pattern)}` is a whole path.", fix)


def _check(key: str, value: object) -> str:
    pattern: str = _TEXT.check(key, value)
    if {"", "."} & set(pattern.removeprefix("/").removesuffix("/").split("/")):
        raise SettingsError(key, f"`{shown(pattern)}` has an empty or `.` component.", _FROM_THE_ROOT)
    outside = _CLASS.sub(lambda found: found[1] or "_", pattern)
    for slips, text in ((_SLIPS, pattern), (_LISTS, outside)):
        for slip, why, fix in slips:
            if slip.search(text):
                raise SettingsError(key, f"`{shown(pattern)}` {why}.", fix)
    return pattern


PATTERN: Final = Kind("pattern", _check)
