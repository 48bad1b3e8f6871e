"""A wait for a descriptor and for signals."""

from __future__ import annotations

import os
import select
import signal


class Bell:
    """Waits for a readable descriptor or a signal, whichever comes first."""

    def __init__(self) -> None:
        self._rung, ring = os.pipe()
        os.set_blocking(self._rung, False)
        os.set_blocking(ring, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)

    def wait(self, descriptor: int | None, seconds: float | None) -> bool:
        """Return whether `descriptor` is readable; at the latest after `seconds`."""
        poll = select.poll()
        poll.register(self._rung, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        try:
            while os.read(self._rung, 512):
                pass
        except BlockingIOError:
            pass
        return any(fd == descriptor for fd, _ in ready)
