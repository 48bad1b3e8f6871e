"""The daemon's end of a command's stdin: written with back-pressure, in order, never twice."""

from __future__ import annotations

import errno
import os

import trio

from codespace import limits, watches
from codespace.errors import Refusal


class StdinClosed(Exception):
    """The pipe takes no more: the process closed it or ended, or `eof` was said before."""

    def __init__(self, written: int) -> None:
        super().__init__(f"{written} bytes were taken")
        self.written = written


class EndNotSaid(Exception):
    """All bytes were taken, and then the end was not: in time, or because the terminal has no key for it."""

    def __init__(self, written: int, *, has_key: bool = True) -> None:
        super().__init__(f"{written} bytes were taken, and not the end")
        self.written = written
        self.has_key = has_key


class Stdin:
    """One pipe. `first` goes before anything that is written later; then, with `only`, the end.

    Attributes:
        descriptor: Our end, owned until it is closed.
        last: The last byte that was taken.
    """

    def __init__(self, descriptor: int, first: bytes, *, only: bool) -> None:
        self.descriptor = descriptor
        self.last = b""
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
                if self._only:
                    await self.end()
        except (StdinClosed, EndNotSaid):
            return  # it did not want them all; its own business

    async def write(self, data: bytes, *, eof: bool) -> int:
        """Write `data`, then with `eof` close; returns the bytes that were taken.

        Fewer than all are taken where the process has not read for limits.STDIN_SECONDS; then the
        pipe stays open even with `eof`.
        Raises: StdinClosed; EndNotSaid where all were taken, and the end was not.
        Cancel: a part may have been taken; it is not known which.
        """
        written = 0
        rest = memoryview(data)
        try:
            with trio.move_on_after(limits.STDIN_SECONDS):
                async with self._turn:
                    await self._write_first()
                    while rest:
                        count = await self.write_some(rest)
                        written, rest = written + count, rest[count:]
                    if eof:
                        await self.end()
                    return written
        except StdinClosed:
            raise StdinClosed(written) from None
        except EndNotSaid as problem:
            raise EndNotSaid(written, has_key=problem.has_key) from None
        if eof and not rest:
            raise EndNotSaid(written)
        return written

    async def end(self) -> None:
        """Say that nothing follows. Raises: StdinClosed, EndNotSaid where a terminal has no key for it."""
        self.close()
        await trio.lowlevel.cancel_shielded_checkpoint()  # it is said; a deadline must not say that it was not

    def close(self) -> None:
        """Close the pipe: the process reads its end. Waiting writers get StdinClosed."""
        if not self.closed:
            self.closed = True
            trio.lowlevel.notify_closing(self.descriptor)
            os.close(self.descriptor)

    async def _write_first(self) -> None:
        while self._first:
            self._first = self._first[await self.write_some(self._first) :]

    async def write_some(self, block: memoryview) -> int:
        """Write as much as fits, at least one byte; returns how much. Raises: StdinClosed."""
        while not self.closed:
            try:
                count = os.write(self.descriptor, block)
            except BlockingIOError:
                try:
                    await watches.wait_writable(self.descriptor)
                except trio.ClosedResourceError:
                    break
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: a terminal that nobody has open any more
                    raise
                self.close()
            else:
                self.last = bytes(block[count - 1 : count])
                return count
        raise StdinClosed(0)


def check_size(data: bytes, *, starting: bool = False) -> None:
    """Refuse more than one call may send. Raises: Refusal LIMIT_REACHED."""
    if len(data) > limits.STDIN_BYTES:
        first = "start it with `open_stdin`, and " if starting else ""
        raise Refusal(
            "LIMIT_REACHED",
            f"{len(data)} bytes for stdin are more than {limits.STDIN_BYTES} in one call. "
            f"Nothing was {'started' if starting else 'written'}.",
            next_step=f"Write it to a file first; or {first}send it in parts with write_stdin.",
            details={"limit": "STDIN_BYTES", "maximum": limits.STDIN_BYTES},
        )
