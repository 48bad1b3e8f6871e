"""Another directory under the same id, at another daemon on the same database: nothing of it is told or counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.site import Site
from tests.gateway.test_elsewhere import beside

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
