"""A helper program that stays, and hands out sockets: each is one piece of work behind it, ready when it is needed.

It is started by subprocess from a worker thread, with one end of its control socket as descriptor 0. That is safe
for such programs and only for them: nothing about them follows the thread that spawned them (no PDEATHSIG);
their lifeline is the control socket.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

import trio

from codespace.runner.threads import run_patiently


class Resident:
    """One such program, started and ended by its owner, who holds a lock around every call.

    Args:
        argv: Its command line; asked for in a thread. Raises OSError where there is no such program.
        word: What a new socket is sent with.
        seconds: How long its end is waited for before it is killed.
    """

    def __init__(self, argv: Callable[[], Sequence[str]], word: bytes, seconds: float) -> None:
        self._argv = argv
        self._word = word
        self._seconds = seconds
        self._control: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._spare: socket.socket | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started and not discarded; it may have died."""
        return self._control is not None

    async def start(self) -> None:
        """Start it. Raises: OSError; nothing is left then. Cancel: waits for the start."""
        self._control, self._program = await trio.to_thread.run_sync(_start, self._argv)

    def lay_by(self) -> None:
        """Have one spare made, unless there is one: whoever needs it next does not wait for a fork.

        Without descriptors for one there is none: what was started just before is not to be lost for it.
        """
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = self._ask()

    def take(self) -> socket.socket | None:
        """Return our end of a new socket, non-blocking; the spare one where there is one, None where it is gone.

        Raises: OSError where there is no descriptor for one, or none can be sent.
        """
        spare, self._spare = self._spare, None
        return spare or self._ask()

    def retire(self) -> None:
        """Ask it for nothing more: woken, where something has stopped it, it ends behind the last that it handed out.

        It is still to be discarded.
        """
        self._let_go()
        if self._program is not None:
            self._program.send_signal(signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left to be discarded."""
        return self._program is None or self._program.poll() is not None

    def _let_go(self) -> None:
        control, self._control = self._control, None
        spare, self._spare = self._spare, None
        for end in (spare, control):
            if end is not None:
                end.close()

    async def discard(self) -> None:
        """End it: it gets its patience, and is killed then; starting it again is possible.

        Cancel: not possible; bounded by twice its patience.
        """
        self._let_go()
        program, self._program = self._program, None
        if program is not None:
            # Protects the wait for its end; a program in a hung disk access must not hold the stop.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * self._seconds):
                await run_patiently(_end, program, self._seconds)

    def _ask(self) -> socket.socket | None:
        if self._control is None:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [self._word], [theirs.fileno()], socket.MSG_NOSIGNAL)
            except (ConnectionError, BlockingIOError):  # it was killed, or takes nothing
                ours.close()
                return None
            except OSError:
                ours.close()
                raise
        return ours


def _start(argv: Callable[[], Sequence[str]]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        ours.setblocking(False)
        program = subprocess.Popen(
            argv(),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            start_new_session=True,  # a Ctrl-C in the daemon's terminal is not meant for it
        )
        undo.pop_all()
    return ours, program


def _end(program: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
