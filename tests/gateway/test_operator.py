"""Approvals `operator` in a whole daemon: only the operator decides, whatever an MCP caller tries."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.gateway.operator import Operator, open_operator
from codespace.settings import load
from codespace.testing import Bench, open_bench
from codespace.testing.installed import HttpDaemon, over_http
from codespace.testing.site import Site, tree

APPEND = "*** Begin Patch\n*** Update File: log.txt\n@@\n+CANARY line\n*** End Patch\n"
FILES = {"log.txt": "first\n"}


def add(path: str, text: str = "x") -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"


async def held(bench: Bench, patch: str = APPEND, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call("apply_patch", patch=patch, **arguments)
    assert caught.value.code == "APPROVAL_REQUIRED", caught.value
    assert caught.value.approval_id is not None
    return caught.value.approval_id


async def code_of(bench: Bench, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value.code


async def state_of(bench: Bench, approval_id: str) -> str:
    return str((await bench.call("approval_status", approval_id=approval_id))["state"])


@asynccontextmanager
async def command_line(bench: Bench) -> AsyncIterator[Operator]:
    """The operator in another program, on the same database."""
    settings = bench.daemon.settings
    async with open_operator(settings.database, settings.workspaces, bench.clock, expiry_seconds=900) as operator:
        yield operator


def raw_bytes(bench: Bench) -> bytes:
    database = Path(bench.daemon.settings.database)
    return b"".join(path.read_bytes() for path in database.parent.glob(database.name + "*"))


def open_operated(**options: Any) -> Any:
    return open_bench(files=FILES, approvals="operator", **options)


async def test_the_operator_grants_in_the_daemon_and_the_agent_resumes_once() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        shown = await bench.daemon.operator.hold(hold)
        assert "+CANARY line" in shown.shown["diff"]
        granted, grant = await bench.daemon.operator.grant(hold, by="the console", fingerprint=shown.fingerprint)
        assert (granted.state, granted.decided_by, grant) == ("granted", "operator", None)
        resumed = await bench.call("operation_resume", approval_id=hold)
        assert resumed["apply_patch"]["status"] == "applied"
        again = await bench.call("operation_resume", approval_id=hold)
        assert again["apply_patch"]["operation_id"] == resumed["apply_patch"]["operation_id"]
        assert tree(bench.root)["log.txt"] == b"first\nCANARY line\n"


async def test_a_caller_can_grant_neither_by_a_tool_nor_by_claims_nor_by_asking_again() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        for decision in ("grant", "deny"):
            assert await code_of(bench, "approval_resolve", approval_id=hold, decision=decision) == "UNAUTHORIZED"
        made = await bench.call(
            "approval_create", tool="apply_patch", arguments={"workspace_id": "main", "patch": APPEND}
        )
        assert made["approval_id"] == hold
        assert await code_of(bench, "operation_resume", approval_id=hold) == "APPROVAL_REQUIRED"
        assert await held(bench, approved=True, decided_by="operator") == hold
        assert await state_of(bench, hold) == "pending"
        assert tree(bench.root) == {"log.txt": b"first\n"}


async def test_a_decision_of_another_program_on_the_same_database_is_noticed_at_once() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        seen: list[str] = []

        async def wait() -> None:
            seen.append((await bench.call("approval_status", approval_id=hold, wait_seconds=50))["state"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            async with command_line(bench) as operator:
                begun = trio.current_time()
                await operator.grant(hold, by="the command line")
                while not seen:
                    await trio.lowlevel.checkpoint()
                assert trio.current_time() - begun < 30  # and not only when its wait is over
        assert seen == ["granted"]
        assert (await bench.call("apply_patch", patch=APPEND))["status"] == "applied"


async def test_a_change_by_another_program_ends_the_wait_for_one() -> None:
    async with open_operated() as bench:
        operator = bench.daemon.operator
        seen = await operator.version()
        assert await operator.wait_changed(seen, 0.01) == seen
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(operator.wait_changed, seen, 60)
                hold = await held(bench)
            seen = await operator.version()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(operator.wait_changed, seen, 60)
                async with command_line(bench) as other:
                    await other.deny(hold, by="the command line")


async def test_what_was_held_for_the_operator_is_not_the_callers_under_another_configuration() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        bench.site.workspaces["main"]["approvals"] = "confirm"
        bench.site.write()
        await bench.restart()
        assert await code_of(bench, "approval_resolve", approval_id=hold, decision="grant") == "UNAUTHORIZED"
        assert await state_of(bench, hold) == "pending"


async def test_a_grant_that_a_caller_gave_itself_is_void_once_the_operator_decides() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        bench.site.workspaces["main"]["approvals"] = "operator"
        bench.site.write()
        await bench.restart()
        assert await code_of(bench, "operation_resume", approval_id=hold) == "UNAUTHORIZED"
        assert tree(bench.root) == {"log.txt": b"first\n"}
        assert await held(bench) != hold


async def test_a_grant_for_something_else_than_what_was_shown_is_refused() -> None:
    async with open_operated() as bench:
        hold, other = await held(bench), await held(bench, add("new.txt"))
        fingerprint = (await bench.daemon.operator.hold(other)).fingerprint
        with pytest.raises(Refusal) as caught:
            await bench.daemon.operator.grant(hold, by="the console", fingerprint=fingerprint)
        assert caught.value.code == "APPROVAL_CONFLICT"
        assert await state_of(bench, hold) == "pending"


async def test_a_grant_can_be_taken_back_until_it_is_used() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        await bench.daemon.operator.grant(hold, by="the console")
        await bench.daemon.operator.deny(hold, by="the console")
        assert await code_of(bench, "operation_resume", approval_id=hold) == "UNAUTHORIZED"
        assert tree(bench.root) == {"log.txt": b"first\n"}


async def test_an_undo_is_held_too_and_undoes_once_it_is_granted() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        await bench.daemon.operator.grant(hold, by="the console")
        applied = (await bench.call("operation_resume", approval_id=hold))["apply_patch"]["operation_id"]
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_undo", operation_id=applied)
        assert caught.value.code == "APPROVAL_REQUIRED"
        undo = caught.value.approval_id or ""
        assert "-CANARY line" in (await bench.daemon.operator.hold(undo)).shown["diff"]
        assert tree(bench.root)["log.txt"] == b"first\nCANARY line\n"
        await bench.daemon.operator.grant(undo, by="the console")
        assert (await bench.call("operation_resume", approval_id=undo))["operation_undo"]["status"] == "applied"
        assert tree(bench.root) == {"log.txt": b"first\n"}


async def test_a_hold_that_nobody_asks_for_is_swept_and_its_body_is_gone_from_every_file() -> None:
    async with open_operated(options={"approval_expiry_seconds": 60}) as bench:
        hold = await held(bench)
        assert b"CANARY" in raw_bytes(bench)
        bench.advance(61)
        with trio.fail_after(60):
            while await state_of(bench, hold) != "denied" or b"CANARY" in raw_bytes(bench):
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("ending", ["deny", "grant"])
async def test_a_body_leaves_every_file_though_somebody_reads_the_database(ending: str) -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        reader = sqlite3.connect(bench.daemon.settings.database, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM holds").fetchone()  # keeps the log as it is
        if ending == "deny":
            await bench.daemon.operator.deny(hold, by="the console")
        else:
            await bench.daemon.operator.grant(hold, by="the console")
            await bench.call("operation_resume", approval_id=hold)
        assert b"CANARY" in raw_bytes(bench)
        reader.close()
        with trio.fail_after(60):
            while b"CANARY" in raw_bytes(bench):
                await trio.lowlevel.checkpoint()


async def test_the_command_line_scrubs_what_it_denies_without_a_daemon() -> None:
    async with open_operated() as bench:
        hold = await held(bench)
        await bench.stop()
        assert b"CANARY" in raw_bytes(bench)
        async with command_line(bench) as operator:
            await operator.deny(hold, by="the command line")
        assert b"CANARY" not in raw_bytes(bench)
        await bench.start()
        assert await state_of(bench, hold) == "denied"


# --- scoped grants ---


async def scoped(bench: Bench, patch: str, path: str, seconds: float | None) -> str:
    """Hold a patch, grant it and what is under `path` too; return the grant's id."""
    _, grant = await bench.daemon.operator.grant(
        await held(bench, patch), by="the console", scope="patches", path=path, seconds=seconds
    )
    assert grant is not None
    return grant.id


