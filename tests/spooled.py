"""How much of a command's output is on disk: what a killed daemon or worker leaves is what was there before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from codespace.runner.output.segment import opened


def kept_bytes(state: Path) -> int:
    """Return how far the longest spool below a state directory goes."""
    ends = [0]
    for path in state.glob("spool/*/*/*"):
        with suppress(OSError, ValueError), opened(str(path)) as segment:  # one that is just begun is none yet
            ends.append(segment.ends()[0])
    return max(ends)
