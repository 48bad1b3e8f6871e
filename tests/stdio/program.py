"""A program with a stdio door over the fake gateway, and with everything in it that must not reach the wire.

Run as a module from the project's root: `python -m tests.stdio.program`.
"""

from __future__ import annotations

import os
import signal
import subprocess

from codespace.stdio.claim import claim

claimed = claim()

import trio  # noqa: E402  # the claim comes first, as in the daemon

from codespace.protocol.server import build_server  # noqa: E402
from codespace.stdio.serve import serve_stdio  # noqa: E402
from tests.protocol.fake import FakeTools, as_tools  # noqa: E402


def stray() -> None:
    """Write to standard output in every way there is."""
    print("stray print", flush=True)
    os.write(1, b"stray write\n")
    subprocess.run(["/bin/echo", "stray child"], check=True)
    assert os.read(0, 100) == b""


async def main() -> None:
    fake = FakeTools()
    fake.inside = stray
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, stop)
        await serve_stdio(build_server(as_tools(fake), version="0", transport="stdio"), claimed, stop=stop)
        nursery.cancel_scope.cancel()


async def _stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            stop.set()


trio.run(main)
