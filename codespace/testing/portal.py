"""One official client that many tests share, in an event loop of its own thread.

A stdio daemon lives as long as its client, and a client as long as its event loop, and pytest gives
each test a loop of its own. Starting a daemon takes a second; so a session keeps one here.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

import outcome
import trio
from mcp_types import Tool

from codespace.testing.installed import Visit

T = TypeVar("T")


class Portal:
    """Enters an async context manager in a thread's own trio loop; a synchronous context manager.

    Attributes:
        visit: What the async context manager yielded. Only touch it inside of `run`.
    """

    visit: Visit

    def __init__(self, open_visit: Callable[[], AbstractAsyncContextManager[Visit]]) -> None:
        self._open_visit = open_visit
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="portal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    async def run(self, act: Callable[[], Awaitable[T]]) -> T:
        """Await `act()` in the portal's loop, and return or raise what it did.

        Cancel: `act` is cancelled too, and waited for.
        """
        home, done, scope = trio.lowlevel.current_trio_token(), trio.Event(), trio.CancelScope()
        ends: list[outcome.Outcome[T]] = []

        async def there() -> None:
            with scope:
                ends.append(await outcome.acapture(act))
            home.run_sync_soon(done.set)

        self._token.run_sync_soon(self._nursery.start_soon, there)
        try:
            await done.wait()
        except trio.Cancelled:
            self._token.run_sync_soon(scope.cancel)
            with trio.CancelScope(shield=True):  # the portal's loop answers at once: `there` awaits nothing more
                await done.wait()
            raise
        return ends[0].unwrap()

    def _work(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as problem:
            self._failed = problem
            self._started.set()
            raise

    async def _live(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with self._open_visit() as self.visit, trio.open_nursery() as self._nursery:
            self._started.set()
            await self._stop.wait()
            self._nursery.cancel_scope.cancel()


class SharedVisit(Visit):
    """A visit through a portal: the same calls, the client is somebody else's."""

    def __init__(self, portal: Portal, workspace_id: str) -> None:
        super().__init__(portal.visit.client, portal.visit.site, workspace_id)
        self._portal = portal

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool, as a visit of one's own would."""
        return await self._portal.run(lambda: super(SharedVisit, self).call(tool, **arguments))

    async def list_tools(self) -> dict[str, Tool]:
        """Return the tools that are offered, by name."""
        return await self._portal.run(super().list_tools)
