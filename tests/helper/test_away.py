"""Directories that are not in their place for a moment, or for good, while a patch is taken back or settled."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from codespace import limits
from codespace.beneath import kernel
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patch.patcher import Patcher
from helper.patch.manifest import staged_name

from ..crash.counting import Kill
from .test_settling import AFTER, BEFORE, OPERATION, PATCH, REPLACED, House

UPDATE = "*** Begin Patch\n*** Update File: d/b\n@@\n-one\n+two\n*** End Patch"
DELETE = "*** Begin Patch\n*** Delete File: d/b\n*** End Patch"
ALL = """*** Begin Patch
*** Update File: d/b
@@
-one
+two
*** Add File: d/new
+new
*** Delete File: d/gone
*** End Patch"""
ADD = "*** Begin Patch\n*** Add File: d/new\n+new\n*** End Patch"
LOOKS = 3  # at which the directory is back


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    before = os.umask(0o22)
    made = House(tmp_path)
    (made.root / "d").mkdir()
    (made.root / "d/b").write_text("one\n")
    yield made
    os.umask(before)


class Away:
    """A directory that something else stands in for, until whoever waits for it has waited LOOKS times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, house: House, directory: Path) -> None:
        self.waits = 0
        self.gone = False
        self._directory = directory
        self._elsewhere = house.root.parent / "away"
        self._monkeypatch = monkeypatch

    def go(self) -> None:
        """Leave, with a link to somewhere else in its place."""
        self.gone = True
        self._directory.rename(self._elsewhere)
        self._directory.symlink_to("/nowhere")
        self._monkeypatch.setattr(time, "sleep", self._sleep)
        self._monkeypatch.setattr(limits, "RESTORE_WAIT_SECONDS", 20.0)  # in which any machine looks LOOKS times

    def _sleep(self, seconds: float) -> None:
        self.waits += 1
        if self.waits == LOOKS:
            self.come_back()

    def come_back(self) -> None:
        self.gone = False
        self._directory.unlink()
        self._elsewhere.rename(self._directory)


def staged(house: House, patch: str) -> None:
    """Stage a patch with a helper that dies then."""
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": patch, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})


def installed(house: House, patch: str) -> None:
    """Install a patch with a helper that dies then."""
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": patch, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        assert session.call({"verb": "install", "operation": OPERATION})["clean"]


@pytest.mark.parametrize("patch", [UPDATE, DELETE, ADD], ids=["update", "delete", "add"])
def test_a_directory_that_is_back_in_a_moment_is_waited_for_and_its_files_put_back(
    house: House, monkeypatch: pytest.MonkeyPatch, patch: str
) -> None:
    installed(house, patch)
    away = Away(monkeypatch, house, house.root / "d")
    away.go()
    restored = house.ask("restore")
    assert away.waits == LOOKS
    assert restored["clean"]
    assert house.ask("finish")["clean"]
    assert house.files() == {**BEFORE, "d/b": "one\n"}
    assert not (house.journal / OPERATION).exists()


@pytest.mark.parametrize("verb", ["restore", "settle", "finish"])
def test_whatever_moment_a_directory_leaves_in_for_a_moment_nothing_is_partial_and_nothing_left(
    house: House, monkeypatch: pytest.MonkeyPatch, verb: str, tell: Callable[[str], None]
) -> None:
    (house.root / "d/gone").write_text("bye\n")
    before = house.files()
    number, passed = 0, 1
    while number < passed:
        number += 1
        installed(house, ALL) if verb == "restore" else staged(house, ALL)
        away = Away(monkeypatch, house, house.root / "d")
        leaving = Kill(number, away.go, (kernel.renameat2.__code__, kernel.openat2.__code__))
        with house.helper() as session:
            leaving.begin()
            try:
                answer = session.call({"verb": verb, "operation": OPERATION})
            finally:
                leaving.end()
        passed = leaving.count
        if away.gone:
            away.come_back()
        assert answer.get("outcome", "rejected") == "rejected", number
        assert answer.get("report", answer)["clean"], number
        assert house.ask("finish")["clean"], number
        assert house.files() == before, number
        assert not (house.journal / OPERATION).exists(), number
    tell(f"a directory left at each of {number} points of {verb}")


def test_a_directory_that_stays_away_is_told_as_partial_within_the_bound(house: House) -> None:
    installed(house, UPDATE)
    (house.root / "d").rename(house.root.parent / "elsewhere")
    (house.root / "d").symlink_to(house.root.parent / "elsewhere")
    begun = time.monotonic()
    assert house.ask("restore")["kept"] == ["d/b"]
    assert limits.RESTORE_WAIT_SECONDS <= time.monotonic() - begun < limits.RESTORE_SECONDS


@pytest.mark.parametrize("verb", ["restore", "settle", "finish"])
def test_a_root_that_is_back_in_a_moment_is_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    installed(house, UPDATE)
    away = Away(monkeypatch, house, house.root)
    with house.helper() as session:
        away.go()
        session.call({"verb": verb, "operation": OPERATION})
    assert away.waits == LOOKS


