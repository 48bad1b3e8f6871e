"""ripgrep's list of files made into names, as it arrives and within bounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from codespace import limits


class Names:
    """Takes names that end with NUL, block by block.

    Args:
        chosen: Gives those of some names that are kept: others count for nothing.
    """

    def __init__(self, chosen: Callable[[Iterable[str]], Iterable[str]]) -> None:
        self.found: list[str] = []
        self._chosen = chosen
        self._rest = b""
        self._kept_characters = 0

    def take(self, block: bytes) -> bool:
        """Take output; return False once there are more names than are ever looked at."""
        *names, self._rest = (self._rest + block).split(b"\0")
        kept = list(self._chosen(os.fsdecode(name.removeprefix(b"./")) for name in names))
        self.found += kept
        self._kept_characters += sum(map(len, kept))
        return len(self.found) < limits.FIND_PATHS and self._kept_characters < limits.SEARCH_OUTPUT_BYTES
