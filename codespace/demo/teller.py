"""Prints the demonstration: numbered steps in plain text, a little colour on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from codespace.display import display


class Teller:
    """Writes to one stream, or to nobody where there is none. Everything that came from outside passes `display`."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._colour = stream is not None and stream.isatty() and "NO_COLOR" not in os.environ
        self._number = 0

    def opening(self, root: Path) -> None:
        self._line("A real daemon, a real MCP client, and a workspace that is thrown away afterwards:")
        self._line(f"  {display(str(root))}")

    def step(self, title: str) -> None:
        self._number += 1
        self._line("")
        self._line(f"{self._number:2}. {self._painted(title, '1')}")

    def right(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._line(f"    {display(line, limit=400)}")
        self._line(f"    {self._painted('right', '32')}")

    def wrong(self, problem: str, log: Sequence[str]) -> None:
        self._line(f"    {self._painted('WRONG', '31')}: {display(problem, limit=2000)}")
        if log:
            self._line("")
            self._line("The daemon's log ends with:")
        for line in log:
            self._line(f"    {display(line, limit=500)}")

    def closing(self, steps: int) -> None:
        self._line("")
        self._line(f"All {steps} steps were right. The daemon has ended and the workspace is gone.")
        self._line("Next: `codespace init DIR`, then `codespace client-config CLIENT`.")

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text

    def _line(self, text: str) -> None:
        if self._stream is not None:
            print(text, file=self._stream, flush=True)
