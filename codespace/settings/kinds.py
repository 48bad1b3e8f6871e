"""The kinds of value that a setting can have: each checks strictly and says what it wants.

Nothing is converted: `"false"` is a text and not a refusal, `1` is not `true`, and a number in
quotes is a text. A kind knows no key; it gets the key only to name it in an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from codespace import limits
from codespace.settings.fault import SettingsError, near, shown


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value. `shape` is how the documentation names it."""

    shape: str
    check: Callable[[str, object], Any]


def choice(*allowed: str) -> Kind:
    """One of some words."""
    words = ", ".join(f"`{word}`" for word in allowed)

    def check(key: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong(key, value, f"one of {words}")
        if value not in allowed:
            meant = near(value, allowed)
            fix = f"Did you mean `{meant}`?" if meant else f"Use one of {words}."
            raise SettingsError(key, f"`{shown(value)}` is not a value of this key.", fix)
        return value

    return Kind(" \\| ".join(f"`{word}`" for word in allowed), check)


def flag() -> Kind:
    def check(key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise wrong(key, value, "true or false, without quotes")
        return value

    return Kind("true or false", check)


def whole(unit: str, least: int = 1, most: int = limits.SETTING_MAXIMUM) -> Kind:
    """A whole number of `unit`."""
    usual = most == limits.SETTING_MAXIMUM
    span = f"a whole number of at least {least}" if usual else f"a whole number from {least} to {most}"

    def check(key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(key, value, f"{span}, without quotes")
        if not least <= value <= most:
            top = f", and not over {most}" if usual else ""
            raise SettingsError(key, f"{_figure(value)} is out of range.", f"Use {span}{top}.")
        return value

    return Kind(unit, check)


def seconds() -> Kind:
    def check(key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(key, value, "a number of seconds, without quotes")
        if not 0 < value <= limits.SETTING_SECONDS_MAXIMUM:  # not a number fails, too
            most = f"{limits.SETTING_SECONDS_MAXIMUM:.0f}"
            raise SettingsError(
                key, f"{_figure(value)} is out of range.", f"Use a number of seconds above 0, and not over {most}."
            )
        return float(value)

    return Kind("seconds", check)


def text(shape: str, pattern: str, want: str) -> Kind:
    """A text that matches `pattern` as a whole; `want` completes "Use ..."."""
    compiled = re.compile(pattern)

    def check(key: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong(key, value, want)
        if not compiled.fullmatch(value):
            raise SettingsError(key, f"`{shown(value)}` is not acceptable.", f"Use {want}.")
        return value

    return Kind(shape, check)


def absolute() -> Kind:
    """An absolute path, returned as written; whoever uses it decides when to resolve it."""

    def check(key: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong(key, value, "an absolute path as text")
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
            raise SettingsError(key, f"`{shown(value)}` has a control character in it.", "Write the path without it.")
        refuse_undecodable(key, value)
        if not os.path.isabs(value):
            hint = "`~` is not expanded. " if value.startswith("~") else ""
            raise SettingsError(key, f"`{shown(value)}` is not absolute.", f"{hint}Write the whole path from `/` on.")
        return value

    return Kind("absolute path", check)


def refuse_undecodable(key: str, path: str) -> None:
    """Refuse a path that is not UTF-8: the database, plans and answers are, and could not name it."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise SettingsError(key, f"`{shown(path)}` is not UTF-8.", "Use a path whose names are.") from None


def listing(item: Kind) -> Kind:
    def check(key: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong(key, value, "a list, even for one item")
        return tuple(item.check(f"{key}[{index}]", entry) for index, entry in enumerate(value))

    return Kind(f"list of {item.shape}", check)


def table(key: str, value: object) -> Mapping[str, Any]:
    """Return `value` if it is a table (a JSON object)."""
    if not isinstance(value, dict):
        raise wrong(key, value, "a table (in JSON: an object)")
    return value


def wrong(key: str, value: object, want: str) -> SettingsError:
    """Return the error for a value of another type."""
    found = {bool: "a truth value", str: "a text", list: "a list", dict: "a table"}.get(type(value), "another type")
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = "a number"
    return SettingsError(key, f"`{shown(value)}` is {found}.", f"Use {want}.")


def _figure(value: float) -> str:
    """Return a number as a message may repeat it; the digits of one of thousands cannot even be made."""
    return shown(value) if abs(value) < 1e20 else "The number"
