"""ripgrep's list of files made into names, as it arrives and within bounds."""

from __future__ import annotations

import os

from codespace import limits


class Names:
    """Takes names that end with NUL, block by block."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._rest = b""
        self._taken_bytes = 0

    def take(self, block: bytes) -> bool:
        """Take output; return False once there are more names than are ever looked at."""
        self._taken_bytes += len(block)
        *names, self._rest = (self._rest + block).split(b"\0")
        self.found.extend(os.fsdecode(name.removeprefix(b"./")) for name in names)
        return len(self.found) < limits.FIND_PATHS and self._taken_bytes < limits.SEARCH_OUTPUT_BYTES
