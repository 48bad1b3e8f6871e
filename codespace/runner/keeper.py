"""The daemon's end of codespace-monitor: starts the keeper when it is first needed, asks it for monitors.

The keeper is started by subprocess from a worker thread. That is safe here and only here: nothing
about it follows the thread that spawned it (no PDEATHSIG); its lifeline is its control socket.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
from typing import Final

import trio

from codespace import limits
from codespace.errors import Refusal

_PROGRAM: Final = "helper.monitor"


class Keeper:
    """Hands out monitors: each a socket whose closing ends the tree behind it."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._control: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._spare: socket.socket | None = None
        self._closed = False

    async def monitor(self) -> socket.socket:
        """Return our end of a monitor's control socket, non-blocking; the spare one where there is one.

        The first call starts the keeper (about 30 ms); later ones take a fraction of a millisecond.
        Raises: Refusal PROCESS_SPAWN_FAILED where the keeper cannot be started, SHUTTING_DOWN.
        Cancel: no monitor is left; a keeper that was started is kept.
        """
        async with self._lock:
            for _ in range(2):
                if self._closed:
                    raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was started.")
                if self._control is None:
                    await self._start()
                self.lay_by()
                if self._spare is not None:
                    spare, self._spare = self._spare, None
                    return spare
                await self._discard()  # it was killed, or hangs; a new one is as good
            raise Refusal(
                "PROCESS_SPAWN_FAILED",
                "The helper that watches over commands (codespace-monitor) does not answer. Nothing was started.",
                next_step="Call again; if it repeats, restart CodeSpace and run `codespace doctor`.",
            )

    def lay_by(self) -> None:
        """Have one spare monitor made, unless there is one: the next command need not wait for a fork."""
        if self._spare is not None or self._control is None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [b"monitor"], [theirs.fileno()], socket.MSG_NOSIGNAL)
            except OSError:
                ours.close()  # the next `monitor` sees to it
            else:
                self._spare = ours

    async def _start(self) -> None:
        try:
            self._control, self._program = await trio.to_thread.run_sync(_start)
        except OSError as error:
            raise Refusal(
                "PROCESS_SPAWN_FAILED",
                f"The helper that watches over commands could not be started ({error.strerror}). Nothing was started.",
            ) from error

    async def _discard(self) -> None:
        control, self._control = self._control, None
        program, self._program = self._program, None
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()
        if control is not None:
            control.close()
        if program is not None:
            # An ended monitor lets the keeper end; one in a hung disk access must not hold the stop.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.KEEPER_END_SECONDS):
                await trio.to_thread.run_sync(_end, program, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """End the keeper and start none again; every monitor must have been let go of before."""
        self._closed = True
        async with self._lock:
            await self._discard()


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    spec = importlib.util.find_spec(_PROGRAM)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(2, f"{_PROGRAM} is not installed")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        ours.setblocking(False)
        program = subprocess.Popen(
            [sys.executable, "-I", "-S", spec.origin],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            start_new_session=True,  # a Ctrl-C in the daemon's terminal is not meant for it
        )
        undo.pop_all()
    return ours, program


def _end(program: subprocess.Popen[bytes]) -> None:
    try:
        program.wait(limits.KEEPER_END_SECONDS / 2)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
