"""Where log lines go: a descriptor that is never waited for.

A desktop client owns the other end of stderr. If it stops reading, a blocking write would hold up
the whole daemon; so a line that does not fit is dropped, counted, and the count is told later.
"""

from __future__ import annotations

import os
import select

from codespace import limits


class Sink:
    """Writes lines to `descriptor` without blocking.

    A pipe or socket that polls writable takes PIPE_BUF bytes at once; so the line goes in pieces of
    that size, each asked for first. O_NONBLOCK is not used: it would change the terminal for everybody who shares it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.dropped = 0

    def msg(self, message: str) -> None:
        """Write one line, or count it as dropped. A line that starts to be written may be cut."""
        if self.dropped:
            message = f"{message}\n({self.dropped} log lines before this one were dropped: nobody read them)"
        if self._write(f"{message}\n".encode("utf-8", "backslashreplace")):
            self.dropped = 0
        else:
            self.dropped += 1

    log = debug = info = warn = warning = error = err = critical = fatal = failure = exception = msg
    # structlog calls the method of the level.

    def _write(self, data: bytes) -> bool:
        while data:
            if not any(event & select.POLLOUT for _, event in self._poll.poll(0)):
                return False
            try:
                data = data[os.write(self._descriptor, data[: limits.LOG_WRITE_BYTES]) :]
            except OSError:
                return False  # the reader is gone; a log line is no reason to end the work
        return True
