"""Prints the demonstration: numbered steps in plain text, a little colour on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import trio

from codespace.display import display


class Teller:
    """Writes to one stream, or to nobody where there is none. Everything that came from outside passes `display`.

    A reader that takes nothing holds up the story, and not its end: each verb can be cancelled while it waits for one.
    So it writes to the stream's descriptor: the stream's own lock would stay with the thread that is left to itself.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._colour = stream is not None and stream.isatty() and "NO_COLOR" not in os.environ
        self._number = 0

    async def opening(self, root: Path) -> None:
        await self._say(
            "A real daemon, a real MCP client, and a workspace that is thrown away afterwards:",
            f"  {display(str(root))}",
        )

    async def step(self, title: str) -> None:
        self._number += 1
        await self._say("", f"{self._number:2}. {self._painted(title, '1')}")

    async def right(self, lines: Iterable[str]) -> None:
        await self._say(*(f"    {display(line, limit=400)}" for line in lines), f"    {self._painted('right', '32')}")

    async def wrong(self, problem: str, log: Sequence[str]) -> None:
        end = ["", "The daemon's log ends with:", *(f"    {display(line, limit=500)}" for line in log)] if log else []
        await self._say(f"    {self._painted('WRONG', '31')}: {display(problem, limit=2000)}", *end)

    async def closing(self, steps: int) -> None:
        await self._say(
            "",
            f"All {steps} steps were right. The daemon has ended and the workspace is gone.",
            "Next: `codespace init DIR`, then `codespace client-config CLIENT`.",
        )

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text

    async def _say(self, *lines: str) -> None:
        if self._stream is not None:
            data = "".join(f"{line}\n" for line in lines).encode(self._stream.encoding, "backslashreplace")
            await trio.to_thread.run_sync(_write, self._stream.fileno(), data, abandon_on_cancel=True)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
