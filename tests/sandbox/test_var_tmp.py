"""A workspace, or what its commands may read, below /var/tmp: inside that is /tmp where nothing of the run is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cage import Cage


@pytest.fixture
def place(cage: Cage) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as lent:
        os.chown(lent, cage.uid, cage.uid)
        yield Path(lent)


def test_commands_run_in_a_workspace_below_it(cage: Cage, place: Path) -> None:
    done = cage.having(root=str(place)).sh("echo x >made; pwd; ls -A /var/tmp; ls -A /tmp")
    assert (done.code, done.out) == (0, f"{place}\n{place.name}\n"), done.err
    assert (place / "made").read_text() == "x\n"


def test_commands_read_what_is_readable_below_it_and_nothing_beside(cage: Cage, place: Path) -> None:
    (place / "tool").write_text("fine\n")
    done = cage.having(readable_paths=(str(place),)).sh(f"cat {place}/tool; ls -A /var/tmp; echo x >{place}/made")
    assert (done.code != 0, done.out) == (True, f"fine\n{place.name}\n"), done.err
    assert not (place / "made").exists()


def test_it_is_a_private_place_to_write_to_in_either_case(cage: Cage, place: Path) -> None:
    for chosen in (cage, cage.having(root=str(place))):
        done = chosen.sh("echo x >/var/tmp/mine && cat /var/tmp/mine; stat -Lc %a /var/tmp")
        assert (done.code, done.out) == (0, "x\n1777\n"), done.err
        assert not Path("/var/tmp/mine").exists()