async def test_patches_under_a_granted_path_run_and_others_are_held() -> None:
    async with open_operated() as bench:
        grant = await scoped(bench, add("src/a.txt"), "src", 600)
        assert (await bench.call("apply_patch", patch=add("src/a.txt")))["status"] == "applied"
        assert (await bench.call("apply_patch", patch=add("src/deep/b.txt")))["status"] == "applied"
        for outside in ("srcs/c.txt", "d.txt", "src/../e.txt"):
            await held(bench, add(outside))
        both = add("src/f.txt").replace("*** End", "*** Add File: g.txt\n+x\n*** End")
        await held(bench, both)
        move = "*** Begin Patch\n*** Update File: log.txt\n*** Move to: src/log.txt\n@@\n first\n+x\n*** End Patch\n"
        await held(bench, move)
        assert set(tree(bench.root)) == {"log.txt", "src/a.txt", "src/deep/b.txt"}
        (told,) = await bench.daemon.operator.grants()
        assert (told.id, told.uses, told.state) == (grant, 1, "active")  # the first was granted by the operator himself


async def test_a_grant_is_used_and_ends_though_a_newer_daemon_gave_its_table_another_column() -> None:
    async with open_operated() as bench:
        await scoped(bench, add("src/one.txt"), "src", 600)
        with sqlite3.connect(bench.daemon.settings.database) as db:
            db.execute("ALTER TABLE grants ADD COLUMN later TEXT")
        db.close()
        assert (await bench.call("apply_patch", patch=add("src/two.txt")))["status"] == "applied"
        bench.advance(601)
        (grant,) = await bench.daemon.operator.grants()
        assert (grant.state, grant.uses) == ("lapsed", 1)


