"""What a request holds while a driver works for it: the request may go away, the work goes on."""

from __future__ import annotations

from typing import Any

import trio

from codespace.errors import Refusal


class Ticket:
    """The outcome of one piece of work, awaited by any number of requests.

    The driver owns `abandonable`: it runs whatever may still be given up inside that scope.
    """

    def __init__(self) -> None:
        self.abandonable = trio.CancelScope()
        self._done = trio.Event()
        self._result: dict[str, Any] | None = None
        self._refusal: dict[str, Any] | None = None

    @property
    def settled(self) -> bool:
        return self._done.is_set()

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

    def abandon(self) -> None:
        """Say that nobody waits any more; work before the point of no return ends."""
        self.abandonable.cancel()

    async def wait_settled(self) -> None:
        """Return once there is an outcome, whatever it is."""
        await self._done.wait()

    async def wait(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values.

        Raises: the work's own Refusal.
        Cancel: the work goes on.
        """
        await self._done.wait()
        if self._refusal is not None:
            raise Refusal.from_body(self._refusal)
        if self._result is None:  # _done is only set together with one of the two
            raise Refusal("INTERNAL", "A ticket was settled without an outcome.")
        return self._result
