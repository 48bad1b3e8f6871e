"""The daemon is killed between any two of its steps, alone or with its helper: the next one settles the patch.

A sample with a fixed seed; all kill points with EVERY_KILL_POINT=1.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from codespace.testing.site import Site

from .counting import still_moving
from .scenes import SCENES, Scene, is_whole, look

PROGRAM = Path(__file__).with_name("zygote.py")
SAMPLE = 4  # kill points of each scene in the normal run
SEED = 20_260_102


class Daemons:
    """Orders for the program that forks daemons."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.root = self.site.add_workspace("main")
        self._program = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, TMPDIR=str(folder)),  # a killed daemon leaves its temporary files
        )

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        filled = {"environ": self.site.environ, "both": False} | order
        self._program.stdin.write(json.dumps(filled) + "\n")
        self._program.stdin.flush()
        reply = json.loads(self._program.stdout.readline())
        assert "fault" not in reply, reply
        return dict(reply)

    def close(self) -> None:
        self._program.communicate(timeout=60)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path)
    yield made
    made.close()


def points(total: int, what: str) -> list[int]:
    """Return the kill points to try; threads make a life longer or shorter, so all of them go on behind `total`."""
    if os.environ.get("EVERY_KILL_POINT"):
        return list(range(1, total + total // 2))
    return sorted(random.Random(f"{SEED} {what}").sample(range(1, total + 1), min(SAMPLE, total)))


@pytest.mark.parametrize("both", [False, True], ids=["daemon", "daemon and helper"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_whatever_moment_the_daemon_dies_in_the_next_one_says_what_is_true(
    scene: Scene, both: bool, daemons: Daemons, tell: Callable[[str], None]
) -> None:
    scene.build(daemons.root)
    total = daemons.order(key="count", patch=scene.patch, at=0)["count"]
    ends: dict[str, int] = {}
    for number in points(total, f"{scene.name} {both}"):
        still_moving()
        scene.build(daemons.root)
        order = {"key": f"kill {number}", "patch": scene.patch}
        died = daemons.order(**order, at=number, both=both)
        reopened = daemons.order(**order, at=None)
        status = reopened["status"]
        if status is None:  # the key was not taken yet: the second daemon has applied it for the first time
            status = reopened["again"]
            assert status == "applied"
        assert status in ("applied", "rejected", "failed_rolled_back"), (number, reopened)
        assert reopened["again"] == status, number
        assert died["killed"] or died["again"] == status
        assert is_whole(scene, daemons.root, status), (number, status, sorted(look(daemons.root)))
        ends[status] = ends.get(status, 0) + died["killed"]
    unfinished = [path.name for path in (daemons.site.state / "journal").iterdir() if not (path / "finished").exists()]
    assert unfinished == []
    tell(f"{scene.name}: {sum(ends.values())} of about {total} kill points of the daemon tried: {ends}")
