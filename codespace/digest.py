"""What the bytes of a file are called, so that a caller can say which ones it has seen.

A version is `sha256:` and the 64 hexadecimal digits of the whole file's digest, or `absent`.
"""

from __future__ import annotations

import hashlib
from typing import Final

ABSENT: Final = "absent"
"""The version of a path where no file is."""


class Digest:
    """Takes a file block by block."""

    __slots__ = ("_sha256",)

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def update(self, block: bytes) -> None:
        """Take the next block."""
        self._sha256.update(block)

    @property
    def version(self) -> str:
        """The version of what was taken so far."""
        return f"sha256:{self._sha256.hexdigest()}"


def version_of(content: bytes) -> str:
    """Return the version of a file that holds these bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
