"""A child that answers JSON lines: one request, one reply, and never one that belongs to another.

The channel knows nothing of verbs. Whatever goes wrong with the child (dead, hanging, nonsense)
is `Lost`; the child is killed by then and the channel is of no more use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from codespace import limits, watches

_READ_BYTES: Final = 65_536
_LONG_CHARACTERS: Final = 65_536  # a text over this (a patch) is packed on a thread: 8 MiB take 60 ms
_ENVIRONMENT: Final = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    "MALLOC_TRIM_THRESHOLD_": str(limits.HELPER_SPARE_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(limits.HELPER_SPARE_BYTES // 4),
}
# The last two are for malloc(3) of glibc, which else takes the memory of each large text anew from the kernel.


class Lost(Exception):
    """The child gave no answer. `sent`: whether it may have got the request; `stderr`: its last words."""

    def __init__(self, reason: str, *, sent: bool, timed_out: bool = False, stderr: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.timed_out = timed_out
        self.stderr = stderr


class Channel:
    """One child on three pipes. One call at a time: callers hold a lock of their own."""

    def __init__(self, process: trio.Process, stdin: int, stdout: int, stderr: int) -> None:
        self._process = process
        self._stdin = trio.lowlevel.FdStream(stdin)
        self._stdout = trio.lowlevel.FdStream(stdout)
        self._stderr = stderr
        self._complaint = b""
        self._buffer = bytearray()
        self._number = 0
        self._sent = False
        """Whether the child may have got the whole of the latest request."""
        self._owed: tuple[int, float] | None = None
        """Number and deadline of a request whose caller was cancelled before the reply came."""
        self._closed = False
        self._shield: trio.CancelScope | None = None
        """Of the call under way, from its first byte on: its deadline is the caller's last."""

    @classmethod
    async def start(cls, argv: Sequence[str]) -> Channel:
        """Start a child in a process group of its own, in `/`, with an environment from nothing.

        Raises: OSError.
        Cancel: not possible here; spawning takes milliseconds, and half a child would leak.
        """
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for child_end, our_end in (0, 1), (1, 0), (1, 0):
                pipe = os.pipe2(os.O_CLOEXEC)
                theirs.append(pipe[child_end])
                ours.append(pipe[our_end])
            os.set_blocking(ours[2], False)
            with contextlib.suppress(OSError):  # the account has its share of room in pipes already
                fcntl.fcntl(ours[0], fcntl.F_SETPIPE_SZ, limits.HELPER_PIPE_BYTES)
            # Protects the child from being born without an owner; the thread cannot be stopped anyway.
            deadline = trio.current_time() + limits.HELPER_START_SECONDS
            with trio.CancelScope(shield=True, deadline=deadline) as starting:
                process = await trio.lowlevel.open_process(
                    list(argv),
                    stdin=theirs[0],
                    stdout=theirs[1],
                    stderr=theirs[2],
                    env=_ENVIRONMENT,
                    cwd="/",
                    process_group=0,
                )
            if starting.cancelled_caught:
                raise OSError(errno.EAGAIN, "no thread was free to start it")
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return cls(process, *ours)

    @property
    def usable(self) -> bool:
        """Whether the child is alive, as far as can be seen without asking it."""
        return not self._closed and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def call(self, request: Mapping[str, Any], seconds: float, *, shielded: bool) -> Mapping[str, Any]:
        """Send one request and return its reply.

        Args:
            seconds: Deadline of the whole call; past it the child is killed.
            shielded: Whether a cancelled caller still waits for the reply, as it must where the reply
                says what is on disk.
        Raises: Lost.
        Cancel: of an unshielded call: its reply is thrown away when it comes, within its deadline.
        """
        try:
            return await self._exchange(request, seconds, shielded=shielded)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            lost = Lost("ended", sent=self._sent)
        except Lost as raised:
            lost = raised
        await self.kill()
        lost.stderr = self.said()
        raise lost

    async def _exchange(self, request: Mapping[str, Any], seconds: float, *, shielded: bool) -> Mapping[str, Any]:
        self._sent = False
        if self._owed is not None:
            await self._settle_debt(*self._owed)
        until = trio.current_time() + seconds
        # Half a line would poison the pipe for the next caller; a child that does not read is killed in time.
        with trio.CancelScope(shield=True, deadline=until) as waiting:
            self._shield = waiting
            await self._send(request)
            waiting.shield = shielded  # where the reply says what is on disk, it is not lost with its caller
            try:
                return await self._reply(self._number)
            except trio.Cancelled:
                self._owed = (self._number, until)
                raise
        assert waiting.cancelled_caught
        if not self._sent:
            raise Lost(f"did not take a request within {seconds:g} s", sent=False, timed_out=True)
        raise Lost(f"gave no answer within {seconds:g} s", sent=True, timed_out=True)

    async def _send(self, request: Mapping[str, Any]) -> None:
        self._number += 1
        pack = partial(_packed, {"id": self._number, **request})
        line = await trio.to_thread.run_sync(pack) if _is_long(request) else pack()
        left = self._write_nowait(line)
        if left:
            try:
                await watches.write(self._stdin, left)
            except OSError as error:
                raise trio.BrokenResourceError from error
        self._sent = True

    async def close(self) -> None:
        """Close the child's stdin, which ends it, and kill it where that takes too long.

        Cancel: not possible; bounded by twice limits.HELPER_STOP_SECONDS.
        """
        if self._closed:
            return
        self._stdin.close()
        # Protects an orderly end: the helper finishes the verb that it is in.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HELPER_STOP_SECONDS):
            await self._wait()
        await self.kill()

    def cut_off(self) -> None:
        """Let the call under way, if there is one, run out of time now."""
        if self._shield is not None:
            self._shield.deadline = trio.current_time()

    async def kill(self) -> None:
        """Kill the child and wait for it.

        Cancel: not possible; bounded by limits.HELPER_STOP_SECONDS.
        """
        if self._closed:
            return
        self._closed = True
        if self._process.returncode is None:
            self._process.kill()
        # Protects the wait for its end, which frees its locks. A child that the kernel holds longer is left to it.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HELPER_STOP_SECONDS):
            await self._wait()
        self._hear()
        self._stdin.close()
        self._stdout.close()
        os.close(self._stderr)

    async def _wait(self) -> None:
        while self._process.poll() is None:
            await watches.patiently(self._process.wait)

    async def _settle_debt(self, number: int, until: float) -> None:
        """Wait for the reply that a cancelled caller left behind, no longer than it was to wait itself."""
        # Reading on from where the cancelled caller stopped loses nothing when this caller is cancelled too.
        with trio.CancelScope(deadline=until) as waiting:
            self._shield = waiting
            await self._reply(number)
            self._owed = None
        if waiting.cancelled_caught:
            raise Lost("gave no answer to the request before", sent=False, timed_out=True)

    def _write_nowait(self, line: bytes) -> bytes:
        """Write what the pipe takes at once, which is all of most requests, and return the rest."""
        try:
            return line[os.write(self._stdin.fileno(), line) :]
        except BlockingIOError:
            return line
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def _reply(self, number: int) -> Mapping[str, Any]:
        while True:
            line = await self._line()
            try:
                reply = json.loads(line)
                answered = reply["id"]
            except (ValueError, KeyError, TypeError):
                raise Lost("spoke nonsense", sent=True) from None
            if answered == number and isinstance(reply, dict):
                self._hear()
                return reply
            if not isinstance(answered, int) or answered > number:
                raise Lost("answered what was not asked", sent=True)

    async def _line(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > limits.HELPER_LINE_BYTES:
                raise Lost("spoke without end", sent=True)
            # Not receive_some(): it begins with a checkpoint, and the reply is never there yet.
            part = await watches.read(self._stdout, _READ_BYTES)
            if not part:
                raise trio.BrokenResourceError
            self._buffer += part
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _hear(self) -> None:
        """Take what is on stderr, so that the child never blocks on it; only the end is kept."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._stderr, _READ_BYTES):
                self._complaint = (self._complaint + part)[-limits.HELPER_STDERR_BYTES :]

    def said(self) -> str:
        """Return the last of what the child wrote to its stderr."""
        return self._complaint.decode("utf-8", "replace")


def _is_long(request: Mapping[str, Any]) -> bool:
    return any(isinstance(value, str) and len(value) > _LONG_CHARACTERS for value in request.values())


def _packed(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"
