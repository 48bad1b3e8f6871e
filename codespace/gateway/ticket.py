"""What a request holds while a driver works for it: the request may go away, the work goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from codespace.errors import Refusal


class Ticket:
    """The outcome of one piece of work, awaited by any number of requests.

    The driver runs whatever may still be given up inside `abandonable`; it is cancelled when the
    last request that waited was cancelled.
    """

    def __init__(self) -> None:
        self._done = trio.Event()
        self._result: dict[str, Any] | None = None
        self._refusal: dict[str, Any] | None = None
        self._waiting = 0
        self._abandoned = False
        self._scope: trio.CancelScope | None = None

    @property
    def settled(self) -> bool:
        return self._done.is_set()

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waited any more and the work has not ended yet: who comes now must not join it."""
        return self._abandoned and not self.settled

    def succeed(self, result: dict[str, Any]) -> None:
        """Set the outcome; the first one stays."""
        if not self.settled:
            self._result = result
            self._done.set()

    def fail(self, refusal: Refusal) -> None:
        """Set the outcome; the first one stays."""
        if not self.settled:
            self._refusal = refusal.body()
            self._done.set()

    @contextmanager
    def abandonable(self) -> Iterator[trio.CancelScope]:
        """Run a part of the work that ends when nobody waits for it any more; one part at a time."""
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._abandoned:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scope = None

    async def wait_settled(self) -> None:
        """Return once there is an outcome, whatever it is. Cancel: the work goes on."""
        await self._done.wait()

    async def wait(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values.

        Raises: the work's own Refusal.
        Cancel: the work goes on while somebody else waits for it; else its abandonable part ends.
        """
        self._waiting += 1
        try:
            await self._done.wait()
        except trio.Cancelled:
            if self._waiting == 1:
                self._abandon()
            raise
        finally:
            self._waiting -= 1
        if self._refusal is not None:
            raise Refusal.from_body(self._refusal)
        if self._result is None:  # _done is only set together with one of the two
            raise Refusal("INTERNAL", "A ticket was settled without an outcome.")
        return self._result

    def _abandon(self) -> None:
        self._abandoned = True
        if self._scope is not None:
            self._scope.cancel()
