"""Another directory under the same id, at another daemon on the same database: nothing of it is told or counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.database import connect
from codespace.testing import Bench, open_bench
from codespace.testing.site import Site
from tests.gateway.test_elsewhere import beside
from tests.http.test_console import signed_in

PATCH = "*** Begin Patch\n*** Add File: CANARY.txt\n+text\n*** End Patch\n"


@asynccontextmanager
async def namesakes(tmp_path: Path, approvals: str = "off") -> AsyncIterator[tuple[Bench, Bench]]:
    """Run two daemons on one database, which give the id `main` to a directory each."""
    async with open_bench(approvals=approvals) as bench:
        site = Site(tmp_path)
        site.add_workspace("main", approvals=approvals)
        site.extra_environ["CODESPACE_OPERATIONS_DB"] = bench.daemon.settings.database
        async with beside(bench, site) as other:
            yield bench, other


async def refused(bench: Bench, tool: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value


async def test_an_operation_of_a_namesake_is_as_one_that_never_was(tmp_path: Path) -> None:
    async with namesakes(tmp_path) as (bench, other):
        operation_id = (await bench.call("apply_patch", patch=PATCH, operation_key="guessed"))["operation_id"]
        for tool, named in (
            ("operation_status", {"operation_id": operation_id}),
            ("operation_undo", {"operation_id": operation_id}),
            ("operation_status", {"operation_key": "guessed"}),
        ):
            unknown = await refused(other, tool, **dict.fromkeys(named, "op-none"))
            assert (await refused(other, tool, **named)).body() == unknown.body()
            assert unknown.code == "OPERATION_NOT_FOUND"
        status = await bench.call("operation_status", operation_key="guessed")
        assert (status["operation_id"], status["still_current"]) == (operation_id, True)


async def test_a_key_that_a_namesake_took_is_never_answered_with_what_was_done_there(tmp_path: Path) -> None:
    async with namesakes(tmp_path) as (bench, other):
        await bench.call("apply_patch", patch=PATCH, operation_key="k")
        conflict = await refused(other, "apply_patch", patch=PATCH, operation_key="k")
        assert conflict.code == "OPERATION_KEY_CONFLICT"
        assert list(tmp_path.rglob("CANARY.txt")) == []


async def test_an_operation_of_a_directory_that_has_another_id_by_now_is_told_and_undone() -> None:
    async with open_bench() as bench:
        applied = await bench.call("apply_patch", patch=PATCH)
        await bench.stop()
        del bench.site.workspaces["main"]
        bench.site.add_workspace("renamed", root=bench.root)
        await bench.start()
        status = await bench.call("operation_status", operation_id=applied["operation_id"])
        assert (status["workspace_id"], status["status"], status["still_current"]) == ("renamed", "applied", True)
        await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert not (bench.root / "CANARY.txt").exists()


async def held(bench: Bench, tool: str = "apply_patch", **arguments: Any) -> str:
    refusal = await refused(bench, tool, **arguments or {"patch": PATCH})
    assert refusal.code == "APPROVAL_REQUIRED"
    return str(refusal.approval_id)


def forget_root(bench: Bench, approval_id: str) -> None:
    """Make a hold one of before its directory was kept."""
    with connect(bench.daemon.settings.database) as db:
        db.execute("UPDATE holds SET root = NULL WHERE id = ?", (approval_id,))


@pytest.mark.parametrize("ends", ["denied", "consumed"])
async def test_a_hold_of_a_namesake_that_has_ended_says_no_more_than_one_that_waits(tmp_path: Path, ends: str) -> None:
    async with namesakes(tmp_path, "confirm") as (bench, other):
        hold = await held(bench)
        await bench.call("approval_resolve", approval_id=hold, decision="deny" if ends == "denied" else "grant")
        if ends == "consumed":
            await bench.call("operation_resume", approval_id=hold)
        assert "CANARY" in str(await bench.call("approval_status", approval_id=hold))
        for tool in ("approval_status", "operation_resume"):
            said = await refused(other, tool, approval_id=hold)
            assert (said.code, "CANARY" in str(said.body())) == ("APPROVAL_CONFLICT", False)


async def test_a_hold_of_before_its_directory_was_kept_is_known_by_its_request_as_long_as_that_is_there(
    tmp_path: Path,
) -> None:
    async with namesakes(tmp_path, "confirm") as (bench, other):
        hold = await held(bench)
        forget_root(bench, hold)
        assert (await refused(other, "approval_status", approval_id=hold)).code == "APPROVAL_CONFLICT"
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"
        await bench.call("approval_resolve", approval_id=hold, decision="deny")
        for either in (bench, other):  # its request is gone, and nothing else says whose it was
            assert (await refused(either, "approval_status", approval_id=hold)).code == "APPROVAL_CONFLICT"


async def test_the_holds_of_a_namesake_take_no_places_of_the_own_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLDS_WAITING", 1)
    async with namesakes(tmp_path, "confirm") as (bench, other):
        theirs = await held(other)
        await held(bench)
        assert (await refused(bench, "exec_command", command=["true"])).code == "LIMIT_REACHED"
        forget_root(other, theirs)
        assert (await refused(other, "exec_command", command=["true"])).code == "LIMIT_REACHED"


async def test_a_scoped_grant_with_a_hold_of_a_namesake_is_for_the_directory_that_was_shown(tmp_path: Path) -> None:
    async with namesakes(tmp_path, "operator") as (bench, other):
        hold = await held(other)
        here = bench.daemon.operator
        _, grant = await here.grant(hold, by="test", scope="patches", path=".", seconds=60)
        assert grant is not None
        assert grant.terms["root"] == str(other.root)
        await held(bench)
        another = PATCH.replace("CANARY", "another")
        assert (await other.call("apply_patch", patch=another))["status"] == "applied"


async def test_the_operator_is_shown_what_is_recorded_of_any_directory(tmp_path: Path) -> None:
    async with namesakes(tmp_path) as (bench, other), signed_in(other) as http:
        applied = await bench.call("apply_patch", patch=PATCH)
        path = f"/operations/{applied['operation_id']}"
        assert path in (await http.get("/operations")).text
        page = await http.get(path)
        assert (page.status_code, "CANARY.txt" in page.text) == (200, True)
        assert (await http.get("/operations/op-none")).status_code == 404
