"""The patch helper is killed between any two of its system calls: the daemon settles it, and says what is true.

A sample with a fixed seed; all kill points with EVERY_KILL_POINT=1.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.errors import Refusal
from codespace.testing import Bench, open_bench, processes

from ..worker.exchanged import exchange
from .counting import still_moving
from .scenes import SCENES, Scene, Tree, is_whole, look

PROGRAM = Path(__file__).with_name("mortal_helper.py")
SAMPLE = 3  # kill points of each scene in the normal run, with flags, without, and of its undo
SEED = 20_260_101


class Stage:
    """A daemon whose helpers die as their ticket says."""

    def __init__(self, bench: Bench, ticket: Path) -> None:
        self.bench = bench
        self.ticket = ticket
        self.journal = Path(bench.daemon.settings.state_dir, "journal")
        self._calls = 0

    async def play(self, scene: Scene, number: int) -> tuple[str, dict[str, Any]]:
        """Apply the patch with a helper that dies at `number`; return what was told and what is recorded."""
        scene.build(self.bench.root)
        await self.arm(number)
        return await self.told("apply_patch", f"{scene.name} {number}", patch=scene.patch)

    async def take_back(self, scene: Scene, number: int) -> tuple[str, dict[str, Any], tuple[Tree, Tree]]:
        """Apply the patch, and undo it with a helper that dies at `number`; return also the trees before and after."""
        scene.build(self.bench.root)
        before = look(self.bench.root)
        applied = (await self.bench.call("apply_patch", patch=scene.patch))["operation_id"]
        after = look(self.bench.root)
        await self.arm(number)
        status, recorded = await self.told("operation_undo", f"undo {number}", operation_id=applied)
        return status, recorded, (before, after)

    async def arm(self, number: int) -> None:
        """Have a helper with a kill point take the place of the one that runs."""
        self.ticket.write_text(f"{number} helper flags")
        for pid in helpers():
            os.kill(pid, signal.SIGKILL)  # the next one takes the ticket
            with trio.fail_after(10):
                await processes.wait_gone([pid])

    async def told(self, tool: str, key: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Call a tool; return the status that was told and what is recorded."""
        self._calls += 1
        key = f"{key} {self._calls}"
        try:
            told = await self.bench.call(tool, operation_key=key, **arguments)
            status = str(told["status"])
        except Refusal as refusal:
            status = str((refusal.details or {}).get("status", refusal.code))
        return status, await self.bench.call("operation_status", operation_key=key)

    def counted(self) -> int:
        return int(Path(f"{self.ticket}.count").read_text() or 0)


def helpers() -> list[int]:
    """Return the patch helpers that run, of the daemon in this process or of its worker."""
    below = processes.descendants(os.getpid())
    return [pid for pid in below if str(PROGRAM) in processes.command_line(pid).split() and processes.is_alive(pid)]


def send_in(monkeypatch: pytest.MonkeyPatch, ticket: Path, flags: str) -> None:
    """Have either runner start helpers that take the ticket."""
    argv = [sys.executable, "-I", "-X", "utf8", str(PROGRAM), str(ticket), flags]
    exchange(monkeypatch, "codespace.runner.patcher:Patcher.__init__.__kwdefaults__", "argv", argv)


def points(total: int, what: str) -> list[int]:
    """Return the kill points to try; other ones for each `what`."""
    if os.environ.get("EVERY_KILL_POINT"):
        return list(range(1, total + 1))
    return sorted(random.Random(f"{SEED} {what}").sample(range(1, total + 1), min(SAMPLE, total)))


@pytest.mark.parametrize("flags", ["flags", "without-flags"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_whatever_moment_the_helper_dies_in_the_tree_is_whole_and_the_ledger_true(
    scene: Scene, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = tmp_path / "ticket"
    send_in(monkeypatch, ticket, flags)
    ends: dict[str, int] = {}
    async with open_bench() as bench:
        stage = Stage(bench, ticket)
        status, _ = await stage.play(scene, 0)
        assert status == "applied"
        total = stage.counted()
        for number in points(total, f"{scene.name} {flags}"):
            still_moving()
            status, recorded = await stage.play(scene, number)
            assert status in ("applied", "rejected", "failed_rolled_back"), (number, recorded)
            assert recorded["status"] == status, number
            assert is_whole(scene, bench.root, status), (number, status, sorted(look(bench.root)))
            kept = stage.journal / recorded["operation_id"]
            assert kept.is_dir() == (status == "applied"), (number, status)
            assert status != "applied" or (kept / "finished").exists()
            ends[status] = ends.get(status, 0) + 1
    with capsys.disabled():
        print(f"\n{scene.name}, {flags}: {sum(ends.values())} of {total} kill points of the helper tried: {ends}")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_whatever_moment_the_helper_dies_in_while_it_undoes_all_or_nothing_is_undone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = tmp_path / "ticket"
    send_in(monkeypatch, ticket, "flags")
    ends: dict[str, int] = {}
    async with open_bench() as bench:
        stage = Stage(bench, ticket)
        assert (await stage.take_back(scene, 0))[0] == "applied"
        total = stage.counted()
        for number in points(total, f"undo {scene.name}"):
            still_moving()
            status, recorded, (before, after) = await stage.take_back(scene, number)
            assert status in ("applied", "rejected", "failed_rolled_back"), (number, recorded)
            assert recorded["status"] == status, number
            assert look(bench.root) == (before if status == "applied" else after), (number, status)
            ends[status] = ends.get(status, 0) + 1
    with capsys.disabled():
        print(f"\nundo of {scene.name}: {sum(ends.values())} of {total} kill points of the helper tried: {ends}")
