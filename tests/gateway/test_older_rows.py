"""Rows from before directories were kept in them still mean what they meant, and nothing in another directory."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from codespace.errors import Refusal
from codespace.gateway import hold, schema
from codespace.gateway.opening import open_store
from codespace.gateway.request import Fingerprints
from codespace.testing import Bench, open_bench

PATCH = "*** Begin Patch\n*** Add File: a\n+one\n*** End Patch"


def make_older(bench: Bench, key: str, *, root: str | None = None) -> None:
    """Give the operation of a key the fingerprint, and perhaps the root, that an older row has."""
    workspace = bench.daemon.settings.workspaces["main"]
    asked = {"workspace_id": "main", "patch": PATCH, "expected_versions": {}, "operation_key": key}
    with closing(sqlite3.connect(bench.daemon.settings.database)) as db, db:
        ((secret,),) = db.execute("SELECT value FROM meta WHERE name = 'secret:fingerprint'")
        prints = Fingerprints(bytes.fromhex(secret))
        ((recorded,),) = db.execute("SELECT fingerprint FROM operations WHERE operation_key = ?", (key,))
        assert recorded == prints.of("apply_patch", workspace, asked)
        older = prints.of("apply_patch", workspace, asked, rooted=False)
        db.execute(
            "UPDATE operations SET fingerprint = ?, root = coalesce(?, root) WHERE operation_key = ?",
            (older, root, key),
        )


async def test_the_same_request_of_the_same_root_is_answered_again() -> None:
    async with open_bench() as bench:
        first = await bench.call("apply_patch", patch=PATCH, operation_key="k")
        make_older(bench, "k")
        again = await bench.call("apply_patch", patch=PATCH, operation_key="k")
        assert (again["operation_id"], again["replayed"]) == (first["operation_id"], True)


@pytest.mark.parametrize(
    ("root", "patch"), [("/elsewhere", PATCH), (None, PATCH.replace("+one", "+two"))], ids=["root", "patch"]
)
async def test_another_request_or_one_for_another_root_is_a_conflict(root: str | None, patch: str) -> None:
    async with open_bench() as bench:
        await bench.call("apply_patch", patch=PATCH, operation_key="k")
        make_older(bench, "k", root=root)
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=patch, operation_key="k")
        assert caught.value.code == "OPERATION_KEY_CONFLICT"


async def test_a_hold_that_ran_before_its_directory_was_kept_is_of_the_directory_of_its_operation(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "operations.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        schema.MIGRATIONS.apply(Database(db), stop_before="m008_roots_of_holds_lists")
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 7")
        for number, state in enumerate(("consumed", "denied")):
            db.execute(
                "INSERT INTO holds (id, tool, workspace_id, fingerprint, state, shown, caller, expires_at, created_at, "
                "instance_id) VALUES (?, 'apply_patch', 'main', 'f', ?, '{}', 'stdio', 1.0, ?, 'inst-1')",
                (f"appr-{state}", state, float(number)),
            )
        db.execute(
            "INSERT INTO operations (id, kind, tool, workspace_id, root, fingerprint, state, instance_id, created_at, "
            "files, changes, approval_id) VALUES ('op-1', 'patch', 'apply_patch', 'main', '/of/the/patch', 'f', "
            "'applied', 'inst-1', 1.0, '[]', '[]', 'appr-consumed')"
        )
    async with open_store(path) as store:
        found = await store.read(lambda db: hold.ended(db, 10))
    assert [(each.id, each.root) for each in found] == [("appr-denied", None), ("appr-consumed", "/of/the/patch")]


async def test_a_hold_that_ended_before_its_directory_was_kept_is_told_to_its_operator_alone() -> None:
    async with open_bench(approvals="confirm") as bench:
        with pytest.raises(Refusal) as held:
            await bench.call("apply_patch", patch=PATCH)
        approval_id = held.value.approval_id
        await bench.call("approval_resolve", approval_id=approval_id, decision="deny")
        assert (await bench.call("approval_status", approval_id=approval_id))["state"] == "denied"
        with closing(sqlite3.connect(bench.daemon.settings.database)) as db, db:
            db.execute("UPDATE holds SET root = NULL WHERE id = ?", (approval_id,))
        for tool in ("approval_status", "operation_resume"):
            with pytest.raises(Refusal) as caught:
                await bench.call(tool, approval_id=approval_id)
            assert caught.value.code == "APPROVAL_CONFLICT"
            assert "is of before its directory was kept" in caught.value.message
        assert [hold.id for hold in await bench.daemon.operator.decided()] == [approval_id]
