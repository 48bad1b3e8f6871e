"""Just enough TOML to add one table to a file that a person wrote, every letter of it kept."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


class NotSafe(Exception):
    """The table cannot be added without changing what the file says."""


def section(path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return the lines of a table: texts, lists of texts, numbers, truth values, and tables of these."""
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    lines = [f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner]
    for name, value in inner.items():
        lines += ["", section((*path, name), value)]
    return "\n".join(lines)


def append(present: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return `present` with the table behind it; `present` itself where it says so already.

    Raises: NotSafe where the result would not parse, or would not say the old things and the new one.
    """
    text = f"{present.rstrip()}\n\n{section(path, table)}\n".lstrip()
    try:
        before = tomllib.loads(present)
        holder = before
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        if holder.get(path[-1]) == table:
            return present
        if path[-1] in holder:
            raise NotSafe(f"it has another `{path[-1]}` already")
        holder[path[-1]] = table
        if before == tomllib.loads(text):
            return text
    except (ValueError, RecursionError) as error:
        raise NotSafe(f"it would not be TOML: {error}") from None
    except (AttributeError, TypeError):
        pass  # one of the names on the way is not a table
    raise NotSafe("it is not a file that a table can be appended to")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    # A JSON text, list or number is one of TOML too; only DEL must be escaped there and not here.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
