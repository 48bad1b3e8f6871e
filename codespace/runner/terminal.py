"""A command's terminal: one pseudo-terminal in the place of the three pipes.

The kernel's line discipline does what a terminal does: echo, line editing, Ctrl-C, Ctrl-Z and the
hang-up. Here are only its two ends, its size, and what a key press is.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Sequence
from typing import Final

from codespace import limits
from codespace.contract import SpawnRequest, Stream
from codespace.runner.stdin import EndNotSaid, Stdin, StdinClosed

_CONTROL_CHARACTERS: Final = 6  # the place of c_cc in what tcgetattr returns
_LOCAL_MODES: Final = 3
_END_OF_INPUT: Final = b"\x04"
_DISABLED: Final = b"\0"  # _POSIX_VDISABLE: such a key is none, and typing it would be input


class Terminal:
    """Owns the master, and the slave until it is let go; closing the master hangs the terminal up.

    Args:
        rows, cols: Its size before the program starts, so that none starts in 0x0.
    Raises: OSError where the system has no more pseudo-terminals.
    """

    is_terminal: Final = True

    def __init__(self, rows: int, cols: int) -> None:
        master, slave = os.openpty()  # both closed on execve
        self.outputs: dict[Stream, int] = {"stdout": master}
        """One stream: a terminal cannot tell stdout from stderr."""
        self._slave: int | None = slave
        self._keys: int | None = None
        try:
            termios.tcsetwinsize(master, (rows, cols))
            os.set_blocking(master, False)
            self._keys = os.dup(master)  # so that the ends of reading and of writing are told apart
        except BaseException:
            self.close()
            raise

    @property
    def theirs(self) -> Sequence[int]:
        """The slave as stdin, stdout and stderr; empty once it was let go."""
        return () if self._slave is None else (self._slave,) * 3

    def let_go(self) -> None:
        """Close the slave, once it was sent: the terminal must end with the command."""
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None

    def take_stdin(self, request: SpawnRequest) -> Stdin:
        """Hand over the keyboard."""
        assert self._keys is not None
        keys, self._keys = self._keys, None
        return Keyboard(keys, request.stdin or b"", only=request.stdin is not None)

    def held_reads(self, stream: Stream) -> int:
        """Return how many reads take what may be left in it at the end: one byte each at worst."""
        return limits.TERMINAL_HELD_READS

    def resize(self, rows: int, cols: int) -> None:
        """Give it another size; the kernel tells the programs in its foreground (SIGWINCH)."""
        termios.tcsetwinsize(self.outputs["stdout"], (rows, cols))

    def close(self) -> None:
        """Close all that is still owned."""
        self.let_go()
        if self._keys is not None:
            os.close(self._keys)
            self._keys = None
        while self.outputs:
            os.close(self.outputs.popitem()[1])


class Keyboard(Stdin):
    """What is typed. The end of input is a key (Ctrl-D) and not a closed descriptor: typing may go on after it."""

    async def end(self) -> None:
        """Press the end-of-input key; twice where a line was begun, as the first only sends that.

        Where the program edits lines itself (a REPL's prompt) the key arrives as it is, once.
        Raises: StdinClosed; EndNotSaid where the terminal has no such key.
        """
        if self.closed:  # by the end of the command, while another writer had the turn; the number may be another's now
            raise StdinClosed(0)
        modes = termios.tcgetattr(self.descriptor)
        key, presses = _END_OF_INPUT, 1
        if modes[_LOCAL_MODES] & termios.ICANON:
            key = bytes(modes[_CONTROL_CHARACTERS][termios.VEOF])
            if key == _DISABLED:
                raise EndNotSaid(0, has_key=False)
            presses = 1 if self.last in b"\r\n" + key else 2
        rest = memoryview(key * presses)
        while rest:
            rest = rest[await self.write_some(rest) :]
