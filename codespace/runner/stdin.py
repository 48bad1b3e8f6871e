"""The daemon's end of a command's stdin: written with back-pressure, in order, never twice."""

from __future__ import annotations

import os

import trio

from codespace import limits
from codespace.errors import Refusal


class StdinClosed(Exception):
    """The pipe takes no more: the process closed it or ended, or `eof` was said before."""

    def __init__(self, written: int) -> None:
        super().__init__(f"{written} bytes were taken")
        self.written = written


class Stdin:
    """One pipe. `first` goes before anything that is written later; then, with `only`, the end."""

    def __init__(self, descriptor: int, first: bytes, *, only: bool) -> None:
        self._descriptor = descriptor
        self._first = memoryview(first)
        self._only = only
        self._turn = trio.Lock()
        self.closed = False
        os.set_blocking(descriptor, False)

    async def feed(self) -> None:
        """Write the first bytes, however long the process takes to read them."""
        try:
            async with self._turn:
                await self._write_first()
        except StdinClosed:
            return  # it did not want them all; its own business
        if self._only:
            self.close()

    async def write(self, data: bytes, *, eof: bool) -> int:
        """Write `data`, then with `eof` close; returns the bytes that were taken.

        Fewer than all are taken where the process has not read for limits.STDIN_SECONDS; then the
        pipe stays open even with `eof`.
        Raises: StdinClosed.
        Cancel: a part may have been taken; it is not known which.
        """
        written = 0
        rest = memoryview(data)
        with trio.move_on_after(limits.STDIN_SECONDS):
            async with self._turn:
                await self._write_first()
                while rest:
                    try:
                        count = await self._write_some(rest)
                    except StdinClosed:
                        raise StdinClosed(written) from None
                    written, rest = written + count, rest[count:]
                if eof:
                    self.close()
        return written

    def close(self) -> None:
        """Close the pipe: the process reads its end. Waiting writers get StdinClosed."""
        if not self.closed:
            self.closed = True
            trio.lowlevel.notify_closing(self._descriptor)
            os.close(self._descriptor)

    async def _write_first(self) -> None:
        while self._first:
            self._first = self._first[await self._write_some(self._first) :]

    async def _write_some(self, block: memoryview) -> int:
        while not self.closed:
            try:
                return os.write(self._descriptor, block)
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_writable(self._descriptor)
                except trio.ClosedResourceError:
                    break
            except BrokenPipeError:
                self.close()
        raise StdinClosed(0)


def check_size(data: bytes) -> None:
    """Refuse more than one call may send. Raises: Refusal LIMIT_REACHED."""
    if len(data) > limits.STDIN_BYTES:
        raise Refusal(
            "LIMIT_REACHED",
            f"{len(data)} bytes for stdin are more than {limits.STDIN_BYTES} in one call. Nothing was written.",
            next_step="Send it in parts with write_stdin, or write it to a file first.",
        )
