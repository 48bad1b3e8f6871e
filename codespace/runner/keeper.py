"""The daemon's end of codespace-monitor: starts the keeper when it is first needed, asks it for monitors."""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import Final

import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.runner.program import unprepared
from codespace.runner.resident import Resident

_PROGRAM: Final = "helper.monitor.__main__"


class Keeper:
    """Hands out monitors: each a socket whose closing ends the tree behind it."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._resident = _resident()
        self._retired: list[Resident] = []
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
                monitor = await self._ask()
                if monitor is not None:
                    return monitor
                await self._resident.discard()  # it was killed, or hangs; a new one is as good
            raise Refusal(
                "PROCESS_SPAWN_FAILED",
                "The helper that watches over commands (codespace-monitor) does not answer. Nothing was started.",
                next_step="Call again; if it repeats, ask the operator to restart CodeSpace.",
            )

    @property
    def resident(self) -> Resident:
        """The program that the next monitor comes from."""
        return self._resident

    async def replace(self, resident: Resident) -> None:
        """Have monitors come from another program than `resident`, which does not answer; it may have been stopped.

        It stays for the commands that it has: each of its monitors goes on by itself, and it ends behind the last.
        """
        async with self._lock:
            if resident is self._resident and not self._closed:
                resident.retire()
                self._retired = [each for each in (*self._retired, resident) if not each.has_ended]
                self._resident = _resident()

    def lay_by(self) -> None:
        """Have one spare monitor made, unless there is one: the next command need not wait for a fork."""
        self._resident.lay_by()

    async def _ask(self) -> socket.socket | None:
        try:
            if not self._resident.is_started:
                await self._resident.start()
            return self._resident.take()
        except OSError as error:
            raise unprepared("The helper that watches over commands could not be started or asked", error) from error

    async def aclose(self) -> None:
        """End the keeper and start none again; every monitor must have been let go of before."""
        self._closed = True
        async with self._lock, trio.open_nursery() as nursery:
            for resident in (*self._retired, self._resident):
                nursery.start_soon(resident.discard)


def _resident() -> Resident:
    return Resident(_argv, b"monitor", limits.KEEPER_END_SECONDS / 2)


def _argv() -> list[str]:
    spec = importlib.util.find_spec(_PROGRAM)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(2, f"{_PROGRAM} is not installed")
    return [sys.executable, "-I", "-S", spec.origin]
