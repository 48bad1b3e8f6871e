"""The next page of an ended process's output, asked for while the one before is on its way to the caller.

A client that reads a long output asks for page after page, and each would wait for the worker. What an ended
process wrote does not change any more; what is asked for too early is only thrown away. It decides nothing
and knows no worker: the ways to ask are given to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from codespace import limits
from codespace.contract import Chunk

Ask = Callable[[Mapping[str, Any]], Awaitable[Chunk | None]]
"""Asks for the page of these arguments; None where it cannot be had now. Raises nothing."""


class _Page:
    """A page that was asked for, or is being asked for."""

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self.asked = trio.current_time()
        self.there = trio.Event()


class Ahead:
    """The pages asked for and not wanted yet: a few, and not for long."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pages: OrderedDict[tuple[tuple[str, Any], ...], _Page] = OrderedDict()

    def begin(self, arguments: Mapping[str, Any], ask: Ask) -> None:
        """Ask for the page of these arguments, in the background."""
        page = self._pages[_key(arguments)] = _Page()
        while len(self._pages) > limits.WORKER_AHEAD_PAGES:
            self._pages.popitem(last=False)
        self._nursery.start_soon(self._fetch, page, ask, dict(arguments))

    async def take(self, arguments: Mapping[str, Any]) -> Chunk | None:
        """Return the page of these arguments where it was asked for a moment ago, once; else None.

        Cancel: it must be asked for again.
        """
        page = self._pages.pop(_key(arguments), None)
        if page is None or page.asked + limits.WORKER_AHEAD_SECONDS < trio.current_time():
            await trio.lowlevel.checkpoint()
            return None
        await page.there.wait()
        return page.chunk

    async def _fetch(self, page: _Page, ask: Ask, arguments: Mapping[str, Any]) -> None:
        try:
            page.chunk = await ask(arguments)
        finally:
            page.there.set()


def _key(arguments: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(arguments.items()))
