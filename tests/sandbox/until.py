"""Polls for what another process or thread brings about, and for which there is no event: bounded, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")
PATIENCE_SECONDS: Final = 30.0
# For what takes milliseconds to a second, on a machine that others use.
_LOOK_SECONDS: Final = 0.01


async def until(look: Callable[[], T]) -> T:
    """Return what `look` gives once it gives something. Raises: trio.TooSlowError."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            if found := look():
                return found
            await trio.sleep(_LOOK_SECONDS)
