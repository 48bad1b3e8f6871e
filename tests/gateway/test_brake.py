"""A stop of a workspace ends what it can reach, whatever it cannot."""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.processes import of_command, wait_gone
from codespace.testing.site import Site
from tests.gateway.test_elsewhere import beside


class Blind(Database):
    """A database that does not say what has not ended."""

    def execute(self, sql: str, parameters: object = None) -> sqlite3.Cursor:
        if "finished_at IS NULL" in sql:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, parameters)  # type: ignore[arg-type]


async def test_a_stop_ends_the_daemons_own_commands_though_it_cannot_be_seen_what_others_run() -> None:
    async with open_bench(options={"tools": ["work"]}, sandbox=False) as bench:
        work_id = (await bench.call("work_open", title="t"))["work_id"]
        asked = {"command": ["sleep", "1000"], "wait_seconds": 0, "work_id": work_id}
        process_id = (await bench.call("exec_command", **asked))["process_id"]
        lane = bench.daemon.tools._ledger._store._reader  # type: ignore[attr-defined]
        whole, lane.db = lane.db, Blind(lane.db.conn)
        told = await bench.daemon.inbox.stop(work_id=work_id, text=None)
        lane.db = whole
        assert told["commands_ended"] is False
        assert (await bench.call("process_status", process_id=process_id))["termination"] == "terminated"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0])


@asynccontextmanager
async def unending(bench: Bench, work_id: str | None = None) -> AsyncIterator[str]:
    """Run a command that no order reaches, as if it hung in the kernel: the helpers that would kill it are stopped."""
    command = ["sleep", f"1000.{secrets.randbelow(10**12):012}"]  # words that nobody else on the machine says
    asked = {"command": command, "wait_seconds": 0, "work_id": work_id}
    started = await bench.call("exec_command", **asked)
    (pid,) = of_command(" ".join(command))
    monitor = parent(pid)
    helpers = (parent(monitor), monitor)  # the keeper first: it wakes monitors
    for helper in helpers:
        os.kill(helper, signal.SIGSTOP)
    try:
        yield started["operation_id"]
    finally:
        for helper in helpers:
            with suppress(ProcessLookupError):  # a daemon that has ended has killed its keeper
                os.kill(helper, signal.SIGCONT)
        # Protects the end of a command that nothing else would end, also where the test was cut off.
        with trio.fail_after(30, shield=True):
            await wait_gone([pid])


@pytest.fixture
def _impatiently(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_SECONDS", "STOP_GRACE_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(limits, name, 0.1)


@pytest.mark.usefixtures("_impatiently")
async def test_a_stop_does_not_wait_for_a_command_that_hangs_in_the_kernel_and_says_that_it_has_not_ended() -> None:
    async with open_bench(options={"tools": ["work"]}, sandbox=False) as bench:
        work_id = (await bench.call("work_open", title="t"))["work_id"]
        async with unending(bench, work_id) as hangs:
            with trio.fail_after(60):
                told = await bench.daemon.inbox.stop(work_id=work_id, text=None)
            assert (told["commands_ended"], told["state"]) == (False, "closing")
            assert (await bench.call("operation_status", operation_id=hangs))["status"] == "running"


@pytest.mark.usefixtures("_impatiently")
async def test_a_daemon_that_ends_beside_a_command_that_hangs_records_its_own_end_and_no_end_of_that() -> None:
    async with open_bench(sandbox=False) as bench:
        async with unending(bench) as hangs:
            with trio.fail_after(60):
                await bench.stop()
            with connect(bench.daemon.settings.database) as db:
                instance_id = str(db.table("operations").get(hangs)["instance_id"])
                assert db.table("operations").get(hangs)["state"] == "running"
                assert [event.event for event in audit.events(db, instance_id)] == ["started", "stopped"]
                assert db.table("instances").get(instance_id)["ended_at"] is None
        await bench.start()
        assert (await bench.call("operation_status", operation_id=hangs))["status"] == "lost"


@pytest.mark.parametrize("here", ["another directory", "read-only"])
async def test_a_stop_ends_a_command_of_another_daemon_whatever_this_one_may_do_in_its_directory(
    here: str, tmp_path: Path
) -> None:
    async with open_bench(options={"tools": ["work"]}) as bench:
        site = Site(tmp_path, tools=["work"])
        site.add_workspace("main", root=bench.root if here == "read-only" else None)
        site.extra_environ["CODESPACE_OPERATIONS_DB"] = bench.daemon.settings.database
        if here == "read-only":
            bench.site.workspaces["main"]["profile"] = "read-only"
            bench.site.write()
            await bench.restart()
        async with beside(bench, site) as other:
            work_id = (await other.call("work_open", title="t"))["work_id"]
            asked = {"command": ["sleep", "1000"], "wait_seconds": 0, "work_id": work_id}
            process_id = (await other.call("exec_command", **asked))["process_id"]
            told = await bench.daemon.inbox.stop(work_id=work_id, text=None)
            assert told["commands_ended"] is True
            assert (await other.call("process_status", process_id=process_id))["termination"] == "terminated"


async def test_a_stop_that_comes_while_another_daemon_starts_a_command_ends_it() -> None:
    starting, go_on, faults = trio.Event(), trio.Event(), Faults()

    async def wait() -> None:
        starting.set()
        await go_on.wait()

    async with open_bench(options={"tools": ["work"]}, runner=faults.open_runner) as bench, beside(bench) as other:
        work_id = (await bench.call("work_open", title="t"))["work_id"]
        faults.order("before", "spawn", wait)
        told = dict[str, Any]()

        async def stop() -> None:
            told.update(await other.daemon.inbox.stop(work_id=work_id, text=None))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(bench.call, "exec_command", command=["sleep", "1000"], wait_seconds=0))
                await starting.wait()
                nursery.start_soon(stop)
                await heard(bench)
                go_on.set()
        assert told["commands_ended"] is True


async def heard(bench: Bench) -> None:
    """Return once a request to end a process was asked and taken."""

    def asked() -> int:
        with connect(bench.daemon.settings.database) as db:
            return int(db.execute("SELECT count(*) FROM stop_requests").fetchone()[0])

    for wanted in (1, 0):
        while asked() != wanted:
            await trio.lowlevel.checkpoint()
