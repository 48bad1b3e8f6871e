"""A wait for descriptors and for signals."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping


class Bell:
    """Waits for descriptors or a signal, whichever comes first."""

    def __init__(self) -> None:
        self._rung, ring = os.pipe()
        os.set_blocking(self._rung, False)
        os.set_blocking(ring, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)

    def wait(self, wanted: Mapping[int, int], seconds: float | None) -> set[int]:
        """Return which of `wanted` have come to pass; at the latest after `seconds`.

        Args:
            wanted: Descriptors, and what of each is waited for, as poll takes it.
        """
        poll = select.poll()
        poll.register(self._rung, select.POLLIN)
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        try:
            while os.read(self._rung, 512):
                pass
        except BlockingIOError:
            pass
        return {descriptor for descriptor, _ in ready if descriptor in wanted}
