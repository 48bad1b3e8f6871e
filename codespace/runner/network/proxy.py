"""The daemon's end of codespace-network-proxy: a keeper that stays, and one door for each networked run.

A door is told its list once, when it is opened; there is no verb to change it. What it decides comes
back as news, and must be read: a door whose news nobody takes closes.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable
from typing import Final

import trio

from codespace import limits
from codespace.contract import Domain
from codespace.errors import Refusal
from codespace.runner.network.door import Door, Gone, open_door, unavailable
from codespace.runner.resident import Resident

_ARGV: Final = (sys.executable, "-I", "-m", "helper.proxy")


class Proxy:
    """Starts the keeper when it is first needed, and opens doors."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._resident = Resident(lambda: _ARGV, b"door", limits.PROXY_END_SECONDS)
        # Making a door takes it 6 ms, which no run needs to wait for: one is laid by.
        self._closed = False

    async def warm(self) -> None:
        """Start the keeper, which then takes 0.3 s to load, so that no run waits for it. Raises: Refusal."""
        async with self._lock:
            await self._start()
            self._resident.lay_by()

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
                        await self._resident.discard()  # a keeper whose doors die is being killed itself
                    control = await self._take()
                try:
                    return await open_door(control, order, listener)
                except Gone:
                    problem = "ended before it opened"
        raise unavailable(problem)

    async def _take(self) -> socket.socket:
        """Return our end of a door's control socket: the spare one, while another is made."""
        for _ in range(2):
            await self._start()
            try:
                door = self._resident.take()
            except OSError as error:
                raise unavailable(f"could not be asked ({error.strerror})") from error
            self._resident.lay_by()
            if door is not None:
                return door
            await self._resident.discard()  # the keeper was killed; a new one is as good
        raise unavailable("does not answer")

    async def _start(self) -> None:
        if self._closed:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was started.")
        if self._resident.is_started:
            return
        try:
            await self._resident.start()
        except OSError as error:
            raise unavailable(f"could not be started ({error.strerror})") from error

    async def aclose(self) -> None:
        """End the keeper and open no more doors; close the doors before.

        Cancel: not possible; bounded by twice limits.PROXY_END_SECONDS.
        """
        self._closed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * limits.PROXY_END_SECONDS):
            async with self._lock:
                await self._resident.discard()
