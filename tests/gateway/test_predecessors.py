"""What a daemon that died left in a root is settled by whoever takes the root next, from its own state directory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import ids, limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patch.patcher import Patcher
from codespace.testing import Bench, open_bench, processes
from codespace.testing.faulty import Faults, crash
from codespace.testing.site import put_files, tree
from tests.gateway.test_recovery import recorded

UPDATE = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** Update File: b\n@@\n-one\n+two\n*** End Patch"
NEXT = "*** Begin Patch\n*** Add File: next\n+next\n*** End Patch"
FILES = {"a": "one\n", "b": "one\n"}


def insert(database: str, table: str, **row: Any) -> None:
    with sqlite3.connect(database) as db:
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    db.close()


def dead(bench: Bench, instance_id: str, state_dir: Path) -> None:
    """Record a daemon that is gone."""
    insert(
        bench.daemon.settings.database,
        "instances",
        id=instance_id,
        pid=1,
        started_at=1.0,
        state_dir=str(state_dir),
        lock_path=str(state_dir / "no-such-lock"),
        roots="[]",
    )


async def cut_off(
    bench: Bench, state_dir: Path, *, verbs: int, state: str, created_at: float, root: Path | None = None
) -> str:
    """Leave what a daemon with another state directory left that died after so many verbs of a patch."""
    operation_id = ids.mint(ids.OPERATION)
    workspace = replace(Workspace("main", str(root or bench.root)), profile="workspace-write")
    async with Patcher(str(state_dir)) as patcher:
        await patcher.plan(workspace, operation_id, UPDATE, {})
        for verb in (patcher.stage, patcher.install, patcher.verify, patcher.finish)[:verbs]:
            await verb(workspace, operation_id)
    dead(bench, f"inst-{operation_id}", state_dir)
    insert(
        bench.daemon.settings.database,
        "operations",
        id=operation_id,
        kind="patch",
        tool="apply_patch",
        workspace_id="main",
        root=workspace.root,
        operation_key=f"key {operation_id}",
        fingerprint="f",
        state=state,
        instance_id=f"inst-{operation_id}",
        created_at=created_at,
        finished_at=created_at if state == "applied" else None,
        files="[]",
        changes="[]",
    )
    return operation_id


async def status_of(bench: Bench, operation_id: str) -> str:
    return str((await bench.call("operation_status", operation_id=operation_id))["status"])


def staged(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith(".codespace-")]


@pytest.mark.parametrize(
    ("verbs", "state", "ends_as"),
    [(1, "snapshotting", "rejected"), (1, "applying", "failed_rolled_back"), (2, "applying", "applied")],
)
async def test_the_next_patch_in_the_root_settles_it_first(
    verbs: int, state: str, ends_as: str, tmp_path: Path
) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=verbs, state=state, created_at=bench.clock())
        assert staged(bench.root)
        assert (await bench.call("apply_patch", patch=NEXT))["status"] == "applied"
        assert await status_of(bench, left) == ends_as
        wanted = b"two\n" if ends_as == "applied" else b"one\n"
        assert tree(bench.root) == {"a": wanted, "b": wanted, "next": b"next\n"}
        assert staged(bench.root) == []
        kept = tmp_path / "journal" / left
        assert kept.exists() == (ends_as == "applied")
        if ends_as == "applied":
            undone = await bench.call("operation_undo", operation_id=left)
            assert undone["status"] == "applied"


async def test_a_patch_that_was_finished_and_not_tidied_up_behind_is_swept_at_the_next_start(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        await cut_off(bench, tmp_path, verbs=3, state="applied", created_at=bench.clock())
        assert staged(bench.root)
        await bench.restart()
        assert staged(bench.root) == []
        assert tree(bench.root) == {"a": b"two\n", "b": b"two\n"}


async def test_sweeping_that_failed_at_one_start_is_done_at_the_next(tmp_path: Path) -> None:
    faults = Faults()
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        await cut_off(bench, tmp_path, verbs=3, state="applied", created_at=bench.clock())
        for fails_in in ("finish", "leftovers"):
            faults.order("before", fails_in, crash)
            await bench.restart()
            assert staged(bench.root)
        await bench.restart()
        assert staged(bench.root) == []


@pytest.mark.parametrize("mount_point", [False, True])
async def test_what_was_left_is_swept_once_a_state_directory_that_was_away_is_back(
    tmp_path: Path, mount_point: bool
) -> None:
    state_dir, away = tmp_path / "disk/state", tmp_path / "away"
    async with open_bench(files=FILES) as bench:
        await cut_off(bench, state_dir, verbs=3, state="applied", created_at=bench.clock())
        state_dir.rename(away)
        if mount_point:  # of a disk, which is there without it
            state_dir.mkdir()
        await bench.restart()
        assert staged(bench.root)
        away.rename(state_dir)
        await bench.restart()
        assert staged(bench.root) == []


async def test_what_cannot_be_swept_in_a_root_that_is_not_registered_keeps_no_daemon_from_its_end(
    tmp_path: Path,
) -> None:
    async with open_bench(files=FILES) as bench:
        for number, state_dir in enumerate((Path(bench.daemon.settings.state_dir), tmp_path / "state")):
            other = tmp_path / f"root-{number}"
            put_files(other, FILES)
            await cut_off(bench, state_dir, verbs=3, state="applied", created_at=bench.clock(), root=other)
            dead(bench, f"inst-{number}", state_dir)
        await bench.restart()
        with sqlite3.connect(bench.daemon.settings.database) as db:
            unended = [row[0] for row in db.execute("SELECT state_dir FROM instances WHERE ended_at IS NULL")]
        db.close()
        # Itself, and the one whose patch waits for its root in a directory that no start sweeps.
        assert sorted(unended) == sorted([bench.daemon.settings.state_dir, str(tmp_path / "state")])


async def test_one_that_is_older_than_a_day_waits_for_the_operator_and_blocks_nobody(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        created_at = bench.clock() - limits.JOURNAL_AGE_SECONDS - 60
        left = await cut_off(bench, tmp_path, verbs=2, state="applying", created_at=created_at)
        await bench.restart()
        for _ in range(2):
            assert await status_of(bench, left) == "unknown"
            patch = NEXT.replace("File: next", f"File: next{os.urandom(3).hex()}")
            assert (await bench.call("apply_patch", patch=patch))["status"] == "applied"
        assert (bench.root / "a").read_text() == "two\n"


async def test_one_in_a_root_that_is_not_registered_is_unknown_until_it_is(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, text in FILES.items():
        (elsewhere / name).write_text(text)
    async with open_bench() as bench:
        left = await cut_off(
            bench, tmp_path / "state", verbs=1, state="applying", created_at=bench.clock(), root=elsewhere
        )
        await bench.restart()
        assert recorded(bench, left) == "unknown"
        bench.site.add_workspace("back", root=elsewhere)
        await bench.restart()
        assert await status_of(bench, left) == "failed_rolled_back"
        assert tree(elsewhere) == {"a": b"one\n", "b": b"one\n"}


async def test_one_in_a_root_that_is_another_directory_by_now_is_unknown_until_the_root_is_back(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=2, state="applying", created_at=bench.clock())
        await bench.stop()
        bench.root.rename(bench.root.with_name("away"))
        bench.root.mkdir()
        (bench.root / "a").write_text("another project\n")
        await bench.start()
        assert await status_of(bench, left) == "unknown"
        assert tree(bench.root) == {"a": b"another project\n"}
        await bench.stop()
        (bench.root / "a").unlink()
        bench.root.rmdir()
        bench.root.with_name("away").rename(bench.root)
        await bench.start()
        assert await status_of(bench, left) == "applied"


async def test_one_whose_state_directory_was_moved_away_is_settled_once_it_is_back(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path / "state", verbs=1, state="applying", created_at=bench.clock())
        (tmp_path / "state").rename(tmp_path / "away")
        await bench.restart()
        assert await status_of(bench, left) == "unknown"
        assert os.listdir(tmp_path) == ["away"]
        (tmp_path / "away").rename(tmp_path / "state")
        await bench.restart()
        assert await status_of(bench, left) == "failed_rolled_back"
        assert staged(bench.root) == []


@pytest.mark.parametrize("journal", ["gone", "refused"])
async def test_no_helper_stays_for_the_journals_of_a_dead_daemon_of_which_none_could_be_settled(
    journal: str, tmp_path: Path
) -> None:
    others = processes.descendants(os.getpid())  # of a daemon that serves the whole suite
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=1, state="applying", created_at=bench.clock())
        kept = tmp_path / "journal" / left
        if journal == "gone":
            shutil.rmtree(kept)
        else:
            manifest = json.loads((kept / "manifest.json").read_text())
            (kept / "manifest.json").write_text(json.dumps(manifest | {"mounts": {".": "away"}}))
        await bench.restart()
        assert await status_of(bench, left) == "unknown"
        ours = processes.descendants(os.getpid()) - others
        helpers = [pid for pid in ours if "helper.patch" in processes.command_line(pid)]
        with trio.fail_after(60):
            await processes.wait_gone(helpers)  # `unknown` is recorded before the one that found nothing is ended


async def test_the_patch_of_a_daemon_that_lives_is_never_settled_by_another(tmp_path: Path) -> None:
    async with open_bench(files=FILES) as bench:
        left = await cut_off(bench, tmp_path, verbs=2, state="applying", created_at=bench.clock())
        lock = tmp_path / "no-such-lock"
        lock.touch()

        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert (await bench.call("apply_patch", patch=NEXT))["status"] == "applied"
            assert await status_of(bench, left) == "applying"
            with pytest.raises(Refusal):
                await bench.call("operation_undo", operation_id=left)
