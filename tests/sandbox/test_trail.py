"""Network decisions stand in the audit while a run goes on: a daemon that is killed takes none along.

And a flood of requests is no flood of rows.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from codespace import limits
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.runner.inprocess import open_runner
from codespace.runner.network.decisions import Decision, Decisions
from codespace.runner.worker import link
from codespace.runner.worker.verbs import VERBS
from codespace.testing import processes
from codespace.testing.installed import script
from codespace.testing.site import Site
from codespace.testing.wire import Wire

from .test_open_network import ASK, networked, run
from .until import PATIENCE_SECONDS, until

STAY = 'print "asked\\n"; sleep 600'
FLOOD = r"""
use IO::Socket::INET;
my ($times, @hosts) = @ARGV;
for my $count (1 .. $times) {
  for my $where (@hosts) {
    my $proxy = IO::Socket::INET->new(PeerAddr => "127.0.0.1:3128") or die;
    my $host = $where =~ s/%/$count/r;
    print $proxy "GET http://$host/ HTTP/1.1\r\nHost: $host\r\n\r\n";
    1 while <$proxy>;
  }
}
"""


def told(database: str | Path) -> list[dict[str, Any]]:
    """Return the details of the rows that tell of decisions while a run goes on, oldest first."""
    with sqlite3.connect(database) as db:
        rows = db.execute("SELECT details FROM events WHERE kind = 'network' ORDER BY seq").fetchall()
    db.close()
    return [json.loads(row) for (row,) in rows]


def codespace(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script(), *words], env=site.environ, capture_output=True, text=True, timeout=60, check=False)


def networked_site(folder: Path) -> Site:
    site = Site(folder)
    pin = {"host": "registry.test", "port": 80, "address": "127.0.0.1"}
    site.add_workspace("main", network="enabled", allowed_domains=[pin])
    return site


async def test_a_daemon_that_is_killed_in_the_middle_of_a_run_leaves_what_was_decided_in_the_audit(
    tmp_path: Path,
) -> None:
    site = networked_site(tmp_path)
    database = site.state / "operations.sqlite"
    wire = Wire(site)
    wire.start()
    wire.handshake()
    try:
        command = ["perl", "-e", f"$| = 1; {ASK} {STAY}", "evil.example"]
        begun = wire.call("exec_command", command=command, operation_key="once", wait_seconds=0)["structuredContent"]
        await until(lambda: told(database))
        state = wire.call("process_status", process_id=begun["process_id"])["structuredContent"]["state"]
        assert state == "running"
    finally:
        below = processes.descendants(wire.process.pid)
        wire.process.kill()
        wire.process.wait()
        wire.hang_up()
        wire.rest()
        assert wire.process.stdout is not None
        wire.process.stdout.close()
    assert processes.still_alive_after(below, PATIENCE_SECONDS) == frozenset()
    verified = codespace(site, "audit", "verify")
    assert verified.returncode == 0, verified.stdout
    (row,) = told(database)
    (decision,) = row["network_decisions"]
    assert (decision["host"], decision["allowed"], decision["code"]) == ("evil.example", False, "not-listed")
    with Wire(site) as again:
        replay = again.call("exec_command", command=command, operation_key="once")["structuredContent"]
        assert replay["termination"] == "lost"
        assert [each["host"] for each in replay["network"]["decisions"]] == ["evil.example"]
    assert codespace(site, "audit", "verify").returncode == 0


async def test_a_decision_is_recorded_while_its_run_goes_on_and_told_once_afterwards() -> None:
    async with networked() as (bench, registry):
        listed = f"registry.test:{registry.port}"
        twice = f"$| = 1; {ASK} <STDIN>; @ARGV = ($ARGV[0]); {ASK}"
        command = {"command": ["perl", "-e", twice, listed, "evil.example"], "operation_key": "twice"}
        begun = await bench.call("exec_command", **command, open_stdin=True, wait_seconds=0)
        database = str(bench.daemon.settings.database)
        rows = await until_told(database, {"registry.test", "evil.example"})
        assert {each["times"] for each in rows} == {1}
        process_id = begun["process_id"]
        assert (await bench.call("process_status", process_id=process_id))["state"] == "running"
        await bench.call("write_stdin", process_id=process_id, data="go\n", eof=True)
        while (await bench.call("read_process", process_id=process_id, wait_seconds=20))["state"] == "running":
            await trio.lowlevel.checkpoint()
        status = await bench.call("operation_status", operation_id=begun["operation_id"])
        names = [event["event"] for event in status["events"]]
        assert names.index("started") < names.index("decided") < names.index("ended")
        await bench.restart()  # now the ledger alone knows: each kind once, by its latest row
        replay = await bench.call("exec_command", **command, open_stdin=True)
        times = {each["host"]: each["times"] for each in replay["network"]["decisions"]}
        assert len(replay["network"]["decisions"]) == 2
        assert times == {"registry.test": 2, "evil.example": 1}
        with connect(database) as db:
            assert audit.verify(db).ok


async def until_told(database: str, hosts: set[str]) -> list[dict[str, Any]]:
    """Return the decisions recorded so far once they are about these hosts."""

    def look() -> list[dict[str, Any]]:
        rows = [each for row in told(database) for each in row["network_decisions"]]
        return rows if {each["host"] for each in rows} >= hosts else []

    return await until(look)


async def test_a_flood_of_requests_is_a_handful_of_rows_with_counts() -> None:
    async with networked() as (bench, _):
        ran = await run(bench, "perl", "-e", FLOOD, "1200", "evil.example")
        assert (ran["exit_code"], [each["times"] for each in ran["network"]["decisions"]]) == (0, [1200]), ran
        rows = told(str(bench.daemon.settings.database))
        assert 1 <= len(rows) <= 4  # at 1, 10, 100 and 1,000, as far as they are a second apart
        assert all(len(row["network_decisions"]) == 1 for row in rows)
        status = await bench.call("operation_status", operation_id=ran["operation_id"])
        assert status["events"][-1]["details"]["network_decisions"][0]["times"] == 1200


async def test_a_flood_of_names_is_kept_as_far_as_the_limit_goes_and_then_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codespace.limits.PROXY_DECISIONS", 5)
    async with networked(runner=open_runner) as (bench, _):  # in this process, where the limit was changed
        begun = await bench.call(
            "exec_command", command=["perl", "-e", f"$| = 1; {FLOOD} {STAY}", "40", "host-%.example"], wait_seconds=0
        )
        database = str(bench.daemon.settings.database)
        await until(lambda: [row for row in told(database) if row.get("not_kept", 0) >= 10])
        await bench.call("terminate_process", process_id=begun["process_id"], grace_seconds=0)
        rows = told(database)
        assert len({each["host"] for row in rows for each in row["network_decisions"]}) == 5
        assert len(rows) <= 7  # five kinds, and two round numbers of what is only counted


def test_a_million_requests_are_told_seven_times() -> None:
    kept = Decisions()
    one = Decision("evil.example", 443, False, "not-listed", "It is not listed.", None, None)
    told_at = list[int]()
    cursor = 0
    for number in range(1, 1_000_001):
        kept.add(one)
        if kept.due > cursor:
            news = kept.news(cursor)
            assert news is not None
            cursor = news.cursor
            told_at.append(number)
            assert [row["times"] for row in news.decisions] == [number]
    assert told_at == [10**power for power in range(7)]
    assert kept.news(cursor) is None


async def test_a_worker_that_is_lost_takes_no_decision_and_no_count_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPACE_RUNNER", "uds")
    async with networked() as (bench, _):
        # Half of it before its only output, with which the worker tells its last of the process.
        script_ = f'$| = 1; {FLOOD} print "half\\n"; {FLOOD} sleep 600'
        command = {"command": ["perl", "-e", script_, "50", "evil.example"], "operation_key": "once"}
        await bench.call("exec_command", **command, wait_seconds=0)
        database = str(bench.daemon.settings.database)
        await until(lambda: [row for row in told(database) if row["network_decisions"][0]["times"] == 100])
        # By its parent: what the worker starts has the worker's command line until it has its own.
        (worker,) = [pid for pid in processes.children() if "helper.worker" in processes.command_line(pid)]
        os.kill(worker, signal.SIGKILL)
        ended = await bench.call("exec_command", **command, wait_seconds=30)
        assert ended["termination"] == "lost"
        await bench.restart()
        replay = await bench.call("exec_command", **command)
        assert [(each["host"], each["times"]) for each in replay["network"]["decisions"]] == [("evil.example", 100)]


async def test_a_database_that_is_away_for_a_while_is_told_the_decision_later() -> None:
    async with networked() as (bench, _):
        database = str(bench.daemon.settings.database)
        begun = await bench.call(
            "exec_command",
            command=["perl", "-e", f"$| = 1; <STDIN>; {ASK} {STAY}", "evil.example"],
            open_stdin=True,
            wait_seconds=0,
        )
        with sqlite3.connect(database, isolation_level=None) as holder, structlog.testing.capture_logs() as logged:
            holder.execute("BEGIN IMMEDIATE")
            await bench.call("write_stdin", process_id=begun["process_id"], data="go\n", eof=True)
            await until(lambda: [line for line in logged if "could not be recorded yet" in line["event"]])
            holder.execute("ROLLBACK")
        holder.close()
        await until_told(database, {"evil.example"})
        await bench.call("terminate_process", process_id=begun["process_id"], grace_seconds=0)


@pytest.mark.parametrize("name", ["wait_output", "wait_decisions"])
def test_a_worker_whose_command_does_nothing_for_long_is_not_taken_for_one_that_hangs(name: str) -> None:
    assert link._seconds(VERBS[name]) == float("inf")
    assert link._seconds(VERBS["spawn"]) == limits.WORKER_VERB_SECONDS