async def test_each_use_of_a_grant_is_in_the_chain_with_the_hold_it_granted() -> None:
    async with open_operated() as bench:
        grant = await scoped(bench, add("src/a.txt"), "src", 600)
        await bench.call("apply_patch", patch=add("src/b.txt"))
        with connect(bench.daemon.settings.database) as db:
            used = audit.events(db, grant)
            assert [event.event for event in used] == ["given", "used"]
            hold = used[1].details["approval_id"]
            granted = next(event for event in audit.events(db, hold) if event.event == "grant_given")
            assert granted.details["by"] == f"scoped grant {grant}"
            assert audit.verify(db).ok
        assert (await bench.daemon.operator.hold(hold)).decided_by == "grant"


async def test_a_revoked_grant_grants_nothing_and_its_terms_are_gone() -> None:
    async with open_operated() as bench:
        grant = await scoped(bench, add("src/a.txt"), "src", None)
        for _ in range(2):
            assert (await bench.daemon.operator.revoke(grant)).state == "revoked"
        await held(bench, add("src/b.txt"))
        (told,) = await bench.daemon.operator.grants()
        assert set(told.terms) == {"sha256", "bytes"}


@pytest.mark.parametrize("seconds", [None, 90.5])
async def test_a_click_that_is_one_too_many_gives_no_second_grant_that_a_revoke_would_leave(
    seconds: float | None,
) -> None:
    async with open_operated() as bench:
        operator = bench.daemon.operator
        grant = partial(operator.grant, await held(bench, add("src/a.txt")), by="the console")
        given = list[str]()

        async def click() -> None:
            _, found = await grant(scope="patches", path="src", seconds=seconds)
            assert found is not None
            given.append(found.id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(click)
            nursery.start_soon(click)
        bench.advance(1)
        await click()
        assert len(set(given)) == 1
        await operator.revoke(given[0])
        await held(bench, add("src/b.txt"))
        _, anew = await grant(scope="patches", path="src", seconds=seconds)
        _, longer = await grant(scope="patches", path="src", seconds=600)
        assert len({given[0], anew and anew.id, longer and longer.id}) == 3


async def exact(bench: Bench, seconds: float | None) -> str:
    """Grant exactly a command whose arguments nobody should keep, and let it run; return the grant's id."""
    command = {"command": ["/bin/echo", "CANARY"]}
    with pytest.raises(Refusal) as caught:
        await bench.call("exec_command", **command)
    hold = caught.value.approval_id or ""
    _, grant = await bench.daemon.operator.grant(hold, by="the console", scope="exact", seconds=seconds)
    assert grant is not None
    await bench.call("operation_resume", approval_id=hold)
    assert (await bench.call("exec_command", **command))["exit_code"] == 0
    return grant.id


async def until_gone(bench: Bench) -> None:
    with trio.fail_after(60):
        while b"CANARY" in raw_bytes(bench):
            await trio.lowlevel.checkpoint()


async def test_what_a_grant_names_leaves_every_file_when_it_is_revoked() -> None:
    async with open_operated() as bench:
        grant = await exact(bench, None)
        assert b"CANARY" in raw_bytes(bench)
        await bench.daemon.operator.revoke(grant)
        await until_gone(bench)


async def test_what_a_grant_names_leaves_every_file_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HOLD_SWEEP_SECONDS", 0.05)
    async with open_operated() as bench:
        await exact(bench, 60)
        assert b"CANARY" in raw_bytes(bench)
        bench.advance(61)
        await until_gone(bench)


async def test_a_grant_that_is_given_again_later_lasts_from_then_on() -> None:
    async with open_operated() as bench:
        operator = bench.daemon.operator
        grant = partial(operator.grant, await held(bench, add("src/a.txt")), by="the console")
        _, first = await grant(scope="patches", path="src", seconds=60)
        bench.advance(50)
        _, again = await grant(scope="patches", path="src", seconds=60)
        assert first is not None
        assert again is not None
        assert 50 <= (again.expires_at or 0) - (first.expires_at or 0) < 60  # the clock goes on by itself too


async def test_a_grant_ends_with_its_time() -> None:
    async with open_operated() as bench:
        await scoped(bench, add("src/a.txt"), "src", 60)
        bench.advance(61)
        await held(bench, add("src/b.txt"))
        (told,) = await bench.daemon.operator.grants()
        assert told.state == "lapsed"


async def test_a_grant_until_the_daemon_ends_ends_with_it() -> None:
    async with open_operated() as bench:
        await scoped(bench, add("src/a.txt"), "src", None)
        await bench.restart()
        await held(bench, add("src/b.txt"))
        (told,) = await bench.daemon.operator.grants()
        assert told.state == "lapsed"


async def test_a_grant_until_a_daemon_ends_that_has_ended_is_refused_and_grants_nothing() -> None:
    async with open_operated() as bench:
        hold = await held(bench, add("src/a.txt"))
        await bench.restart()
        with pytest.raises(Refusal) as caught:
            await bench.daemon.operator.grant(hold, by="operator", scope="patches", path="src")
        assert (caught.value.code, caught.value.details) == ("INVALID_ARGUMENT", {"argument": "seconds"})
        assert (await bench.daemon.operator.hold(hold)).state == "pending"
        assert await bench.daemon.operator.grants() == []
        granted, grant = await bench.daemon.operator.grant(hold, by="operator", scope="patches", path="src", seconds=60)
        assert (granted.state, grant and grant.state) == ("granted", "active")


async def test_a_grant_until_a_daemon_ends_that_was_killed_is_over_and_another_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace("main", approvals="operator")
    settings = load(site.environ)
    with HttpDaemon(site) as daemon:
        async with over_http(site, daemon.url, daemon.token) as visit:
            holds = []
            for name in ("a", "b"):
                with pytest.raises(Refusal) as caught:
                    await visit.call("apply_patch", patch=add(name))
                holds.append(str(caught.value.approval_id))
        async with open_operator(settings.database, settings.workspaces, time.time, expiry_seconds=900) as operator:
            await operator.grant(holds[0], by="operator", scope="patches", path=".")
            assert [grant.state for grant in await operator.grants()] == ["active"]
            daemon.kill()
            assert [grant.state for grant in await operator.grants()] == ["lapsed"]
            with pytest.raises(Refusal, match="has ended, and a grant until its end with it") as caught:
                await operator.grant(holds[1], by="operator", scope="patches", path=".")
            assert caught.value.details == {"argument": "seconds"}
            assert (await operator.hold(holds[1])).state == "pending"


class Refusing(Database):
    """A database that takes no write behind the commit of a granted hold."""

    def execute(self, sql: str, parameters: object = None) -> sqlite3.Cursor:
        done = super().execute(sql, parameters)  # type: ignore[arg-type]
        if sql == "COMMIT":
            (last,) = super().execute("SELECT event FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            super().execute(f"PRAGMA query_only = {int(last == 'grant_given')}")
        return done


async def test_a_scope_that_cannot_be_recorded_says_that_the_hold_itself_was_granted() -> None:
    async with open_operated() as bench:
        hold = await held(bench, add("src/a.txt"))
        lane = bench.daemon.tools._ledger._store._writer  # type: ignore[attr-defined]
        lane.db = Refusing(lane.db.conn)
        with pytest.raises(Refusal) as caught:
            await bench.daemon.operator.grant(hold, by="operator", scope="patches", path="src")
        lane.db.conn.execute("PRAGMA query_only = OFF")
        assert caught.value.code == "STORE_UNAVAILABLE"
        assert caught.value.message.startswith("This hold was granted, once; what is like it was not.")
        assert (await bench.daemon.operator.hold(hold)).state == "granted"
        assert await bench.daemon.operator.grants() == []


async def test_a_grant_for_a_time_outlives_the_daemon_but_not_the_profile() -> None:
    async with open_operated() as bench:
        await scoped(bench, add("src/a.txt"), "src", 3600)
        await bench.restart()
        assert (await bench.call("apply_patch", patch=add("src/b.txt")))["status"] == "applied"
        bench.site.workspaces["main"]["profile"] = "read-only"
        bench.site.write()
        await bench.restart()
        assert await code_of(bench, "apply_patch", patch=add("src/c.txt")) == "UNAUTHORIZED"


async def test_a_grant_of_patches_never_opens_a_protected_path() -> None:
    async with open_operated() as bench:
        await scoped(bench, add("a.txt"), ".", 600)
        assert (await bench.call("apply_patch", patch=add("b.txt")))["status"] == "applied"
        assert await code_of(bench, "apply_patch", patch=add(".git/config")) == "PROTECTED_PATH"


@pytest.mark.parametrize(
    ("scope", "path", "seconds"),
    [
        ("patches", None, 60),
        ("patches", "/etc", 60),
        ("patches", "..", 60),
        ("patches", "elsewhere", 60),
        ("patches", "src", 0),
        ("patches", "src", 1e9),
        ("exact", None, 60),
        ("program", None, 60),
    ],
)
async def test_a_scope_that_is_not_to_be_had_grants_nothing(scope: Any, path: str | None, seconds: float) -> None:
    async with open_operated() as bench:
        hold = await held(bench, add("src/a.txt"))
        with pytest.raises(Refusal) as caught:
            await bench.daemon.operator.grant(hold, by="the console", scope=scope, path=path, seconds=seconds)
        assert caught.value.code == "INVALID_ARGUMENT"
        assert await state_of(bench, hold) == "pending"
        assert await bench.daemon.operator.grants() == []


@pytest.mark.parametrize(("late", "code"), [(True, "APPROVAL_EXPIRED"), (False, "APPROVAL_CONFLICT")])
@pytest.mark.parametrize("scope", ["exact", "program"])
async def test_a_hold_that_has_ended_is_granted_in_no_scope_and_says_what_became_of_it(
    scope: Any, late: bool, code: str
) -> None:
    async with open_operated() as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["true"])
        hold = str(caught.value.approval_id)
        if late:
            bench.clock.advance(bench.daemon.settings.approval_expiry_seconds + 1)
        else:
            await bench.daemon.operator.deny(hold, by="the console")
        with pytest.raises(Refusal) as refused:
            await bench.daemon.operator.grant(hold, by="the console", scope=scope, seconds=60)
        assert refused.value.code == code
        assert await bench.daemon.operator.grants() == []


async def test_a_workspace_whose_caller_may_confirm_has_no_scoped_grants() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        with pytest.raises(Refusal) as caught:
            await bench.daemon.operator.grant(hold, by="the console", scope="patches", path=".")
        assert caught.value.code == "INVALID_ARGUMENT"
        assert "`operator`" in json.dumps(caught.value.body())


# --- large diffs ---


def long_patch(lines: int) -> str:
    return add("long.txt", "\n+".join(f"line number {number} of many" for number in range(lines)))


async def test_a_diff_that_no_answer_holds_is_held_whole_for_the_operator() -> None:
    async with open_operated() as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=long_patch(20_000))
        assert caught.value.approval_id is not None
        told = caught.value.details or {}
        assert told["shown"]["diff_truncated"] is True
        assert len(told["shown"]["diff"]) <= limits.DIFF_BYTES
        shown = (await bench.daemon.operator.hold(caught.value.approval_id)).shown
        assert shown["diff"].count("of many\n") == 20_000
        status = await bench.call("approval_status", approval_id=caught.value.approval_id)
        assert status["shown"] == {"files": ["long.txt"], "changes": told["shown"]["changes"], "left_out": True}
        await bench.daemon.operator.grant(caught.value.approval_id, by="the console")
        done = await bench.call("operation_resume", approval_id=caught.value.approval_id)
        assert done["apply_patch"]["status"] == "applied"


