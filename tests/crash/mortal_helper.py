"""The patch helper with a kill point: `mortal_helper.py TICKETS [without-flags]`, one helper for each ticket.

TICKETS is a file; each of its lines is the number of the kill point at which one helper dies, 0 for one that counts
and lives. A helper takes the first line at its start, and lives where there is none. What it had counted at the end
of each verb is in TICKETS.<number of the line>.count.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codespace.beneath import kernel
from helper.patch.session import Session
from helper.patch.wire import claim, serve

sys.path.insert(0, str(Path(__file__).parent))

from counting import Kill, kill


def main() -> None:
    gc.freeze()
    if "without-flags" in sys.argv[2:]:
        _forget_flags()
    turn, number = _take_ticket(Path(sys.argv[1]))
    counted = os.open(f"{sys.argv[1]}.{turn}.count", os.O_WRONLY | os.O_CREAT, 0o600)
    around = (kernel.renameat2.__code__, kernel.openat2.__code__)
    point = Kill(number, lambda: kill(os.getpid()), around)
    answer = Session.call

    def counting(session: Session, request: Mapping[str, Any]) -> dict[str, Any]:
        point.begin()
        try:
            return answer(session, request)
        finally:
            point.end()
            os.write(counted, f"{request['verb']} {point.count}\n".encode())

    Session.call = counting  # type: ignore[method-assign]
    serve(*claim())


def _take_ticket(tickets: Path) -> tuple[int, int]:
    """Return the number of the first line that is left, and the kill point that it names."""
    lines = tickets.read_text().split() if tickets.exists() else []
    turn = next((turn for turn, line in enumerate(lines) if line != "taken"), len(lines))
    if turn == len(lines):
        return turn, 0
    tickets.write_text("\n".join(["taken"] * (turn + 1) + lines[turn + 1 :]))
    return turn, int(lines[turn])


def _forget_flags() -> None:
    """Be on a filesystem that knows no flags of rename, as the probe would find."""

    def renameat2(*names: Any) -> None:
        raise OSError(22, "Invalid argument")

    kernel.renameat2 = renameat2


if __name__ == "__main__":
    main()
