"""The three pipes of a command: the ends that it gets, and the ends that stay here.

A terminal (terminal.py) takes their place where one is asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Final

from codespace import limits
from codespace.contract import SpawnRequest, Stream
from codespace.runner.stdin import Stdin


class Pipes:
    """Owns every descriptor until it is taken or closed; closing twice is nothing."""

    is_terminal: Final = False

    def __init__(self, *, stdin: bool) -> None:
        self.outputs: dict[Stream, int] = {}
        """Our reading ends, non-blocking: theirs is another description and stays blocking."""
        self._theirs: list[int] = []
        self._stdin: int | None = None
        try:
            self._open(stdin=stdin)
        except BaseException:
            self.close()
            raise

    def _open(self, *, stdin: bool) -> None:
        if stdin:
            reading, self._stdin = os.pipe2(os.O_CLOEXEC)
            self._theirs.append(reading)
        else:
            self._theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for stream in ("stdout", "stderr"):
            self.outputs[stream], writing = os.pipe2(os.O_CLOEXEC)
            self._theirs.append(writing)
            os.set_blocking(self.outputs[stream], False)
            with contextlib.suppress(OSError):  # over the account's share of pipe memory: smaller is slower, no more
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, limits.PIPE_BYTES)

    @property
    def theirs(self) -> Sequence[int]:
        """stdin, stdout, stderr as the command gets them."""
        return tuple(self._theirs)

    def let_go(self) -> None:
        """Close their ends, once they were sent: the pipes must end with the command."""
        while self._theirs:
            os.close(self._theirs.pop())

    def take_stdin(self, request: SpawnRequest) -> Stdin | None:
        """Hand over our end of stdin, where there is one."""
        if self._stdin is None:
            return None
        descriptor, self._stdin = self._stdin, None
        return Stdin(descriptor, request.stdin or b"", only=not request.open_stdin)

    def held_reads(self, stream: Stream) -> int:
        """Return how many reads take what may be left in a stream's pipe at the end: as many as it has pages."""
        return fcntl.fcntl(self.outputs[stream], fcntl.F_GETPIPE_SZ) // mmap.PAGESIZE

    def close(self) -> None:
        """Close all that is still owned."""
        self.let_go()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        while self.outputs:
            os.close(self.outputs.popitem()[1])
