"""A key whose operation was recorded before fingerprints named the root still means that operation, and no other."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from codespace.errors import Refusal
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
