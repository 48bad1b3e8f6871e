"""What may stand in a log line: no secret, no content, and nothing that acts on a terminal.

Three rules, each for what the others miss: keys that name content or credentials never show their
value; secrets that are known by value are taken out of every text; all text passes `display`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from codespace import limits
from codespace.display import display

REDACTED: Final = "[redacted]"
_REQUEST: Final = {
    "args",
    "argument",
    "arguments",
    "argv",
    "body",
    "command",
    "headers",
    "params",
    "request",
    "response",
}
_CONTENT: Final = {
    "chunk",
    "content",
    "data",
    "diff",
    "input",
    "message_body",
    "output",
    "patch",
    "pattern",
    "stdin",
    "text",
}
_CREDENTIAL: Final = {"cookie", "env", "environment", "password", "secret", "token"}
_KEYS: Final = frozenset(_REQUEST | _CONTENT | _CREDENTIAL)
_KEY_ENDS: Final = ("_token", "token", "_secret", "_password", "authorization", "api_key", "cookie", "_patch", "_stdin")
_CREDENTIALS: Final = re.compile(r"(?i)\b(bearer|basic)\s+[^\s,;'\"]+")
_LEAST_SECRET: Final = 4  # taking out every "a" would hide the log, not the secret


class Redaction:
    """Knows the secrets of this process by value and cleans log events of them."""

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()

    def hide(self, *secrets: str | None) -> None:
        """Take these values out of everything that is logged from now on."""
        known = {*self._secrets, *(secret for secret in secrets if secret and len(secret) >= _LEAST_SECRET)}
        # Longest first: a secret that holds another one is taken out whole.
        self._secrets = tuple(sorted(known, key=len, reverse=True))

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Clean one event; a processor of structlog."""
        return {self.clean(key): self._field(key, value) for key, value in event.items()}

    def clean(self, text: str, *, newlines: bool = False) -> str:
        """Return `text` without known secrets and credentials, safe to show, cut to a bound."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        text = _CREDENTIALS.sub(rf"\1 {REDACTED}", text[: 4 * limits.LOG_TEXT_CHARACTERS])
        return display(text, limit=limits.LOG_TEXT_CHARACTERS, newlines=newlines)

    def _field(self, key: str, value: object) -> object:
        if names_content(key) and value is not None:
            return REDACTED
        if key == "exception" and isinstance(value, str):
            return self.clean(value, newlines=True)
        return self._value(value, limits.LOG_DEPTH)

    def _value(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"<{len(value)} bytes>"
        if depth == 0:
            return "…"
        if isinstance(value, Mapping):
            return {
                self.clean(str(key)): REDACTED if names_content(str(key)) else self._value(entry, depth - 1)
                for key, entry in list(value.items())[: limits.LOG_ITEMS]
            }
        if isinstance(value, Sequence | set | frozenset):
            return [self._value(entry, depth - 1) for entry in list(value)[: limits.LOG_ITEMS]]
        return self.clean(str(value))


def names_content(key: str) -> bool:
    """Return whether a field of this name holds content or a credential."""
    folded = key.casefold().replace("-", "_")
    return folded in _KEYS or folded.endswith(_KEY_ENDS)
