"""A length of time in words, for sentences."""

from __future__ import annotations


def words(seconds: float) -> str:
    """Return it in seconds where it is less than two minutes, else in whole minutes."""
    if seconds < 120:
        return "1 second" if seconds == 1 else f"{seconds:g} seconds"
    return f"{seconds / 60:.0f} minutes"
