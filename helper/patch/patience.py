"""Trying again where a directory is away for a moment: somebody swaps it, or a checkout rewrites it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from codespace import limits
from codespace.errors import Refusal

_STEP_SECONDS: Final = 0.001  # nothing tells that a directory is back; most swaps are over by then
_ELSEWHERE: Final = frozenset({"SYMLINK_REJECTED", "PATH_ESCAPE"})

Found = TypeVar("Found")


class Patience:
    """Of one verb: it tries many times at once, and goes on so with pauses, for a bounded time in the whole verb.

    Many, as an act takes several steps, and whoever swaps a directory all the time may come between any two.
    """

    def __init__(self) -> None:
        self._left_seconds = limits.RESTORE_WAIT_SECONDS

    def insist(
        self,
        act: Callable[[], bool],
        passing: Callable[[Exception], None] = lambda error: None,
        *,
        otherwise: bool = False,
        lasting: Callable[[Exception], None] = lambda error: None,
    ) -> bool:
        """Return what `act` says, trying again where the way to a file leads elsewhere for a moment.

        Args:
            passing: Told of each failure; raises where trying again is of no use.
            otherwise: The answer where it failed to the end.
            lasting: Told of the failure that was the last; raises where it does not allow that answer.
        """
        last: Exception | None = None
        for _ in self._attempts():
            try:
                return act()
            except (Refusal, OSError) as error:
                passing(error)
                last = error
        if last is not None:
            lasting(last)
        return otherwise

    def persist(self, act: Callable[[], Found]) -> Found:
        """Return what `act` gives, trying again in the same way.

        Raises: what it raises to the end.
        """
        for _ in self._attempts():
            with contextlib.suppress(Refusal, OSError):
                return act()
        return act()

    def _attempts(self) -> Iterator[None]:
        begun, left = time.monotonic(), self._left_seconds
        while True:
            for _ in range(limits.RESTORE_TRIES):
                yield
            self._left_seconds = left - (time.monotonic() - begun)
            if self._left_seconds <= 0:
                return
            time.sleep(_STEP_SECONDS)


def leads_elsewhere(refused: Refusal) -> bool:
    """Return whether a link or a mount lies on the way, so that what is at its end cannot be said now."""
    return refused.code in _ELSEWHERE
