"""One daemon at both doors: what one client starts, another one at the other door can follow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
import trio

from codespace.testing.installed import END_SECONDS, START_SECONDS, over_http, script
from codespace.testing.ports import free_port
from codespace.testing.site import Site
from codespace.testing.wire import Wire

TOKEN = "both-doors-0123456789abcdef"


@pytest.fixture
def wire(site: Site) -> Iterator[Wire]:
    """The stdio end of a daemon whose HTTP door is open too."""
    site.extra_environ.update(CODESPACE_HTTP_TOKEN=TOKEN, CODESPACE_HTTP_PORT=str(free_port()))
    with Wire(site, command=[script(), "serve", "--stdio", "--http"]) as wire:
        deadline = time.monotonic() + START_SECONDS  # each question is a round trip; the doors open within a few
        while not {"stdio", "http"} <= set(wire.call("workspace_info")["structuredContent"]["transports"]):
            assert time.monotonic() < deadline, "the HTTP door did not open"
        yield wire


async def test_a_command_started_over_stdio_is_read_and_ended_over_http(site: Site, wire: Wire) -> None:
    command = ["sh", "-c", "echo hello; read line; echo $line"]
    start = {"workspace_id": "main", "command": command, "open_stdin": True, "wait_seconds": 0}
    started = wire.call("exec_command", **start)["structuredContent"]
    url = f"http://127.0.0.1:{site.extra_environ['CODESPACE_HTTP_PORT']}/mcp"
    async with over_http(site, url, TOKEN) as visit:
        await visit.call("write_stdin", process_id=started["process_id"], data="from the other door\n", eof=True)
        text, cursor = "", 0
        with trio.fail_after(60):
            while not text.endswith("door\n"):
                chunk = await visit.call(
                    "read_process", process_id=started["process_id"], cursor=cursor, wait_seconds=20
                )
                text, cursor = text + chunk["chunk"], chunk["cursor"]
        assert text == "hello\nfrom the other door\n"
    again = wire.call("read_process", process_id=started["process_id"])["structuredContent"]
    assert again["chunk"] == text
    assert TOKEN not in wire.said


def test_sigterm_ends_both_doors(wire: Wire) -> None:
    wire.process.send_signal(signal.SIGTERM)
    assert wire.process.wait(END_SECONDS) == 0
    assert wire.rest() == []
