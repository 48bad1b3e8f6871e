"""A whole daemon in the test's own event loop, with a real MCP client attached in memory.

Everything is real (files, SQLite, helpers, processes, the SDK's client and server); only the wire
is memory. Time: the stored clock can be moved by hand, and a test under trio's MockClock moves both
at once with `advance`. Autojump is not offered: it does not know that threads and processes work in
real time, and a 50 ms thread call let a 5 s deadline expire.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
import trio.testing
from mcp import Client

import codespace
from codespace.contract import Runner
from codespace.daemon import Daemon, open_daemon
from codespace.protocol.server import build_server
from codespace.sandbox.box import Sandbox
from codespace.settings import load
from codespace.testing.calls import call
from codespace.testing.site import Files, Site

RunnerFactory = Callable[..., AbstractAsyncContextManager[Runner]]


_PROBED: Final = Sandbox()


def shared_sandbox(bwrap_path: str | None) -> Sandbox:
    """Return the sandbox that this test run has probed once, unless another bubblewrap is asked for."""
    return _PROBED if bwrap_path is None else Sandbox(bwrap_path)


def no_sandbox(bwrap_path: str | None) -> None:
    """Give commands no sandbox, as `open_bench(sandbox=False)`."""


class WallClock:
    """The clock of stored times: real, but for what a test has added."""

    def __init__(self) -> None:
        self._added_seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self._added_seconds

    def advance(self, seconds: float) -> None:
        """Move the stored clock on."""
        self._added_seconds += seconds


class Bench:
    """One daemon and its client; made by `open_bench`.

    Attributes:
        site: Folders and config; change it, then `restart`.
        root: The root of workspace `main`.
        daemon, client: Those of the present life; `restart` replaces them.
        clock: The daemon's stored clock.
    """

    daemon: Daemon
    client: Client

    def __init__(
        self, site: Site, mode: str, nursery: trio.Nursery, runner: RunnerFactory | None, *, sandbox: bool = True
    ) -> None:
        self.site = site
        self.root = site.root()
        self.clock = WallClock()
        self._mode = mode
        self._nursery = nursery
        self._runner = runner
        self._sandbox = shared_sandbox if sandbox else no_sandbox
        self._ending = trio.Event()
        self._ended = trio.Event()

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the structured result or raise the Refusal of the error body."""
        return await call(self.client, tool, **arguments)

    async def restart(self) -> None:
        """Stop the daemon in order, then start a new one on the same folders, with a new client."""
        await self.stop()
        await self.start()

    async def start(self) -> None:
        """Start a daemon; `open_bench` has done it already."""
        self._ending, self._ended = trio.Event(), trio.Event()
        await self._nursery.start(self._live)

    async def stop(self) -> None:
        """Stop the daemon in order and wait until it is gone."""
        self._ending.set()
        await self._ended.wait()

    def advance(self, seconds: float) -> None:
        """Move stored time on, and trio's own as well where the test runs under a MockClock."""
        self.clock.advance(seconds)
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock):
            clock.jump(seconds)

    @asynccontextmanager
    async def attach(self, mode: str | None = None) -> AsyncIterator[Client]:
        """Attach one more client to the running daemon."""
        settings = self.daemon.settings
        server = build_server(
            self.daemon.tools,
            version=codespace.__version__,
            results=settings.results,
            exposed=self.daemon.exposed,
            wait=self.daemon.polls.wait,
        )
        async with Client(server, mode=mode or self._mode) as client:
            yield client

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        settings = load(self.site.environ)
        try:
            async with (
                open_daemon(
                    settings, wall_clock=self.clock, open_runner=self._runner, sandbox=self._sandbox
                ) as self.daemon,
                self.attach() as self.client,
            ):
                task_status.started()
                await self._ending.wait()
        finally:
            self._ended.set()


@asynccontextmanager
async def open_bench(
    *,
    files: Files | None = None,
    profile: str = "workspace-write",
    approvals: str = "off",
    occupancy: str = "exclusive",
    workspace: Mapping[str, Any] | None = None,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    mode: str = "legacy",
    runner: RunnerFactory | None = None,
    sandbox: bool = True,
) -> AsyncIterator[Bench]:
    """Run a daemon with one workspace, `main`, and a client for it, until the block ends.

    Args:
        files: What is in `main` at first.
        profile, approvals, occupancy: Of `main`, as in the config file.
        workspace: More config keys of `main`.
        others: More workspaces by id, with their config keys (a `root` is made for each).
        options: Global keys of the config file.
        environ: More environment variables of the daemon.
        mode: The client's: `legacy` for MCP 2025-11-25, `2026-07-28` or `auto`.
        runner: Opens the daemon's runner, such as one with faults; None for the one that the settings name.
        sandbox: False for a test that is about something else and whose commands look at what a sandbox hides
            (the host's processes, files outside the root); the real daemon has no such switch.
    Yields: Bench.
    Cancel: the daemon stops in order; the folders are removed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        site = Site(Path(folder), **(options or {}))
        site.extra_environ.update(environ or {})
        chosen = {"profile": profile, "approvals": approvals, "occupancy": occupancy, **(workspace or {})}
        site.add_workspace("main", files=files, **chosen)
        for name, settings in (others or {}).items():
            site.add_workspace(name, **settings)
        async with trio.open_nursery() as nursery:
            bench = Bench(site, mode, nursery, runner, sandbox=sandbox)
            await bench.start()
            try:
                yield bench
            finally:
                bench._ending.set()
