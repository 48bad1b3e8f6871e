"""The one file primitive: everything below a root, never through a link.

No other room opens a path below a root. A `Root` keeps one directory fd and reaches every name
from it, with openat2 where the kernel has it and component by component where it has not. What was
reached is held by an O_PATH fd whose type is looked at before anything is opened for reading, so
that no swap in between leads out of the root and no FIFO or device is ever opened.

All calls are synchronous: callers put them into threads.
"""

from __future__ import annotations

from typing import Final

from codespace.beneath.kernel import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from codespace.beneath.names import Hidden, clean, showable
from codespace.beneath.reach import primitive_in_force
from codespace.beneath.root import Root
from codespace.beneath.walking import GONE, Entry

STAGED_PREFIX: Final = ".codespace-"
"""What a patch stages or sets aside begins so; no find, search or read shows such a name."""
ALWAYS_HIDDEN: Final = (STAGED_PREFIX + "*",)
"""Globs to add to hidden_paths wherever a caller asks; the patch transaction's own root leaves them out."""

__all__ = [
    "ALWAYS_HIDDEN",
    "GONE",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "STAGED_PREFIX",
    "Entry",
    "Hidden",
    "Root",
    "clean",
    "primitive_in_force",
    "renameat2",
    "showable",
]
