"""How one daemon ends beside work that does not: its own end is recorded, last, and what is left is settled later."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp.shared.exceptions import MCPError

from codespace import limits
from codespace.contract import Runner
from codespace.daemon import open_daemon
from codespace.errors import Refusal
from codespace.gateway.database import connect
from codespace.runner import inprocess
from codespace.runner.patch import patcher
from codespace.sandbox.shortage import NEXT_STEP
from codespace.settings import Settings
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.installed import END_SECONDS, script
from codespace.testing.processes import command_line, descendants
from codespace.testing.shortage import descriptors
from codespace.testing.site import Site

FILES = {"a.txt": "one\n"}
PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch\n"


@pytest.fixture(autouse=True)
def _impatiently(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOP_SECONDS", "HELPER_STOP_SECONDS"):
        monkeypatch.setattr(limits, name, 0.2)
    monkeypatch.setattr(patcher, "_SECONDS", {**patcher._SECONDS, "plan": 0.5})


@contextmanager
def helpers_that_hang() -> Iterator[None]:
    """Stop the patch helpers, as a disk that does not answer would."""
    stopped = [pid for pid in descendants(os.getpid()) if "helper.patch" in command_line(pid).split()]
    assert stopped
    for helper in stopped:
        os.kill(helper, signal.SIGSTOP)
    try:
        yield
    finally:
        for helper in stopped:
            with suppress(ProcessLookupError):
                os.kill(helper, signal.SIGCONT)


async def stop_beside_a_patch(bench: Bench, state: str) -> tuple[dict[str, Any], list[str], bool]:
    """Stop the daemon while a patch hangs in `state`; return its row, all events, and whether it is through."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_patch, bench)
        with trio.fail_after(60):
            while not (rows := _operations(bench, state)):
                await trio.lowlevel.checkpoint()
            await bench.stop()
        nursery.cancel_scope.cancel()
    with connect(bench.daemon.settings.database) as db:
        (row,) = db.query("SELECT * FROM operations WHERE id = ?", [rows[0]["id"]])
        events = [str(event) for (event,) in db.execute("SELECT event FROM events ORDER BY seq")]
        return row, events, db.table("instances").get(row["instance_id"])["ended_at"] is not None


async def _patch(bench: Bench) -> None:
    with suppress(Refusal, MCPError):  # answered, or the door was closed
        await bench.call("apply_patch", patch=PATCH, operation_key="key")


def _operations(bench: Bench, state: str) -> list[dict[str, Any]]:
    with connect(bench.daemon.settings.database) as db:
        return list(db.query("SELECT * FROM operations WHERE state = ?", [state]))


async def test_a_daemon_that_ends_beside_a_patch_whose_helper_hangs_records_both_ends_its_own_last() -> None:
    async with open_bench(files=FILES) as bench:
        await bench.call("apply_patch", patch=PATCH, check_only=True)
        with helpers_that_hang():
            row, events, through = await stop_beside_a_patch(bench, "planning")
        assert (row["state"], events[-2:], through) == ("rejected", ["refused", "stopped"], True)


async def test_a_daemon_that_ends_beside_a_patch_that_never_comes_back_records_its_own_end_and_leaves_the_patch() -> (
    None
):
    faults = Faults()
    faults.order("before", "install", trio.sleep_forever)
    async with open_bench(files=FILES, runner=faults.open_runner) as bench:
        row, events, through = await stop_beside_a_patch(bench, "applying")
        assert (row["finished_at"], events[-1], through) == (None, "stopped", False)
        await bench.start()
        assert (await bench.call("operation_status", operation_key="key"))["status"] == "failed_rolled_back"


@pytest.mark.parametrize("name", ["homes", "spool"])
def test_a_daemon_that_can_have_no_folder_of_its_own_says_so_and_does_not_start(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.state.mkdir(0o700)
    (site.state / name).touch()
    told = subprocess.run(
        [script(), "serve", "--stdio"],
        env=site.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_SECONDS,
        check=False,
    )
    assert (told.returncode, told.stdout) == (1, "")
    assert f"{site.state / name}" in told.stderr
    assert "File exists" in told.stderr
    assert "Traceback" not in told.stderr


async def test_a_daemon_that_is_short_of_descriptors_does_not_blame_its_state_directory(tmp_path: Path) -> None:
    @asynccontextmanager
    async def begun_in_need(**asked: Any) -> AsyncIterator[Runner]:
        with descriptors(0):
            async with inprocess.open_runner(**asked) as runner:
                yield runner

    settings = Settings(state_dir=str(tmp_path), database=str(tmp_path / "operations.db"))
    with pytest.raises(Refusal, match="Too many open files") as refused:
        async with open_daemon(settings, open_runner=begun_in_need):
            pass
    assert (refused.value.code, refused.value.next_step, refused.value.retryable) == (
        "STORE_UNAVAILABLE",
        NEXT_STEP,
        True,
    )