def test_a_helper_that_is_started_waits_for_a_root_that_is_back_in_a_moment(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(monkeypatch, house, house.root)
    away.go()
    with house.helper() as session:
        assert session.root.identity == (house.root.stat().st_dev, house.root.stat().st_ino)
    assert away.waits == LOOKS


def test_a_plan_waits_for_no_root(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(monkeypatch, house, house.root)
    with house.helper() as session:
        away.go()
        with pytest.raises(Refusal, match="was moved, removed or replaced"):
            session.call({"verb": "plan", "operation": OPERATION, "patch": PATCH, "expected_versions": {}})
    assert away.waits == 0
    away.come_back()


async def test_a_verification_waits_for_a_root_that_is_back_in_a_moment(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace("w", str(house.root), "workspace-write")
    async with Patcher(str(house.journal.parent)) as patcher:
        await patcher.plan(workspace, OPERATION, UPDATE, {})
        await patcher.stage(workspace, OPERATION)
        assert (await patcher.install(workspace, OPERATION)).clean
        away = Away(monkeypatch, house, house.root)
        away.go()
        assert (await patcher.verify(workspace, OPERATION)).clean
        assert away.waits == LOOKS
        await patcher.finish(workspace, OPERATION)


def test_what_came_in_place_of_a_probes_file_stops_the_patch_and_is_rescued(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = house.root / staged_name(OPERATION, "p1")
    rename = kernel.renameat2

    def replace_probe(*names: Any) -> None:
        rename(*names)
        if probe.exists():
            probe.unlink()
            probe.write_text("theirs\n")

    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": PATCH, "expected_versions": {}})
        monkeypatch.setattr(kernel, "renameat2", replace_probe)  # another program, right behind the system call
        with pytest.raises(Refusal, match="replaced by another program"):
            session.call({"verb": "stage", "operation": OPERATION})
    (rescued,) = (house.journal / OPERATION / "rescued").iterdir()
    assert rescued.read_text() == "theirs\n"
    assert house.files() == {**BEFORE, "d/b": "one\n"}


def test_what_a_helper_that_was_cut_off_had_thrown_away_is_not_looked_for(house: House) -> None:
    manifest = house.cut_off(1)
    cut_off_in_sweeping(house, lambda: house.ask("settle"))
    assert not any((house.root / slot.beside).exists() for slot in manifest.slots)
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.ask("finish")["clean"]
    assert not (house.journal / OPERATION).exists()
    assert house.files() == {**BEFORE, "d/b": "one\n"}


def cut_off_in_sweeping(house: House, ask: Callable[[], object]) -> None:
    """Leave the journal as a helper leaves it that has put everything back and dies before it notes the outcome."""
    ask()
    (house.journal / OPERATION / "outcome").unlink()


def test_a_file_of_the_same_bytes_that_somebody_made_is_not_taken_for_the_staged_one(house: House) -> None:
    house.staged()
    house.mark("installing")
    (house.root / "to").write_text(AFTER["to"])
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.ask("finish")["clean"]
    assert house.files() == {**BEFORE, "d/b": "one\n", "to": AFTER["to"]}
    assert not (house.journal / OPERATION).exists()


def test_a_name_that_tried_whether_links_have_numbers_is_swept(house: House) -> None:
    manifest = house.cut_off(REPLACED - 1)
    slot = next(slot for slot in manifest.slots if slot.action == "create")
    (house.root / slot.beside.replace(".staged", ".link")).write_text(AFTER[slot.path])
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.files() == {**BEFORE, "d/b": "one\n"}


@pytest.mark.parametrize("verb", ["restore", "finish"])
def test_a_file_that_may_not_be_read_for_a_moment_is_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    installed(house, ADD) if verb == "restore" else staged(house, ADD)
    refusals = 0
    open_file = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        nonlocal refusals
        if path.startswith("/proc/self/fd/") and refusals < limits.RESTORE_TRIES:
            refusals += 1
            raise PermissionError(errno.EACCES, "Permission denied")  # as Landlock does while it is outside the root
        return open_file(path, flags, mode, dir_fd=dir_fd)

    with house.helper() as session, monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert session.call({"verb": verb, "operation": OPERATION})["clean"]
    assert refusals == limits.RESTORE_TRIES
    assert house.files() == {**BEFORE, "d/b": "one\n"}


def test_what_comes_to_a_staged_name_while_foreign_bytes_are_saved_is_saved_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = house.cut_off(0)
    staged = house.root / next(slot.beside for slot in manifest.slots if slot.path == "a")
    staged.write_text("first\n")
    fsync = os.fsync

    def fsync_slowly(descriptor: int) -> None:
        fsync(descriptor)
        if staged.exists() and staged.read_text() == "first\n":
            staged.unlink()
            staged.write_text("second\n")

    monkeypatch.setattr(os, "fsync", fsync_slowly)
    rescued = house.ask("settle")["report"]["rescued"]
    assert sorted((house.journal / OPERATION / name).read_text() for name in rescued) == ["first\n", "second\n"]
    assert house.files() == {**BEFORE, "d/b": "one\n"}


def test_foreign_bytes_that_cannot_be_removed_are_saved_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = house.cut_off(0)
    staged = house.root / next(slot.beside for slot in manifest.slots if slot.path == "a")
    staged.write_text("theirs\n")

    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with house.helper() as session, monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        rescued = session.call({"verb": "settle", "operation": OPERATION})["report"]["rescued"]
    assert [(house.journal / OPERATION / name).read_text() for name in rescued] == ["theirs\n"]
