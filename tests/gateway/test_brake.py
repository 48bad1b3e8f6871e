"""A stop of a workspace ends what it can reach, whatever it cannot."""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database

from codespace.testing import open_bench


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
