"""Requests to end a process, from one daemon to another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.gateway.stops import StopRequest, Stops
from codespace.gateway.store import Store

T = TypeVar("T")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(str(tmp_path / "operations.db"))
    yield store
    store.close()


def _move_table(db: Database) -> None:
    db.execute("ALTER TABLE stop_requests RENAME TO moved")


class Owner:
    """A daemon that hears requests and remembers what it was asked."""

    def __init__(self, store: Store, name: str) -> None:
        self.stops = Stops(store, lambda: 1.0, name)
        self.asked: list[StopRequest] = []
        self.heard = trio.Event()
        self.is_needed = True

    async def end(self, request: StopRequest) -> None:
        self.asked.append(request)
        self.heard.set()

    async def hear(self, nursery: trio.Nursery) -> None:
        await self.stops.hear(lambda: self.is_needed, self.end, nursery)


async def test_a_request_is_heard_once_and_by_its_daemon_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_LOOK_SECONDS", 0.001)
    one, two = Owner(store, "inst-1"), Owner(store, "inst-2")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for owner in (one, two):
                nursery.start_soon(owner.hear, nursery)
            await one.stops.ask("proc-1", "inst-2", 1.0)
            await two.heard.wait()
            await one.stops.ask("proc-2", "inst-1", 2.0)
            await one.heard.wait()
            nursery.cancel_scope.cancel()
    assert two.asked == [StopRequest("proc-1", 1.0)]
    assert one.asked == [StopRequest("proc-2", 2.0)]


async def test_asked_twice_the_shorter_grace_stands(store: Store) -> None:
    stops = Stops(store, lambda: 1.0, "inst-1")
    for grace_seconds in (5.0, 0.5, 30.0):
        await stops.ask("proc-1", "inst-1", grace_seconds)
    assert await stops._take() == [StopRequest("proc-1", 0.5)]
    assert await stops._take() == []


class Overtaken:
    """The store of a daemon that is overtaken: another one asks between its look and what it does then."""

    def __init__(self, store: Store, asked: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._asked = asked
        self.write = store.write

    async def read(self, fn: Callable[[Database], T]) -> T:
        seen = await self._store.read(fn)
        await self._asked()
        return seen


async def test_what_is_asked_between_the_look_and_the_taking_is_not_lost(store: Store) -> None:
    theirs = Stops(store, lambda: 1.0, "inst-2")
    asked = partial(theirs.ask, "proc-2", "inst-1", 2.0)
    stops = Stops(Overtaken(store, asked), lambda: 1.0, "inst-1")  # type: ignore[arg-type]
    await theirs.ask("proc-1", "inst-1", 1.0)
    assert await stops._take() == [StopRequest("proc-1", 1.0), StopRequest("proc-2", 2.0)]
    assert await Stops(store, lambda: 1.0, "inst-1")._take() == []


async def test_what_was_asked_of_a_dead_daemon_is_dropped(store: Store) -> None:
    stops = Stops(store, lambda: 1.0, "inst-1")
    await stops.ask("proc-1", "inst-dead", 1.0)
    await stops.forget("inst-dead")
    assert await Stops(store, lambda: 1.0, "inst-dead")._take() == []


async def test_a_daemon_without_a_process_does_not_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_LOOK_SECONDS", 0.001)
    owner = Owner(store, "inst-1")
    looks = trio.Event()

    def is_needed() -> bool:
        looks.set()
        return False

    await owner.stops.ask("proc-1", "inst-1", 1.0)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.stops.hear, is_needed, owner.end, nursery)
            await looks.wait()
            nursery.cancel_scope.cancel()
    assert owner.asked == []
    assert await owner.stops._take() == [StopRequest("proc-1", 1.0)]


async def test_a_database_that_is_away_holds_up_nobody(store: Store) -> None:
    stops = Stops(store, lambda: 1.0, "inst-1")
    await store.write(_move_table)
    assert await stops._take() == []
