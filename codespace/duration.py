"""Times and lengths of time in words, for sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LAST_DAY: Final = 253_402_300_800.0
# The end of the year 9999.


def moment(at: float) -> str | None:
    """Return a time of the wall clock, where a calendar has that day."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" if 0 <= at < _LAST_DAY else None


def words(seconds: float) -> str:
    """Return it in seconds where it is less than two minutes, else in whole minutes."""
    if seconds < 120:
        return "1 second" if seconds == 1 else f"{seconds:g} seconds"
    return f"{seconds / 60:.0f} minutes"
