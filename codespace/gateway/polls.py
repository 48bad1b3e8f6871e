"""Long waits of requests, which the daemon's stop ends at once: they then answer with what is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Polls:
    """The waits under way."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    @contextmanager
    def wait(self, seconds: float) -> Iterator[None]:
        """Run the block for at most `seconds`, and no longer than until `end`; then go on behind it."""
        with trio.move_on_after(0 if self._ended else max(seconds, 0)) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        """End every wait, and those that would begin."""
        self._ended = True
        for scope in self._scopes:
            scope.cancel()
