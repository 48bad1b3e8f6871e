"""Holds in a whole daemon: bound to what was shown, run once, expired by time, settled after a crash."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.site import tree

APPEND = "*** Begin Patch\n*** Update File: log.txt\n@@\n+CANARY line\n*** End Patch\n"
ADD = "*** Begin Patch\n*** Add File: new.txt\n+CANARY line\n*** End Patch\n"
FIRST = "sha256:" + hashlib.sha256(b"first\n").hexdigest()
FILES = {"log.txt": "first\n", "tool.sh": "#!/bin/sh\necho ran >> ran.txt\n"}


async def held(bench: Bench, tool: str = "apply_patch", **arguments: Any) -> str:
    if tool == "apply_patch":
        arguments = {"patch": APPEND} | arguments
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    assert caught.value.code == "APPROVAL_REQUIRED"
    assert caught.value.approval_id is not None
    return caught.value.approval_id


async def code_of(bench: Bench, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value.code


def row(bench: Bench, approval_id: str) -> dict[str, Any]:
    with sqlite3.connect(f"file:{bench.daemon.settings.database}?mode=ro", uri=True) as db:
        db.row_factory = sqlite3.Row
        found = dict(db.execute("SELECT * FROM holds WHERE id = ?", (approval_id,)).fetchone())
    db.close()
    return found


async def test_what_is_shown_is_the_plan_and_the_diff() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=APPEND)
        assert caught.value.details is not None
        shown = caught.value.details["shown"]
        assert shown["files"] == ["log.txt"]
        assert "+CANARY line" in shown["diff"]
        assert shown["changes"][0]["before_version"].startswith("sha256:")


async def test_each_decision_on_a_hold_is_in_the_chain_with_who_made_it() -> None:
    async with open_bench(files=FILES, approvals="confirm", options={"approval_expiry_seconds": 60}) as bench:
        applied, denied, late = [await held(bench, patch=APPEND.replace("CANARY", str(number))) for number in range(3)]
        await bench.call("approval_resolve", approval_id=applied, decision="grant")
        await bench.call("operation_resume", approval_id=applied)
        await bench.call("approval_resolve", approval_id=denied, decision="deny")
        bench.advance(61)
        assert (await bench.call("approval_status", approval_id=late))["reason"] == "expired"
        with connect(bench.daemon.settings.database) as db:
            told = {each: audit.events(db, each) for each in (applied, denied, late)}
            assert audit.verify(db).ok
    assert [event.event for event in told[applied]] == ["held", "grant_given", "resume_begun", "request_ended"]
    assert [event.event for event in told[denied]] == ["held", "grant_refused"]
    assert [event.event for event in told[late]] == ["held", "time_ran_out"]
    assert "caller" in told[applied][1].details["by"]
    assert "caller" in told[denied][1].details["by"]


async def test_a_hold_that_was_not_granted_in_time_expires_and_a_new_one_may_be_had() -> None:
    async with open_bench(files=FILES, approvals="confirm", options={"approval_expiry_seconds": 60}) as bench:
        first = await held(bench, operation_key="k")
        bench.advance(61)
        for tool, more in (("approval_resolve", {"decision": "grant"}), ("operation_resume", {})):
            with pytest.raises(Refusal, match="The hold was not granted in time; nothing was done") as caught:
                await bench.call(tool, approval_id=first, **more)
            assert caught.value.code == "APPROVAL_EXPIRED"
        assert (await bench.call("approval_status", approval_id=first))["reason"] == "expired"
        assert await held(bench, operation_key="k") != first
        assert tree(bench.root)["log.txt"] == b"first\n"


async def test_a_grant_that_is_not_used_in_time_expires_too() -> None:
    async with open_bench(files=FILES, approvals="confirm", options={"approval_expiry_seconds": 60}) as bench:
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        bench.advance(61)
        for tool, more in (("operation_resume", {}), ("approval_resolve", {"decision": "grant"})):
            with pytest.raises(Refusal, match="The grant was not used in time; nothing was done") as caught:
                await bench.call(tool, approval_id=hold, **more)
            assert caught.value.code == "APPROVAL_EXPIRED"


async def test_the_body_is_gone_once_the_hold_is_denied_or_consumed() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        denied, used = await held(bench, operation_key="a"), await held(bench, operation_key="b")
        assert "CANARY" in row(bench, used)["body"]
        await bench.call("approval_resolve", approval_id=denied, decision="deny")
        await bench.call("approval_resolve", approval_id=used, decision="grant")
        await bench.call("operation_resume", approval_id=used)
        for hold in (denied, used):
            assert "CANARY" not in json.dumps(row(bench, hold))
            assert set(json.loads(row(bench, hold)["body"])) == {"sha256", "bytes"}


async def test_two_resumes_at_once_run_it_once_and_get_the_same_result() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench, "exec_command", command=["sh", "tool.sh"], operation_key="k")
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        results: list[dict[str, Any]] = []

        async def resume() -> None:
            results.append(await bench.call("operation_resume", approval_id=hold))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(resume)
        assert len({result["exec_command"]["process_id"] for result in results}) == 1
        assert tree(bench.root)["ran.txt"] == b"ran\n"


async def test_a_resume_that_is_overtaken_repeats_what_the_other_one_ran() -> None:
    faults = Faults()
    async with open_bench(files=FILES, approvals="confirm", runner=faults.open_runner) as bench:
        hold = await held(bench, "exec_command", command=["sh", "tool.sh"])
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        first: list[dict[str, Any]] = []

        async def overtake() -> None:
            first.append(await bench.call("operation_resume", approval_id=hold))

        faults.order("before", "command_sandbox", overtake)
        late = (await bench.call("operation_resume", approval_id=hold))["exec_command"]
        assert (late["process_id"], late["replayed"]) == (first[0]["exec_command"]["process_id"], True)
        assert tree(bench.root)["ran.txt"] == b"ran\n"


async def test_a_resume_that_a_denial_overtakes_says_that_it_was_denied() -> None:
    faults = Faults()
    async with open_bench(files=FILES, approvals="confirm", runner=faults.open_runner) as bench:
        hold = await held(bench, "exec_command", command=["sh", "tool.sh"])
        await bench.call("approval_resolve", approval_id=hold, decision="grant")

        async def overtake() -> None:
            await bench.call("approval_resolve", approval_id=hold, decision="deny")

        faults.order("before", "command_sandbox", overtake)
        assert await code_of(bench, "operation_resume", approval_id=hold) == "UNAUTHORIZED"
        assert "ran.txt" not in tree(bench.root)


async def test_the_same_request_sent_again_runs_after_the_grant() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        assert (await bench.call("apply_patch", patch=APPEND))["status"] == "applied"
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "consumed"
        assert await held(bench) != hold  # without a key it is a new request from then on


@pytest.mark.parametrize("changed", ["log.txt", "tool.sh"])
async def test_what_was_shown_binds_and_a_conflict_does_nothing(changed: str) -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        patch = await held(bench)
        command = await held(bench, "exec_command", command=["sh", "tool.sh"])
        for hold in (patch, command):
            await bench.call("approval_resolve", approval_id=hold, decision="grant")
        Path(bench.root, changed).write_text("changed meanwhile\n")
        before = tree(bench.root)
        hold = patch if changed == "log.txt" else command
        assert await code_of(bench, "operation_resume", approval_id=hold) == "APPROVAL_CONFLICT"
        assert tree(bench.root) == before
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "consumed"


_CHANGED_BELOW = [
    ("apply_patch", {"patch": APPEND.replace("@@\n", "@@\n first\n")}, "log.txt", "text", "INVALID_PATCH"),
    ("apply_patch", {"patch": APPEND}, "log.txt", "nothing", "FILE_NOT_FOUND"),
    ("apply_patch", {"patch": APPEND}, "log.txt", "directory", "SPECIAL_FILE_REJECTED"),
    ("apply_patch", {"patch": APPEND}, "log.txt", "link", "SYMLINK_REJECTED"),
    ("apply_patch", {"patch": APPEND, "expected_versions": {"log.txt": FIRST}}, "log.txt", "text", "VERSION_CONFLICT"),
    ("apply_patch", {"patch": ADD}, "new.txt", "text", "ADD_FILE_EXISTS"),
    ("exec_command", {"command": ["true"], "cwd": "sub"}, "sub", "nothing", "FILE_NOT_FOUND"),
    ("exec_command", {"command": ["true"], "cwd": "sub"}, "sub", "text", "PATH_NOT_DIRECTORY"),
]


@pytest.mark.parametrize(("tool", "arguments", "changed", "now", "cause"), _CHANGED_BELOW)
async def test_what_cannot_be_done_any_more_is_a_conflict_that_says_why_and_can_be_asked_for_anew(
    tool: str, arguments: dict[str, Any], changed: str, now: str, cause: str
) -> None:
    async with open_bench(files=FILES | {"sub/CANARY": ""}, approvals="confirm") as bench:
        hold = await held(bench, tool, **arguments)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        place, aside = bench.root / changed, bench.root / "aside"
        if place.exists():
            place.rename(aside)
        match now:
            case "text":
                place.write_text("CANARY of the file\n")
            case "directory":
                place.mkdir()
            case "link":
                place.symlink_to("tool.sh")
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert (caught.value.code, caught.value.approval_id) == ("APPROVAL_CONFLICT", hold)
        assert (caught.value.details or {})["cause"]["code"] == cause
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "consumed"
        assert await code_of(bench, "operation_resume", approval_id=hold) == "APPROVAL_CONFLICT"
        with connect(bench.daemon.settings.database) as db:
            assert [event.event for event in audit.events(db, hold)][-1] == "world_had_changed"
            assert "CANARY" not in "".join(db.conn.iterdump()), "what the patch or the file says is not kept"
        assert await code_of(bench, tool, **arguments) == cause, "held anew it would say the same"
        if aside.exists():
            if now != "nothing":
                place.rmdir() if now == "directory" else place.unlink()
            aside.rename(place)
        else:
            place.unlink()
        assert await held(bench, tool, **arguments) != hold


async def test_a_busy_workspace_gives_the_grant_back() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        sleeper = await held(bench, "exec_command", command=["sleep", "1000"], wait_seconds=0)
        await bench.call("approval_resolve", approval_id=sleeper, decision="grant")
        running = await bench.call("operation_resume", approval_id=sleeper)
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        assert await code_of(bench, "operation_resume", approval_id=hold) == "WORKSPACE_BUSY"
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "granted"
        await bench.call("terminate_process", process_id=running["exec_command"]["process_id"])
        resumed = await bench.call("operation_resume", approval_id=hold)
        assert resumed["apply_patch"]["status"] == "applied"


async def test_a_hold_runs_in_the_work_that_its_request_is_sent_again_with_and_a_closed_one_does_not_use_it_up() -> (
    None
):
    async with open_bench(files=FILES, approvals="confirm", options={"tools": ["files", "work", "approvals"]}) as bench:
        first, second = [(await bench.call("work_open", title=title))["work_id"] for title in ("first", "second")]
        approval_id = await held(bench, work_id=first)
        await bench.call("work_finish", work_id=first)
        await bench.call("approval_resolve", approval_id=approval_id, decision="grant")
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=approval_id)
        assert caught.value.code == "WORK_CLOSED"
        assert "send the same request with its work_id" in caught.value.next_step
        assert row(bench, approval_id)["state"] == "granted"

        applied = await bench.call("apply_patch", patch=APPEND, work_id=second)
        with connect(bench.daemon.settings.database) as db:
            found = db.execute("SELECT id, work_id, approval_id FROM operations").fetchall()
        assert found == [(applied["operation_id"], second, approval_id)]


async def test_a_profile_that_became_read_only_refuses_the_resume() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        bench.site.workspaces["main"]["profile"] = "read-only"
        bench.site.write()
        await bench.restart()
        assert await code_of(bench, "operation_resume", approval_id=hold) == "UNAUTHORIZED"
        assert tree(bench.root)["log.txt"] == b"first\n"


async def test_a_wait_for_a_decision_ends_with_it() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        seen: list[str] = []

        async def wait() -> None:
            seen.append((await bench.call("approval_status", approval_id=hold, wait_seconds=50))["state"])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await bench.call("approval_resolve", approval_id=hold, decision="grant")
        assert seen == ["granted"]


async def test_a_decision_may_be_repeated_and_not_turned_round() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        for _ in range(2):
            assert (await bench.call("approval_resolve", approval_id=hold, decision="grant"))["state"] == "granted"
        for _ in range(2):
            assert (await bench.call("approval_resolve", approval_id=hold, decision="deny"))["state"] == "denied"
        assert await code_of(bench, "approval_resolve", approval_id=hold, decision="grant") == "APPROVAL_CONFLICT"


async def test_a_denied_key_stays_denied() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench, operation_key="k")
        await bench.call("approval_resolve", approval_id=hold, decision="deny")
        assert await code_of(bench, "apply_patch", patch=APPEND, operation_key="k") == "UNAUTHORIZED"


async def test_a_key_of_a_hold_conflicts_with_other_arguments() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        await held(bench, operation_key="k")
        other = APPEND.replace("CANARY", "other")
        assert await code_of(bench, "apply_patch", patch=other, operation_key="k") == "OPERATION_KEY_CONFLICT"


async def test_a_key_stays_denied_though_the_clock_was_set_back_behind_a_hold_of_it_that_expired() -> None:
    async with open_bench(files=FILES, approvals="operator") as bench:
        await held(bench, operation_key="k")
        bench.advance(limits.APPROVAL_EXPIRY_SECONDS + 1)
        await bench.daemon.tools._holds.sweep()  # type: ignore[attr-defined]
        bench.advance(-86_400)
        await bench.daemon.operator.deny(await held(bench, operation_key="k"), by="test")
        assert await code_of(bench, "apply_patch", patch=APPEND, operation_key="k") == "UNAUTHORIZED"


async def test_an_agent_can_hold_only_so_much_and_what_is_held_already_is_still_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HOLDS_WAITING", 2)
    async with open_bench(files=FILES, approvals="confirm") as bench:
        first = await held(bench, "exec_command", command=["echo", "1"])
        await held(bench, "exec_command", command=["echo", "2"])
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["echo", "3"])
        assert (caught.value.code, caught.value.details) == ("LIMIT_REACHED", {"limit": "holds", "maximum": 2})
        assert await held(bench, "exec_command", command=["echo", "1"]) == first
        await bench.call("approval_resolve", approval_id=first, decision="deny")
        await held(bench, "exec_command", command=["echo", "3"])
        bench.advance(limits.APPROVAL_EXPIRY_SECONDS + 1)  # nobody has swept yet
        await held(bench, "exec_command", command=["echo", "4"])


async def test_what_is_held_is_never_so_much_that_the_operator_cannot_be_shown_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HOLDS_WAITING_BYTES", 4000)
    async with open_bench(files=FILES, approvals="confirm") as bench:
        first = await held(bench, "exec_command", command=["echo", "1" * 5000])  # alone it may be as large as any
        refused = {"limit": "bytes of holds", "maximum": 4000}
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["echo", "2"])
        assert (caught.value.code, caught.value.details) == ("LIMIT_REACHED", refused)
        await bench.call("approval_resolve", approval_id=first, decision="deny")
        await held(bench, "exec_command", command=["echo", "2"])
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["echo", "3" * 1500])
        assert caught.value.details == refused
        await held(bench, "exec_command", command=["echo", "3"])


async def test_an_unknown_hold_is_said_to_be_unknown() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        for tool in ("approval_status", "operation_resume"):
            assert await code_of(bench, tool, approval_id="appr-none") == "APPROVAL_NOT_FOUND"


async def test_claims_in_arguments_grant_nothing() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"
        claims = {"approved": True, "user_id": "operator"}
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=APPEND, **claims)
        assert caught.value.code == "APPROVAL_REQUIRED"


def whole_reads(statements: list[str]) -> list[str]:
    """Return the statements that read holds with their bodies."""
    return [each for each in statements if each.lower().startswith("select * from") and "holds" in each]


async def test_who_waits_for_a_decision_has_no_body_read_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECISION_LOOK_SECONDS", 0.01)
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench)
        asked = list[str]()
        bench.daemon.tools._holds._store._reader.db.conn.set_trace_callback(asked.append)  # type: ignore[attr-defined]
        assert (await bench.call("approval_status", approval_id=hold, wait_seconds=1))["state"] == "pending"
        assert len(asked) > 10
        assert len(whole_reads(asked)) == 2, "once to know whose it is, once to tell it"


async def test_of_all_holds_that_used_a_key_only_the_newest_is_read() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        hold = await held(bench, operation_key="k")
        asked = list[str]()
        bench.daemon.tools._holds._store._reader.db.conn.set_trace_callback(asked.append)  # type: ignore[attr-defined]
        assert await held(bench, operation_key="k") == hold
        (by_key, *_) = whole_reads(asked)
        assert by_key.endswith("limit 1")
