"""The patch helper is killed between any two of its system calls: the daemon settles it, and says what is true.

A sample with a fixed seed; all kill points with EVERY_KILL_POINT=1.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from codespace.testing import open_bench

from ..worker.exchanged import exchange
from .counting import still_moving
from .scenes import SCENES, Scene, is_whole, look
from .stage import PROGRAM, Stage

SAMPLE = 5  # kill points of each scene in the normal run, with flags, without, and of its undo
CRASHES = 2  # from each of which the next helper settles, and dies once in it
MANY_CRASHES = 6
SEED = 20_260_101


def send_in(monkeypatch: pytest.MonkeyPatch, ticket: Path, flags: str) -> None:
    """Have either runner start helpers that take the ticket."""
    argv = [sys.executable, "-I", "-X", "utf8", str(PROGRAM), str(ticket), flags]
    exchange(monkeypatch, "codespace.runner.patch.patcher:Patcher.__init__.__kwdefaults__", "argv", argv)


def points(total: int, what: str, sample: int = SAMPLE) -> list[int]:
    """Return the kill points to try; other ones for each `what`."""
    if os.environ.get("EVERY_KILL_POINT"):
        return list(range(1, total + 1))
    return sorted(random.Random(f"{SEED} {what}").sample(range(1, total + 1), min(sample, total)))


def crashes(counted: Mapping[str, int], what: str) -> list[int]:
    """Return where the first of two helpers dies: behind the plan, once in each part of what follows.

    A plan is asked for again where its helper died, so that there the next one would do all and settle nothing.
    """
    chance = random.Random(f"{SEED} {what}")
    parts = MANY_CRASHES if os.environ.get("EVERY_KILL_POINT") else CRASHES
    plan, total = counted["plan"], max(counted.values())
    ends = [plan + (total - plan) * part // parts for part in range(parts + 1)]
    return [chance.randint(begin + 1, end) for begin, end in pairwise(ends)]


@pytest.mark.parametrize("flags", ["flags", "without-flags"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_whatever_moment_the_helper_dies_in_the_tree_is_whole_and_the_ledger_true(
    scene: Scene, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    ticket = tmp_path / "ticket"
    send_in(monkeypatch, ticket, flags)
    ends: dict[str, int] = {}
    async with open_bench() as bench:
        stage = Stage(bench, ticket)
        status, _ = await stage.play(scene, 0)
        assert status == "applied"
        total = max(stage.counted().values())
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
    tell(f"{scene.name}, {flags}: {sum(ends.values())} of {total} kill points of the helper tried: {ends}")


@pytest.mark.parametrize("flags", ["flags", "without-flags"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_whatever_moment_the_next_helper_dies_in_while_it_settles_the_answer_is_the_same(
    scene: Scene, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    ticket = tmp_path / "ticket"
    send_in(monkeypatch, ticket, flags)
    ends: dict[str, int] = {}
    seen = 0
    async with open_bench() as bench:
        stage = Stage(bench, ticket)
        assert (await stage.play(scene, 0))[0] == "applied"
        for first in crashes(stage.counted(), f"settle {scene.name} {flags}"):
            answer, _ = await stage.play(scene, first)
            total = max(stage.counted(1).values(), default=0)
            seen += total
            for number in points(total, f"settle {scene.name} {flags} {first}", 1):
                still_moving()
                status, recorded = await stage.play(scene, first, number)
                assert recorded["status"] == status == answer, (first, number, recorded)
                left = await stage.left(scene, recorded)
                assert not left, (first, number, status, left)
                ends[status] = ends.get(status, 0) + 1
    assert ends, "no helper had anything to settle"
    tell(f"settling {scene.name}, {flags}: {sum(ends.values())} of {seen} kill points tried: {ends}")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_whatever_moment_the_helper_dies_in_while_it_undoes_all_or_nothing_is_undone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    ticket = tmp_path / "ticket"
    send_in(monkeypatch, ticket, "flags")
    ends: dict[str, int] = {}
    async with open_bench() as bench:
        stage = Stage(bench, ticket)
        assert (await stage.take_back(scene, 0))[0] == "applied"
        total = max(stage.counted().values())
        for number in points(total, f"undo {scene.name}"):
            still_moving()
            status, recorded, (before, after) = await stage.take_back(scene, number)
            assert status in ("applied", "rejected", "failed_rolled_back"), (number, recorded)
            assert recorded["status"] == status, number
            assert look(bench.root) == (before if status == "applied" else after), (number, status)
            ends[status] = ends.get(status, 0) + 1
    tell(f"undo of {scene.name}: {sum(ends.values())} of {total} kill points of the helper tried: {ends}")
