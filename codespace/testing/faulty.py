"""A runner that fails on order: the real one, with a fault before or after a chosen verb.

It stands in for no verb: what a verb does is done by the real runner, so without an order it is the
real runner. A fault is whatever an act does: raise, hang, wait for the test, or break something.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import trio

from codespace.contract import Runner
from codespace.runner import inprocess, uds
from codespace.testing.site import RUNNER

When = Literal["before", "after"]
Act = Callable[[], Awaitable[None]]


class Broken(Exception):
    """What a fault raises: no Refusal, so nothing that a runner may raise."""


async def crash() -> None:
    """Raise what no runner should raise."""
    raise Broken("a fault that a test ordered")


async def hang() -> None:
    """Never return; ends when it is cancelled."""
    await trio.sleep_forever()


class Faults:
    """The orders of one test; they outlive a restart of the daemon.

    Attributes:
        met: The faults that happened, in order, as (when, verb).
    """

    def __init__(self) -> None:
        self._orders: dict[tuple[When, str], Act] = {}
        self.met: list[tuple[When, str]] = []

    def order(self, when: When, verb: str, act: Act) -> None:
        """Have `act` happen once, the next time that `verb` is called."""
        self._orders[when, verb] = act

    def forget(self) -> None:
        """Take back what was ordered and has not happened."""
        self._orders.clear()

    @asynccontextmanager
    async def open_runner(self, **settings: Any) -> AsyncIterator[Runner]:
        """Run the real runner under these orders; give it to `open_bench` or `open_daemon`."""
        chosen = uds.open_runner if os.environ.get(RUNNER) == "uds" else inprocess.open_runner
        async with chosen(**settings) as real:
            yield cast(Runner, _Faulty(real, self))

    async def strike(self, when: When, verb: str) -> None:
        """Let an order happen, if there is one."""
        act = self._orders.pop((when, verb), None)
        if act is not None:
            self.met.append((when, verb))
            await act()


class _Faulty:
    """Implements `contract.Runner` by another one."""

    def __init__(self, real: Runner, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, verb: str) -> Any:
        act = getattr(self._real, verb)
        if not inspect.iscoroutinefunction(act):
            return act

        async def with_faults(*arguments: Any, **named: Any) -> Any:
            await self._faults.strike("before", verb)
            result = await act(*arguments, **named)
            await self._faults.strike("after", verb)
            return result

        return with_faults
