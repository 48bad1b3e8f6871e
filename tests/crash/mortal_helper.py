"""The patch helper with a kill point: `mortal_helper.py TICKET`, once for each ticket.

A ticket is a file with the number of the kill point and who dies there (`helper`, `both`); 0 counts and
dies nowhere. It is taken at the start, so that the helper that comes next lives.
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
    ticket = Path(sys.argv[1])
    gc.freeze()
    try:
        number, who, flags = ticket.read_text().split()
        ticket.unlink()
    except FileNotFoundError:
        number, who, flags = "0", "helper", sys.argv[2] if len(sys.argv) > 2 else "flags"
    if "without-flags" in (flags, *sys.argv[2:]):
        _forget_flags()
    counted = os.open(f"{ticket}.count", os.O_WRONLY | os.O_CREAT, 0o600)
    daemon, own = os.getppid(), os.getpid()
    victims = (own,) if who == "helper" else (daemon, own)
    around = (kernel.renameat2.__code__, kernel.openat2.__code__)
    point = Kill(int(number), lambda: kill(*victims), around)
    answer = Session.call

    def counting(session: Session, request: Mapping[str, Any]) -> dict[str, Any]:
        point.begin()
        try:
            return answer(session, request)
        finally:
            point.end()
            os.pwrite(counted, f"{point.count:08}".encode(), 0)

    Session.call = counting  # type: ignore[method-assign]
    serve(*claim())


def _forget_flags() -> None:
    """Be on a filesystem that knows no flags of rename, as the probe would find."""

    def renameat2(*names: Any) -> None:
        raise OSError(22, "Invalid argument")

    kernel.renameat2 = renameat2


if __name__ == "__main__":
    main()
