"""The installed `codespace` command as an operator starts it, with official clients at both doors.

`over_stdio` lets the SDK start the command; `HttpDaemon` is the command behind HTTP, and `over_http`
connects to it. `Visit` is what a test holds. Nothing of the product is imported into the test.
"""

from __future__ import annotations

import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client import stdio as sdk
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Tool

from codespace.testing.calls import call
from codespace.testing.ports import free_port
from codespace.testing.site import Site

START_SECONDS: Final = 60.0
# A busy machine of two cores imports the MCP SDK in several seconds.
END_SECONDS: Final = 30.0
# Over the daemon's own hard stop deadline, its watchdog's; a test that wants less measures it itself.
sdk.PROCESS_TERMINATION_TIMEOUT = END_SECONDS
# After two seconds the SDK's client kills a daemon that is just ending its commands on a slow machine.
_OF_A_WORKSPACE: Final = frozenset(
    {"workspace_info", "read", "read_many", "find", "search", "apply_patch", "exec_command", "list_processes"}
)


class NotStarted(AssertionError):
    """The installed command ended, or said nothing, before its door was open."""


def script() -> str:
    """Return the path of the installed console script, the one beside this Python first."""
    beside = Path(sys.executable).with_name("codespace")
    found = str(beside) if beside.exists() else shutil.which("codespace")
    if found is None:
        raise NotStarted("the console script `codespace` is not installed")
    return found


class Visit:
    """A client at a door of the installed daemon, working in one workspace unless it says otherwise."""

    def __init__(self, client: Client, site: Site, workspace_id: str) -> None:
        self.client = client
        self.site = site
        self.workspace_id = workspace_id

    @property
    def root(self) -> Path:
        return self.site.root(self.workspace_id)

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool; the workspace is filled in where the tool takes one. Raises: Refusal."""
        if tool in _OF_A_WORKSPACE:
            arguments.setdefault("workspace_id", self.workspace_id)
        return await call(self.client, tool, **arguments)

    async def list_tools(self) -> dict[str, Tool]:
        """Return the tools that are offered, by name."""
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}


@asynccontextmanager
async def over_stdio(site: Site, workspace_id: str = "main", *, mode: str = "legacy") -> AsyncIterator[Visit]:
    """Let the official client start `codespace serve --stdio`; stderr goes to `<folder>/stderr.log`."""
    command = StdioServerParameters(command=script(), args=["serve", "--stdio"], env=site.environ)
    with (site.folder / "stderr.log").open("a") as log:
        async with Client(stdio_client(command, errlog=log), mode=mode) as client:
            yield Visit(client, site, workspace_id)


@asynccontextmanager
async def over_http(
    site: Site, url: str, token: str, workspace_id: str = "main", *, mode: str = "legacy"
) -> AsyncIterator[Visit]:
    """Connect the official client to a running HTTP door."""
    headers = {"Authorization": f"Bearer {token}"}
    # Longer than the longest wait of any tool.
    timeout = httpx2.Timeout(90.0)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Visit(client, site, workspace_id)


class HttpDaemon:
    """`codespace serve --http` as a child process; a synchronous context manager.

    Attributes:
        url: Of `/mcp`.
        token: The Bearer token it was configured with.
        process: The child.
    """

    def __init__(self, site: Site, token: str = "acceptance-token-0123456789abcdef") -> None:  # noqa: S107 - a test's own
        self.site = site
        self.token = token
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._said = bytearray()

    def start(self) -> None:
        """Start it and return once it takes connections. Raises: NotStarted."""
        environ = {
            **self.site.environ,
            "CODESPACE_HTTP_TOKEN": self.token,
            "CODESPACE_HTTP_PORT": str(self.port),
        }
        self.process = subprocess.Popen(
            [script(), "serve", "--http"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_listening()
        except BaseException:
            self.kill()
            raise
        self._reader = threading.Thread(target=self._drain, name="daemon output", daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """What it has written to stdout and stderr."""
        return self._said.decode(errors="replace")

    def stop(self) -> int:
        """End it in order (SIGTERM) and return its exit status; kill it where it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end {END_SECONDS} s after SIGTERM:\n{self.said}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End it without a chance to do anything, and close what we hold of it."""
        self.process.kill()
        self.process.wait()
        if hasattr(self, "_reader"):
            self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_listening(self) -> None:
        """Look at the port whenever the daemon says something: it announces its door once it is open."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                said = self.process.stdout.read1(65_536)  # type: ignore[attr-defined]
                self._said += said
                if not said:
                    raise NotStarted(f"the daemon ended before its door was open:\n{self.said}")
                if self._takes_connections():
                    return
        raise NotStarted(f"no open door after {START_SECONDS} s; it must announce it on stderr. It said:\n{self.said}")

    def _takes_connections(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _drain(self) -> None:
        assert self.process.stdout is not None
        while said := self.process.stdout.read1(65_536):  # type: ignore[attr-defined]
            self._said += said
