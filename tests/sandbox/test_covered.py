"""What was hidden before a run is not told after it; what a run puts in its place is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox.inventory import planted, scan
from codespace.sandbox.inventory.planted import Sight

from .cage import Cage

DEEP = 40
MANY = 25


def test_a_hidden_link_that_was_moved_with_its_directory_is_not_told_and_another_in_its_place_is(cage: Cage) -> None:
    """A run can remove a link, as nothing is mounted on one, and have its inode for something else."""
    os.symlink("vault", cage.folder("deep") / ".claude")
    chosen = cage.having(hidden_paths=(".claude",))
    assert chosen.sh("mv deep moved", protected=("**/.claude",)).planted == ()
    # The inode stays the same here, on every filesystem.
    assert chosen.sh("touch -h moved/.claude", protected=("**/.claude",)).planted == ("moved/.claude",)


def test_a_repository_that_takes_the_inode_of_a_hidden_link_is_told(tmp_path: Path) -> None:
    link = tmp_path / ".env"
    link.symlink_to("x")
    with Root.open(str(tmp_path)) as root:
        before = see(root, ".env")
        taken = link.lstat().st_ino
        link.unlink()
        for place in map(tmp_path.joinpath, map(str, range(100))):
            place.mkdir()
            if place.stat().st_ino == taken:
                break
        place.rename(link)  # where the filesystem gave the inode to nobody, this proves less
        (link / ".git").mkdir()
        told = planted.compare(root, before, see(root), (".env",))
    assert [one.path for one in told] == [".env/.git"]


def see(root: Root, *hidden: str) -> Sight:
    return planted.see(root, scan.scan(root, hidden=hidden, protected=()), (), commits=False)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[tuple[Root, Sight, Sight]]:
    """A root before and after a run that left many gitfiles in one deep directory."""
    (tmp_path / "x").touch()
    with Root.open(str(tmp_path)) as root:
        before = see(root, "x", "d")
        place = tmp_path.joinpath(*["d"] * DEEP)
        for number in range(MANY):
            (place / str(number)).mkdir(parents=True)
            (place / str(number) / ".git").touch()
        yield root, before, see(root)


def test_what_lies_above_many_things_that_a_run_left_is_asked_about_once(
    deep: tuple[Root, Sight, Sight], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before, after = deep
    asked: list[str] = []
    asking = root.stamp
    monkeypatch.setattr(root, "stamp", lambda path: asked.append(path) or asking(path))
    assert len(planted.compare(root, before, after, ("x", "d"))) == MANY
    assert len(asked) == len(set(asked)) == DEEP + 2 * MANY


def test_telling_what_a_run_left_from_what_was_hidden_takes_no_longer_than_a_look(
    deep: tuple[Root, Sight, Sight], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """It goes on by the tenth part of the time for a look, each time that it is looked at."""

        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 10).__next__

    monkeypatch.setattr(planted, "time", Clock)
    with pytest.raises(Refusal) as caught:
        planted.compare(*deep, ("x", "d"))
    assert caught.value.code == "SANDBOX_UNAVAILABLE"
