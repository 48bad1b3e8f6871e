"""Whether a daemon is alive is known though somebody deletes, moves or replaces the file of its lock."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from codespace import limits
from codespace.gateway.instances import Instances
from codespace.gateway.opening import open_store

LIVES = """
import sys, trio
from codespace.gateway.instances import Instances
from codespace.gateway.opening import open_store
async def live(state):
    async with open_store(state + "/operations.sqlite") as store:
        instances = Instances(store, lambda: 1.0, state + "/its", [])
        await instances.register()
        print(instances.own.id, instances.own.lock_path, flush=True)
        await trio.sleep_forever()
trio.run(live, sys.argv[1])
"""


class Neighbour:
    """A process that shares the database, as a daemon does."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", LIVES, str(folder)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.id, path = self.process.stdout.readline().split()
        self.lock = Path(path)

    def kill(self) -> None:
        with self.process:
            self.process.kill()


@asynccontextmanager
async def neighbours(folder: Path) -> AsyncIterator[tuple[Instances, Neighbour]]:
    """Open a daemon's look at the others, and start another one."""
    async with open_store(str(folder / "operations.sqlite")) as store:
        neighbour = Neighbour(folder)
        mine = Instances(store, lambda: 1.0, str(folder / "mine"), [])
        try:
            await mine.register()
            yield mine, neighbour
        finally:
            mine.close()
            neighbour.kill()


def moved(lock: Path) -> None:
    lock.parent.parent.rename(lock.parent.parent.with_name("elsewhere"))


def replaced(lock: Path) -> None:
    lock.unlink()
    lock.touch()


def rename_process(folder: Path, pid: int) -> None:
    with sqlite3.connect(folder / "operations.sqlite") as db:
        db.execute("UPDATE instances SET pid = ?", (pid,))
    db.close()


@contextmanager
def leaving_while_it_is_read(instances: Instances, asker: trio.CancelScope) -> Iterator[None]:
    """Cancel who asks while the database reads for it, as a client's cancel or the end of its wait may."""
    token, left = trio.lowlevel.current_trio_token(), threading.Event()

    def leave() -> None:
        asker.cancel()
        left.set()

    def is_read(statement: str) -> None:
        if "instances" in statement:
            token.run_sync_soon(leave)
            left.wait(10)

    connection = instances._store._reader.db.conn
    connection.set_trace_callback(is_read)
    try:
        yield
    finally:
        connection.set_trace_callback(None)


@pytest.mark.parametrize("happens", [Path.unlink, lambda lock: shutil.rmtree(lock.parent.parent), moved, replaced])
async def test_a_daemon_lives_whatever_happens_to_the_name_of_its_lock(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    async with neighbours(tmp_path) as (mine, neighbour):
        happens(neighbour.lock)
        assert await mine.lives(neighbour.id)
        assert await mine.dead() == ()
        neighbour.kill()
        assert not await mine.lives(neighbour.id)
        assert [each.id for each in await mine.dead()] == [neighbour.id]


async def test_a_daemon_whose_process_cannot_be_seen_lives_by_its_lock(tmp_path: Path) -> None:
    """One in a container of its own: its pid is another one's here, or nobody's."""
    async with neighbours(tmp_path) as (mine, neighbour):
        rename_process(tmp_path, 1)
        assert await mine.lives(neighbour.id)


async def test_a_process_that_has_the_pid_of_a_dead_daemon_is_not_taken_for_it(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as (mine, neighbour):
        neighbour.kill()
        neighbour.lock.unlink()
        rename_process(tmp_path, os.getpid())
        assert not await mine.lives(neighbour.id)


async def test_a_daemon_that_stands_still_lives(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as (mine, neighbour):
        neighbour.lock.unlink()
        neighbour.process.send_signal(signal.SIGSTOP)
        assert await mine.lives(neighbour.id)


async def test_a_daemon_is_seen_dead_though_an_asker_left_before_the_look_at_it_began(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with neighbours(tmp_path) as (mine, neighbour):
        with trio.CancelScope() as asker, leaving_while_it_is_read(mine, asker):
            await mine.lives(neighbour.id)
        assert asker.cancelled_caught
        neighbour.kill()
        mock_clock.jump(limits.LOCK_SECONDS + 1)  # a look that hangs would be known to by now
        assert not await mine.lives(neighbour.id)
        assert [each.id for each in await mine.dead()] == [neighbour.id]