@pytest.mark.parametrize(("approvals", "repeated"), [("operator", False), ("confirm", True)])
async def test_who_asks_after_a_hold_is_not_told_again_what_was_sent_unless_they_decide_it(
    approvals: str, repeated: bool
) -> None:
    async with open_bench(files=FILES, approvals=approvals) as bench:
        for tool, asked in (
            ("apply_patch", {"patch": APPEND}),
            ("exec_command", {"command": ["cat"], "stdin": "CANARY"}),
        ):
            for _ in range(2):  # the request itself is answered with all that is shown, however often it comes
                with pytest.raises(Refusal) as caught:
                    await bench.call(tool, **asked)
                assert "CANARY" in json.dumps(caught.value.details)
            hold = caught.value.approval_id
            status = await bench.call("approval_status", approval_id=hold)
            with pytest.raises(Refusal) as caught:
                await bench.call("operation_resume", approval_id=hold)
            assert caught.value.details is not None
            for shown in (status["shown"], caught.value.details["shown"]):
                assert ("CANARY" in json.dumps(shown), "left_out" in shown) == (repeated, not repeated)


@pytest.mark.parametrize(("approvals", "lines"), [("operator", 60_000), ("confirm", 20_000)])
async def test_a_diff_that_cannot_be_shown_whole_to_who_decides_is_not_held(approvals: str, lines: int) -> None:
    async with open_bench(files=FILES, approvals=approvals) as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=long_patch(lines))
        assert caught.value.code == "LIMIT_REACHED"
        assert tree(bench.root) == {"log.txt": b"first\n"}
        assert await bench.daemon.operator.holds() == []


