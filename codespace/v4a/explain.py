"""Why a chunk has no place: what differs, where something like it is, and whether it is done already."""

from __future__ import annotations

from codespace.errors import Refusal
from codespace.v4a.parse import Chunk
from codespace.v4a.place import Finder


def explain(
    path: str, number: int, chunk: Chunk, lines: list[str], finder: Finder, cursor: int, *, anchor_missing: bool
) -> Refusal:
    """Return the refusal of a chunk that cannot be placed."""
    return Refusal(
        "INVALID_PATCH", f"Chunk {number} (patch line {chunk.line}) has no place in {path}. Nothing was written."
    )
