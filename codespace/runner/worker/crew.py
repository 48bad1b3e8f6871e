"""Sees to it that there is a worker: starts one when it is needed, passes on its log, and buries it.

One at a time: the next is started only when nothing of the one before is left, so that a root that
looks free is free. It knows no verbs.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
import trio

from codespace import limits
from codespace.contract import ProcessState
from codespace.errors import Refusal
from codespace.runner.worker import hire
from codespace.runner.worker.hire import NotHired, Worker
from codespace.runner.worker.line import Line
from codespace.runner.worker.link import Link

log = structlog.get_logger("codespace.runner")

_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})


class Crew:
    """The workers of one daemon.

    Args:
        leaf: The directory for their sockets.
        orders: What each is told at its start.
        news: Told what a worker says of a process.
        left: Told the number of a worker of which nothing is left any more; ends within limits.WORKER_TREES_SECONDS.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        leaf: str,
        orders: Mapping[str, Any],
        news: Callable[[ProcessState], None],
        left: Callable[[int], Awaitable[None]],
    ) -> None:
        self._nursery = nursery
        self._leaf = leaf
        self._orders = orders
        self._news = news
        self._left = left
        self._lock = trio.Lock()
        self._link: Link | None = None
        self._worker: Worker | None = None
        self._number = 0
        self._buried = trio.Event()
        self._buried.set()
        self._closing = False
        self._failed: tuple[float, str] | None = None
        """When a start failed last, and why."""

    @property
    def pid(self) -> int | None:
        """The process id of the worker, None where there is none now."""
        return None if self._worker is None else self._worker.pid

    async def link(self) -> tuple[Link, int]:
        """Return the connection to the worker, and which worker it is; one is started where there is none.

        Raises: Refusal INTERNAL where it cannot be started, SHUTTING_DOWN.
        Cancel: a worker that was being started is ended again.
        """
        if self._link is None or self._link.over:
            begun = trio.current_time()
            async with self._lock:
                if self._link is None or self._link.over:
                    await self._next(begun)
        assert self._link is not None
        return self._link, self._number

    def link_nowait(self, number: int | None = None) -> Link | None:
        """Return the connection to the worker (of this number, where one is given), None where it is gone or going."""
        if self._link is None or self._link.over or number not in (None, self._number):
            return None
        return self._link

    async def wait_buried(self, number: int) -> None:
        """Return once nothing of a worker is left."""
        if number == self._number:
            await self._buried.wait()

    async def _next(self, asked: float) -> None:
        await self._buried.wait()
        if self._closing:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was done.")
        if self._failed is not None and self._failed[0] >= asked:  # who waited for that start need not see another fail
            raise _not_there(self._failed[1])
        try:
            self._link = await self._nursery.start(self._live)
        except (NotHired, OSError) as problem:  # a shortage of descriptors can meet it anywhere
            why = problem.strerror if isinstance(problem, OSError) else str(problem)
            self._failed = trio.current_time(), str(why)
            raise _not_there(str(why)) from problem

    async def close(self) -> None:
        """End the worker in order, and start none again. Bounded by what burying is bounded by."""
        self._closing = True
        if self._link is not None:
            self._link.close()
        await self._buried.wait()

    # --- one life ---

    async def _live(self, task_status: trio.TaskStatus[Link]) -> None:
        secret = hire.new_secret()
        worker = self._worker = hire.start(self._leaf, secret)
        self._number += 1
        self._buried = trio.Event()
        relaying = trio.CancelScope(shield=True)  # ends with the worker's stderr, or with its burial, which is bounded
        self._nursery.start_soon(self._relay, worker, relaying)
        orderly = False
        try:
            link = Link(await self._meet(worker, secret), self._news)
            log.debug("the runner's process has started", worker=worker.pid)
            task_status.started(link)
            orderly = True
            # Protects a daemon's ordered stop, which still asks the runner, from the cancel that began it. `close` ends
            # it, which `open_runner` calls in any case, and what comes then is bounded.
            with trio.CancelScope(shield=True):
                why = await link.run()
            orderly = link.in_order
            if not self._closing:
                log.error("the runner's process is lost", worker=worker.pid, why=why)
        finally:
            seconds = limits.WORKER_STOP_SECONDS + 2 * limits.WORKER_TREES_SECONDS
            # Protects the one who knows what is left of it from whoever is in a hurry. What the kernel still holds at
            # the deadline is left to it.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
                await self._bury(worker, relaying, orderly=orderly)

    async def _meet(self, worker: Worker, secret: bytes) -> Line:
        line: Line | None = None
        with trio.move_on_after(limits.WORKER_START_SECONDS):
            await worker.wait_listening()
            line = Line(hire.connect(self._leaf, worker), limits.WORKER_HELLO_BYTES)
            try:
                await hire.greet(line, secret, self._orders)
                # Whose caller is gone by now must not live on: `started` would quietly leave it, and its shield, in the
                # nursery of that caller, who would wait for its end with the lock in hand.
                await trio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                line.close()
                raise
            return line
        raise NotHired(f"it did not start within {limits.WORKER_START_SECONDS:g} s")

    async def _bury(self, worker: Worker, relaying: trio.CancelScope, *, orderly: bool) -> None:
        """Wait until a worker and what it had started are gone; kill it where it does not end by itself.

        Cancel: it is let go of as it is.
        """
        try:
            if orderly:
                with trio.move_on_after(limits.WORKER_STOP_SECONDS):
                    await worker.wait()
            worker.kill()
            with trio.move_on_after(limits.WORKER_TREES_SECONDS):
                code = await worker.wait()
                log.debug("the runner's process has ended", worker=worker.pid, code=code)
            with trio.move_on_after(limits.WORKER_TREES_SECONDS):
                await worker.silent.wait()
        finally:  # also of one that the kernel holds to the caller's deadline: the next is waited for
            if not worker.silent.is_set():
                log.error("something that the runner had started may still be there", worker=worker.pid)
            relaying.cancel()
            worker.close()
            self._worker = None
            # Protects the last word on what it ran, which has an end of its own before.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.WORKER_TREES_SECONDS):
                await self._left(self._number)
            self._buried.set()

    async def _relay(self, worker: Worker, scope: trio.CancelScope) -> None:
        """Pass the worker's log on as ours, so that it is written, bounded and redacted like ours."""
        cut = b""
        with scope:
            while (data := await worker.said()) is not None:
                *lines, cut = (cut + data).split(b"\n")
                for line in lines:
                    _pass_on(worker.pid, line)
                cut = cut[-limits.WORKER_LOG_BYTES :]


def _not_there(problem: str) -> Refusal:
    return Refusal(
        "INTERNAL",
        f"The runner's process is not there: {problem}. Nothing was done.",
        next_step="Call again; if it repeats, ask the operator to look at the log.",
        retryable=True,
    )


def _pass_on(pid: int, line: bytes) -> None:
    text = line.decode("utf-8", "replace")
    try:
        said = json.loads(text)
        level, event = said.pop("level"), said.pop("event")
        said.pop("timestamp", None)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        if text.strip():
            log.warning("the runner's process says", worker=pid, text=text)
        return
    method = level if isinstance(level, str) and level in _LEVELS else "warning"
    getattr(log, method)(str(event), worker=pid, **{f"worker_{name}": value for name, value in said.items()})
