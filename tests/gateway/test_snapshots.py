"""What undo needs is kept as long as the operator said, and never thrown away before the ledger has its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults

SECONDS = 60.0
SIZE = 200_000


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRUNE_SECONDS", 0.02)
    monkeypatch.setattr(limits, "RECORD_RETRY_SECONDS", 0.02)


def kept(bench: Bench) -> set[str]:
    return set(os.listdir(Path(bench.daemon.settings.state_dir, "journal")))


async def until_kept(bench: Bench, operations: set[str]) -> None:
    with trio.fail_after(SECONDS):
        while kept(bench) != operations:
            await trio.lowlevel.checkpoint()


async def looked(faults: Faults, rounds: int) -> None:
    """Wait for so many looks at what has expired: behind the second, the first has had its consequences."""
    for _ in range(rounds):
        seen = trio.Event()

        async def tell(event: trio.Event = seen) -> None:
            event.set()

        faults.order("before", "expired", tell)
        with trio.fail_after(SECONDS):
            await seen.wait()


async def change(bench: Bench, name: str) -> str:
    patch = f"*** Begin Patch\n*** Update File: {name}\n@@\n-old\n+new\n*** End Patch"
    return str((await bench.call("apply_patch", patch=patch))["operation_id"])


async def test_the_oldest_snapshots_go_first_and_no_more_than_has_to() -> None:
    files = dict.fromkeys("abc", "old\n" + "twenty bytes a line\n" * (SIZE // 20))
    faults = Faults()
    options = {"snapshot_bytes": SIZE * 5 // 2}
    async with open_bench(files=files, options=options, runner=faults.open_runner) as bench:
        first = await change(bench, "a")
        second = await change(bench, "b")
        await looked(faults, 3)
        assert kept(bench) == {first, second}
        third = await change(bench, "c")
        await until_kept(bench, {second, third})
        await looked(faults, 3)
        assert kept(bench) == {second, third}
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_undo", operation_id=first)
        assert caught.value.code == "SNAPSHOT_EXPIRED"
        assert (await bench.call("operation_undo", operation_id=second))["status"] == "applied"


async def test_a_snapshot_goes_once_it_is_as_old_as_the_operator_said() -> None:
    files = {"a": "old\n", "b": "old\n"}
    faults = Faults()
    async with open_bench(files=files, options={"snapshot_age_seconds": 3600}, runner=faults.open_runner) as bench:
        old, young = await change(bench, "a"), await change(bench, "b")
        journal = Path(bench.daemon.settings.state_dir, "journal", old)
        an_hour_ago = journal.stat().st_mtime - 3601
        await looked(faults, 3)
        assert kept(bench) == {old, young}
        os.utime(journal, (an_hour_ago, an_hour_ago))
        await until_kept(bench, {young})


async def test_bytes_that_were_rescued_are_kept_over_every_limit() -> None:
    faults = Faults()
    async with open_bench(files={"a": "old\n"}, options={"snapshot_bytes": 0}, runner=faults.open_runner) as bench:
        with (bench.root / "a").open("a") as still_open:

            async def write() -> None:
                still_open.write("theirs\n")
                still_open.flush()

            faults.order("before", "finish", write)
            operation_id = await change(bench, "a")
        (bench.root / "b").write_text("old\n")
        plain = await change(bench, "b")
        with trio.fail_after(SECONDS):
            while plain in kept(bench):
                await trio.lowlevel.checkpoint()
        await looked(faults, 3)
        assert kept(bench) == {operation_id}
        (rescued,) = Path(bench.daemon.settings.state_dir, "journal", operation_id, "rescued").iterdir()
        assert rescued.read_text() == "old\ntheirs\n"


async def test_what_the_ledger_has_no_end_of_is_kept_over_every_limit() -> None:
    faults = Faults()
    async with open_bench(files={"a": "old\n"}, options={"snapshot_bytes": 0}, runner=faults.open_runner) as bench:
        lane = bench.daemon.tools._ledger._store._writer  # type: ignore[attr-defined]

        async def refuse_writes() -> None:
            await lane.run(lambda call: lane.db.execute("PRAGMA query_only = ON"))

        async def take_writes() -> None:
            await lane.run(lambda call: lane.db.execute("PRAGMA query_only = OFF"))

        faults.order("after", "verify", refuse_writes)
        with pytest.raises(Refusal) as caught:
            await change(bench, "a")
        assert caught.value.code == "STORE_UNAVAILABLE"
        operation_id = caught.value.operation_id
        assert operation_id is not None
        await looked(faults, 3)
        assert kept(bench) == {operation_id}
        await take_writes()
        await until_kept(bench, set())
        assert (await bench.call("operation_status", operation_id=operation_id))["status"] == "applied"
