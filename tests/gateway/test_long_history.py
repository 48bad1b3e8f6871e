"""However long the history of a database is: no request, list or sweep of a daemon walks through it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from codespace import limits
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from tests.gateway.test_recovery import leave_behind

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+text\n*** End Patch\n"
OF_NOW = {
    "operations": {"operations_unfinished", "operations_work"},
    "grants": {"grants_active"},
    "works": {"works_open"},
    "intents": {"intents_next"},
    "instances": {"instances_unended"},
}
"""Indexes that hold nothing but what has not ended."""
OF_ONE = {
    "operations": {"operations_key", "operations_process", "operations_approval"},
    "holds": {"holds_fingerprint", "holds_key", "holds_active_key", "holds_waiting"},
    "intents": {"intents_work"},
    "events": {"events_subject"},
    "stop_requests": {"stop_requests_instance"},
}
"""Indexes that find what is of one key, process, request, work, subject, daemon or state."""
NEWEST_FIRST = {
    "operations": {"operations_created", "operations_kind"},
    "holds": {"holds_created"},
    "works": {"works_created"},
    "grants": {"grants_listed"},
}
"""Indexes that may be walked from their end to a list's limit."""
TAKES_WHAT_COMES = re.compile(r'WHERE 1 ORDER BY|FROM "grants" ORDER BY|WHERE NOT state IN', re.IGNORECASE)
"""Conditions that a walk does not pass many rows by for."""
HEAD_OF_CHAIN = "SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1"


def walks(statement: str, plan: list[str]) -> bool:
    """Return whether SQLite would find by this plan what is asked for only behind a look at all of history."""
    if statement == HEAD_OF_CHAIN:
        return False
    for step in plan:
        found = re.match(r"(SCAN|SEARCH) (\w+)(?: USING (?:COVERING )?INDEX (\w+)| USING INTEGER PRIMARY KEY)?", step)
        if found is None or found[2] in ("meta", "json_each", "sqlite_master"):
            continue
        how, table, index = found.groups()
        if how == "SEARCH" and (index is None or index.startswith("sqlite_autoindex")):
            continue
        if index in OF_NOW.get(table, ()) or (how == "SEARCH" and index in OF_ONE.get(table, ())):
            continue
        in_order = index in NEWEST_FIRST.get(table, ()) and not any("TEMP B-TREE" in each for each in plan)
        if in_order and " LIMIT " in statement.upper() and (how == "SEARCH" or TAKES_WHAT_COMES.search(statement)):
            continue
        return True
    return False


class Traced(sqlite3.Connection):
    """A connection that tells what it is asked: with its parameters apart, for SQLite plans before it knows them."""

    asked: set[tuple[str, Any]]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        values = tuple(parameters.items()) if isinstance(parameters, dict) else tuple(parameters)
        self.asked.add((sql, values))
        return super().execute(sql, parameters)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, Any]]:
    """Everything that SQLite is asked from now on, on whatever connection."""
    Traced.asked = set()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Traced))
    return Traced.asked


def plans(db: sqlite3.Connection, asked: set[tuple[str, Any]]) -> dict[str, list[str]]:
    """Return how SQLite finds what it was asked for, for each statement that looks for something."""
    found = dict[str, list[str]]()
    for sql, values in list(asked):
        if re.match(r"SELECT|UPDATE|DELETE", sql, re.IGNORECASE):
            given = dict(values) if ":" in sql else values
            found[sql] = [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", given)]
    return found


async def use_everything(bench: Bench) -> None:
    """Ask for whatever an agent, an operator and a daemon's own rounds ask for."""
    daemon, operator = bench.daemon, bench.daemon.operator
    work = (await bench.call("work_open", title="t"))["work_id"]
    draft = await daemon.inbox.draft(work_id=work, text="x", kind="follow_up", delivery="next_work", supersedes=None)
    await daemon.inbox.queue(intent_id=draft["intent_id"], revision=None)
    for tool, more in (("apply_patch", {"patch": PATCH}), ("exec_command", {"command": ["true"]})):
        with pytest.raises(Refusal) as caught:
            await bench.call(tool, operation_key=tool, work_id=work, **more)
        hold = str(caught.value.approval_id)
        await operator.grant(hold, by="test", scope="exact" if tool == "exec_command" else "once", seconds=60)
        await bench.call("operation_resume", approval_id=hold)
        await bench.call(tool, operation_key=tool, work_id=work, **more)
        await bench.call("approval_status", approval_id=hold)
        await bench.call("operation_status", operation_key=tool)
    await bench.call("exec_command", command=["true"])
    await bench.call("list_processes")
    await bench.call("steer_claim_next", work_id=work)
    await bench.call("work_finish", work_id=work)
    await bench.call("work_open", title="next")
    for kind in (None, "patch", "exec"):
        await operator.operations(kind)
    await operator.holds()
    await operator.outlines()
    await operator.count_pending()
    await operator.decided()
    await operator.grants()
    await daemon.inbox.works()
    await daemon.inbox.intents(work_id=work)


async def test_nothing_that_a_daemon_asks_its_database_walks_through_history(
    asked: set[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NEIGHBOURS_SECONDS", 0.02)
    async with open_bench(approvals="operator", options={"tools": ["work", "approvals"]}) as bench:
        await bench.stop()
        leave_behind(bench, "exec", "running", process_id="proc-left")
        asked.clear()  # what made the tables may well have looked at all of them
        await bench.start()
        await use_everything(bench)
        await bench.stop()
        with closing(sqlite3.connect(bench.daemon.settings.database)) as db:
            found = plans(db, asked)
        assert not {table for table in NEWEST_FIRST if not any(f"FROM {table} " in each for each in found)}
        assert {each: plan for each, plan in found.items() if walks(each, plan)} == {}
        await bench.start()
