"""Pages of a long text by byte cursors: whole characters, and every byte on exactly one page."""

from __future__ import annotations

_CONTINUES = range(0x80, 0xC0)


def cut(data: bytes, cursor: int, limit_bytes: int) -> tuple[str, int]:
    """Return the page of UTF-8 `data` that begins at byte `cursor`, and where the next one begins.

    Args:
        limit_bytes: Most bytes of it, at least 4; a character is never split.
    """
    cursor = min(max(cursor, 0), len(data))
    end = min(cursor + limit_bytes, len(data))
    while cursor < end < len(data) and data[end] in _CONTINUES:
        end -= 1
    return data[cursor:end].decode("utf-8", "replace"), end