@pytest.mark.parametrize("where", ["stdin", "env", "command"])
async def test_what_nobody_could_look_through_is_not_held(where: str) -> None:
    long = "x" * limits.HOLD_TEXTS_BYTES
    given = {"command": ["cat"]} | {where: {"stdin": long, "env": {"A": long}, "command": ["cat", long]}[where]}
    async with open_operated() as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", **given)
        assert (caught.value.code, (caught.value.details or {})["limit"]) == ("LIMIT_REACHED", "HOLD_TEXTS_BYTES")
        assert await bench.daemon.operator.holds() == []


async def test_however_much_is_held_the_list_of_it_can_be_had_and_names_what_it_leaves_out() -> None:
    async with open_operated() as bench:
        short = await held(bench)
        long = await held(bench, add("long.txt", "\n+".join(["x" * 99] * (limits.HOLD_LISTED_CHARACTERS // 99))))
        listed = {hold.id: hold for hold in await bench.daemon.operator.holds()}
        assert [*listed] == [short, long]
        assert "+CANARY line" in listed[short].shown["diff"]
        assert (listed[long].shown["files"], listed[long].shown["left_out"]) == (["long.txt"], True)
        assert "diff" not in listed[long].shown
        assert not any(hold.body for hold in listed.values())
        whole = await bench.daemon.operator.hold(long)
        assert len(whole.shown["diff"]) > limits.HOLD_LISTED_CHARACTERS


async def test_a_list_of_what_is_held_carries_none_of_its_long_texts_and_nothing_whose_time_is_over() -> None:
    async with open_operated() as bench:
        operator = bench.daemon.operator
        patch = await held(bench)
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["cat"], stdin="CANARY")
        assert [hold.id for hold in await operator.outlines()] == [patch, caught.value.approval_id]
        assert await operator.count_pending() == 2
        assert "CANARY" not in str(await operator.outlines())
        assert [hold.shown.get("files", hold.shown.get("command")) for hold in await operator.outlines()] == [
            ["log.txt"],
            ["cat"],
        ]
        await operator.grant(patch, by="test")
        assert await operator.count_pending() == 1
        bench.advance(limits.APPROVAL_EXPIRY_SECONDS + 1)
        assert (await operator.outlines(), await operator.count_pending()) == ([], 0)
