"""The daemon's end of codespace-network-proxy: a keeper that stays, and one door for each networked run.

A door is told its list once, when it is opened; there is no verb to change it. What it decides comes
back as news, and must be read: a door whose news nobody takes closes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

import trio

from codespace import limits
from codespace.contract import Domain
from codespace.errors import Refusal
from codespace.runner.door import Door, Gone, open_door, unavailable

_ARGV: Final = (sys.executable, "-I", "-m", "helper.proxy")


class Proxy:
    """Starts the keeper when it is first needed, and opens doors."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._control: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._spare: socket.socket | None = None
        """A door that waits for its order: making one takes 6 ms, which no run needs to wait for."""
        self._closed = False

    async def warm(self) -> None:
        """Start the keeper, which then takes 0.3 s to load, so that no run waits for it. Raises: Refusal."""
        async with self._lock:
            keeper = await self._keeper()
            if self._spare is None:
                self._spare = _ask(keeper)

    async def open(self, domains: Iterable[Domain], listener: socket.socket) -> Door:
        """Return a door that serves `listener` by `domains`, and by nothing else, until it is closed.

        Args:
            listener: From codespace.sandbox.listener; it is this call's, and closed whatever happens.
        Raises: Refusal SANDBOX_UNAVAILABLE, SHUTTING_DOWN; the run must not start then.
        Cancel: no door is left.
        """
        rules = [{"host": rule.host, "port": rule.port, "address": rule.address} for rule in domains]
        order = json.dumps({"rules": rules}).encode() + b"\n"
        problem = "did not open in time"
        with listener, trio.move_on_after(limits.PROXY_START_SECONDS):
            for attempt in range(3):  # a door that was killed meanwhile has served nothing: another is as good
                async with self._lock:
                    if attempt == 2:
                        await self._discard()  # a keeper whose doors die is being killed itself
                    control = await self._take()
                try:
                    return await open_door(control, order, listener)
                except Gone:
                    problem = "ended before it opened"
        raise unavailable(problem)

    async def _take(self) -> socket.socket:
        """Return our end of a door's control socket: the spare one, while another is made."""
        for _ in range(2):
            keeper = await self._keeper()
            door, self._spare = self._spare or _ask(keeper), _ask(keeper)
            if door is not None:
                return door
            await self._discard()  # the keeper was killed; a new one is as good
        raise unavailable("does not answer")

    async def _keeper(self) -> socket.socket:
        if self._closed:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was started.")
        if self._control is not None:
            return self._control
        try:
            control, program = await trio.to_thread.run_sync(_start)
        except OSError as error:
            raise unavailable(f"could not be started ({error.strerror})") from error
        self._control, self._program = control, program
        return control

    async def _discard(self) -> None:
        control, self._control = self._control, None
        program, self._program = self._program, None
        spare, self._spare = self._spare, None
        for end in (control, spare):
            if end is not None:
                end.close()
        if program is not None:
            # Protects the wait for its end; every door is closed by now, and a keeper that hangs is killed.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * limits.PROXY_END_SECONDS):
                await trio.to_thread.run_sync(_end, program, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """End the keeper and open no more doors; close the doors before.

        Cancel: not possible; bounded by twice limits.PROXY_END_SECONDS.
        """
        self._closed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * limits.PROXY_END_SECONDS):
            async with self._lock:
                await self._discard()


def _ask(keeper: socket.socket) -> socket.socket | None:
    """Have a door made and return our end of its control socket; None where the keeper is gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        ours.setblocking(False)
        try:
            socket.send_fds(keeper, [b"door"], [theirs.fileno()], socket.MSG_NOSIGNAL)
        except OSError:
            ours.close()
            return None
    return ours


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        ours.setblocking(False)
        program = subprocess.Popen(
            _ARGV,
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
        program.wait(limits.PROXY_END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
