"""One argument of a tool: what it may be, and the strict reading of what a client sent for it.

Nothing is coerced and nothing is guessed: a value of another type is refused with the field's name.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal

Kind = Literal["text", "integer", "number", "flag", "text_list", "text_map", "object"]

_NEEDED: Final[Mapping[Kind, str]] = {
    "text": "a string",
    "integer": "an integer",
    "number": "a number",
    "flag": "true or false",
    "text_list": "a list of strings",
    "text_map": "an object whose values are strings",
    "object": "an object",
}
_SHELL_TOKEN: Final = re.compile(r"[|&;<>()]+")
_SHELL_SIGNS: Final = frozenset("$`*?~\n")
# Characters that mean something to a shell and nothing to execve.


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument may be.

    `minimum` and `maximum` bound a number's value, a text's characters, or a list's or map's items.
    `pattern` is what each text, list item or map value must match as a whole; `means` says it in words.
    `aliases` are names that a caller may use by mistake for it: refused, never taken.
    """

    name: str
    kind: Kind
    description: str
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    means: str | None = None
    printable: bool = False
    aliases: tuple[str, ...] = ()

    def take(self, value: Any, field: str) -> Any:
        """Return `value` checked, numbers as float for `number`.

        Args:
            field: The name to use in an error; a nested argument's is longer than `name`.
        Raises: Refusal INVALID_ARGUMENT naming the field.
        """
        match self.kind:
            case "text":
                return self._text(value, field)
            case "integer" | "number":
                return self._number(value, field)
            case "flag":
                return value if isinstance(value, bool) else self._wrong(value, field)
            case "text_list":
                return self._list(value, field)
            case "text_map":
                return self._map(value, field)
            case "object":
                return value if isinstance(value, dict) else self._wrong(value, field)

    def _text(self, value: Any, field: str) -> str:
        if not isinstance(value, str):
            self._wrong(value, field)
        require_unicode(value, field)
        if self.choices and value not in self.choices:
            raise refuse(field, f"must be one of {', '.join(self.choices)}, not {_shown(value)}")
        self._within(len(value), field, "characters")
        self._matching(value, field)
        return value

    def _number(self, value: Any, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(value, field)
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse(field, "must be a finite number")
        if self.kind == "integer":
            if value != int(value):
                self._wrong(value, field)
            value = int(value)
        self._within(value, field, "")
        return value if self.kind == "integer" else float(value)

    def _list(self, value: Any, field: str) -> list[str]:
        if not isinstance(value, list):
            self._wrong(value, field)
        self._within(len(value), field, "items")
        for index, item in enumerate(value):
            self._item(item, f"{field}[{index}]")
        return value

    def _map(self, value: Any, field: str) -> dict[str, str]:
        if not isinstance(value, dict):
            self._wrong(value, field)
        self._within(len(value), field, "items")
        for name, item in value.items():
            key = f"{field}[{_shown(name)}]"
            require_unicode(name, key)
            self._item(item, key)
        return value

    def _item(self, item: Any, field: str) -> None:
        if not isinstance(item, str):
            raise refuse(field, f"must be a string, not {_called(item)}")
        require_unicode(item, field)
        self._matching(item, field)

    def _matching(self, text: str, field: str) -> None:
        if self.printable and not text.isprintable():
            raise refuse(field, "must be printable characters only")
        if self.pattern is not None and re.fullmatch(self.pattern, text) is None:
            raise refuse(field, f"must be {self.means}")

    def _within(self, size: float, field: str, unit: str) -> None:
        low = self.minimum is not None and size < self.minimum
        if low or (self.maximum is not None and size > self.maximum):
            has = f"has {size} {unit}; it may have " if unit else "must be "
            raise refuse(field, f"{has}{self.bounds()}")

    def bounds(self) -> str:
        """Return the range in words, `1 to 50`."""
        if self.maximum is None:
            return f"at least {_figure(self.minimum)}"
        return f"{_figure(self.minimum)} to {_figure(self.maximum)}"

    def _wrong(self, value: Any, field: str) -> NoReturn:
        next_step = None
        if self.kind == "text_list" and isinstance(value, str):
            listed = _listed(value)
            if listed is not None:
                next_step = f"Send `{field}` as the list itself, not as a string. Ready to send: {listed}"
            elif self.name == "command":
                next_step = _ready(value)
        raise refuse(field, f"must be {_NEEDED[self.kind]}, not {_called(value)}", next_step=next_step)


def refuse(field: str, problem: str, *, next_step: str | None = None) -> Refusal:
    """Return the refusal of one argument; the caller raises it."""
    return Refusal(
        "INVALID_ARGUMENT", f"`{field}` {problem}. Nothing was done.", next_step=next_step, details={"argument": field}
    )


def require_unicode(text: str, field: str) -> None:
    """Refuse lone surrogates: they have no UTF-8 form, so no file, pipe or record can hold them."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise refuse(field, "is not valid Unicode (a lone surrogate)") from None


def _figure(bound: float | None) -> str:
    bound = bound or 0
    return str(int(bound)) if bound == int(bound) else str(bound)


def _listed(text: str) -> str | None:
    """Return the list of strings that a text says in JSON, ready to send; None where it says none, or a long one."""
    if len(text) > limits.COMMAND_ECHO_CHARACTERS or not text.lstrip().startswith("["):
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(said, list) and said and all(isinstance(item, str) for item in said)
    return json.dumps(said, ensure_ascii=False) if is_list else None


def _ready(command: str) -> str:
    if len(command) > limits.COMMAND_ECHO_CHARACTERS:
        return "Send `command` as a list of strings, the program first; there is no shell in between."
    argv = json.dumps(_argv(command), ensure_ascii=False)
    return f"Send `command` as a list; there is no shell in between. Ready to send: {argv}"


def _argv(command: str) -> list[str]:
    """Split as a shell would; a text that needs a shell is handed to one by name."""
    through_shell = ["sh", "-c", command]
    try:
        words = shlex.split(command)
        tokens = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    except ValueError:
        return through_shell
    needs_shell = any(sign in command for sign in _SHELL_SIGNS) or any(map(_SHELL_TOKEN.fullmatch, tokens))
    return through_shell if needs_shell or not words else words


def _called(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def _shown(text: str) -> str:
    return f"`{display(text, limit=limits.SHOWN_NAME_CHARACTERS)}`"
