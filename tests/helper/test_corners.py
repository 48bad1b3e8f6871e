"""Corners of a transaction that only two disks, a watcher between two calls, or a reply that was lost would show."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.beneath import kernel
from codespace.errors import Refusal
from codespace.runner.patch.channel import Channel, Lost
from helper.patch import sight, staging
from helper.patch.journal import Journal

from .test_settling import AFTER, BEFORE, OPERATION, RENAMES, REPLACED, House, house

__all__ = ["house"]
SECOND = "op-cccccccccccccccccccccccc"
THIRD = "op-dddddddddddddddddddddddd"


@pytest.fixture
def apart() -> Iterator[Path]:
    """A folder in memory, which is a filesystem of its own."""
    folder = Path(tempfile.mkdtemp(prefix="codespace-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("disks", [1, 2])
def test_the_mark_that_renames_began_is_on_its_disk_before_they_are_on_theirs(
    house: House, apart: Path, disks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if disks == 2:
        house.journal = apart / "journal"
        assert apart.stat().st_dev != house.root.stat().st_dev
    marked: list[bool] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        here = house.journal / OPERATION
        if os.path.samestat(os.fstat(descriptor), here.stat()) and not (house.root / "new").exists():
            marked.append((here / "installing").exists())
        real(descriptor)

    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": _adding("new"), "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        monkeypatch.setattr(os, "fsync", noting)
        assert session.call({"verb": "install", "operation": OPERATION})["clean"]
    assert (house.root / "new").exists()
    assert marked == [True] * (disks - 1)


def _adding(path: str) -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+new\n*** End Patch"


def test_a_directory_that_is_made_again_gives_no_mode_to_what_a_link_in_its_place_leads_to(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "outside"
    victim.touch(0o600)
    with house.helper() as session:

        def run(operation: str, plan: str, **told: Any) -> None:
            session.call({"verb": plan, "operation": operation, **told})
            for verb in ("stage", "install", "finish"):
                session.call({"verb": verb, "operation": operation})

        run(OPERATION, "plan", patch=_adding("d/f"), expected_versions={})
        (house.root / "d").chmod(0o777)
        run(SECOND, "plan_undo", undone=OPERATION, folder=str(house.journal))
        real = os.mkdir

        def mkdir(name: str, *arguments: Any, **more: Any) -> None:
            real(name, *arguments, **more)
            if ".codespace-" in str(name) and "dir_fd" in more:  # as a program that watches the directory could
                os.rename(house.root / name, house.root / "moved")
                os.symlink(victim, house.root / name)

        monkeypatch.setattr(os, "mkdir", mkdir)
        with contextlib.suppress(OSError, Exception):
            run(THIRD, "plan_undo", undone=SECOND, folder=str(house.journal))
        monkeypatch.undo()
    assert (house.root / "moved").is_dir()  # it was tried
    assert victim.stat().st_mode & 0o777 == 0o600


def test_a_restore_that_is_asked_for_twice_leaves_what_another_made_to_him(house: House) -> None:
    with house.helper() as session:
        text = "*** Begin Patch\n*** Add File: d/f\n+x\n*** Update File: a\n-one\n+two\n*** End Patch"
        session.call({"verb": "plan", "operation": OPERATION, "patch": text, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        (house.root / "d").mkdir()
        (house.root / "a").write_text("other\n")
        assert not session.call({"verb": "install", "operation": OPERATION})["clean"]
        for _ in range(2):  # the reply to the first was lost
            session.call({"verb": "restore", "operation": OPERATION})
            assert (house.root / "d").is_dir()
            assert house.files() == {"a": "other\n", "gone": "bye\n", "from": "one\n"}


def test_a_file_that_grows_while_it_is_looked_at_has_an_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATCH_TREE_BYTES", 1_000_000)
    real = kernel.open_held

    def grown(held: int) -> int:
        opened = real(held)
        os.truncate(house.root / "a", 3_000_000)
        return opened

    with house.helper() as session:
        assert sight.see(session.root, "a").version.startswith("sha256:")
        monkeypatch.setattr(kernel, "open_held", grown)
        assert sight.see(session.root, "a").version == sight.OTHER


def refuse(*names: object, **options: object) -> int:
    """Stand in for a call into a directory that was made read-only, append-only or immutable, or for a file's mode."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_directory_that_may_not_be_written_leaves_it_open_what_became_of_a_patch_until_it_may(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.cut_off(REPLACED)
    half = house.files()
    with monkeypatch.context() as patched:
        patched.setattr(limits, "RESTORE_WAIT_SECONDS", 0.0)
        patched.setattr(kernel, "renameat2", refuse)
        with pytest.raises(Refusal, match="EPERM"):
            house.ask("settle")
    assert house.files() == half
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.files() == BEFORE


def test_an_add_that_was_never_put_in_its_place_was_changed_by_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": _adding("new"), "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        with monkeypatch.context() as patched:  # an append-only directory: the new file was staged in it
            patched.setattr(limits, "RESTORE_WAIT_SECONDS", 0.0)
            patched.setattr(kernel, "renameat2", refuse)
            patched.setattr(os, "unlink", refuse)
            assert session.call({"verb": "install", "operation": OPERATION})["refusal"]
            restored = session.call({"verb": "restore", "operation": OPERATION})
    assert (restored["clean"], restored["kept"]) == (True, [])
    assert house.ask("finish")["clean"]
    assert house.files() == BEFORE


def test_a_file_that_somebody_made_unreadable_is_told_as_changed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.cut_off(REPLACED)
    real = kernel.open_held
    there = (house.root / "a").stat().st_ino

    def open_held(held: int) -> int:
        return refuse() if os.fstat(held).st_ino == there else real(held)

    with monkeypatch.context() as patched:
        patched.setattr(limits, "RESTORE_WAIT_SECONDS", 0.0)
        patched.setattr(kernel, "open_held", open_held)
        settled = house.ask("settle")
    assert (settled["outcome"], settled["report"]["kept"]) == ("failed_partial", ["a"])
    assert house.files() == {**BEFORE, "a": "two\n"}


@pytest.mark.parametrize("renames", [0, REPLACED])
def test_a_journal_whose_manifest_was_damaged_since_is_left_with_everything_beside_the_files(
    house: House, renames: int
) -> None:
    house.cut_off(renames) if renames else house.staged()
    files = house.files()
    os.truncate(house.journal / OPERATION / "manifest.json", 10)
    for verb in ("settle", "restore", "finish"):
        with pytest.raises(Refusal, match="damaged"):
            house.ask(verb)
    assert (house.journal / OPERATION / "staged").exists()
    assert house.files() == files


def test_a_file_that_was_on_its_way_without_flags_of_rename_and_taken_away_is_told_and_kept_in_the_journal(
    house: House,
) -> None:
    house.cut_off(REPLACED - 1)
    (house.root / "a").unlink()  # under the name that it had for a moment, by a clean-up of untracked files
    settled = house.ask("settle")
    assert (settled["outcome"], settled["report"]["kept"]) == ("failed_partial", ["a"])
    assert house.ask("finish")["clean"]
    journal = Journal.load(str(house.journal), OPERATION)
    assert journal is not None
    manifest = journal.manifest()
    assert manifest is not None
    assert journal.before(next(slot.number for slot in manifest.slots if slot.path == "a")) == b"one\n"
    journal.close()


def test_a_directory_of_others_is_left_where_a_patch_was_cut_off_before_it_was_staged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        (house.root / "d").mkdir()
        raise SystemExit

    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": _adding("d/new"), "expected_versions": {}})
        with monkeypatch.context() as patched, contextlib.suppress(SystemExit):
            patched.setattr(staging, "_write_staged", die)
            patched.setattr(staging, "_clear", lambda *arguments: False)
            session.call({"verb": "stage", "operation": OPERATION})
    assert house.ask("settle")["outcome"] == "rejected"
    assert house.directories() == {"d"}


def test_bytes_before_are_on_their_disk_before_the_files_that_had_them_are_thrown_away(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    (house.root / "a").write_text("one\n" * limits.JOURNAL_SMALL_BYTES)
    steps: list[str] = []
    unlink, fsync = os.unlink, os.fsync

    def unlink_told(name: str, *, dir_fd: int | None = None) -> None:
        steps.append(name)
        unlink(name, dir_fd=dir_fd)

    def fsync_told(descriptor: int) -> None:
        steps.append(os.path.basename(os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    with house.helper() as session:
        text = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
        session.call({"verb": "plan", "operation": OPERATION, "patch": text, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        assert session.call({"verb": "install", "operation": OPERATION})["clean"]
        (house.root / "a").write_text("theirs\n")
        monkeypatch.setattr(os, "unlink", unlink_told)
        monkeypatch.setattr(os, "fsync", fsync_told)
        assert session.call({"verb": "restore", "operation": OPERATION})["kept"] == ["a"]
    aside = next(step for step in steps if step.endswith(".aside"))
    assert "before" in steps[: steps.index(aside)]


@pytest.mark.parametrize("renames", [0, RENAMES - 1, RENAMES])
@pytest.mark.parametrize("hidden", [["gone", "a"], ["d"], [".*"]], ids=["files", "directory", "staged names"])
def test_what_is_hidden_since_a_patch_was_cut_off_is_settled_as_if_it_was_not(
    house: House, renames: int, hidden: list[str]
) -> None:
    house.cut_off(renames)
    house.hidden = hidden
    outcome = "applied" if renames == RENAMES else "failed_rolled_back"
    assert house.ask("settle")["outcome"] == outcome
    assert house.ask("finish")["clean"]
    assert house.files() == (AFTER if renames == RENAMES else BEFORE)


def test_that_a_file_was_removed_is_not_said_where_it_is_not_found_set_aside(house: House) -> None:
    manifest = house.cut_off(RENAMES)
    (house.root / next(slot.beside for slot in manifest.slots if slot.path == "gone")).unlink()
    settled = house.ask("settle")
    assert (settled["outcome"], settled["report"]["kept"]) == ("failed_partial", ["gone"])


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
@pytest.mark.parametrize("verb", ["install", "restore"])
def test_the_last_of_several_saves_of_an_editor_stays_and_the_one_before_it_is_rescued(
    house: House, monkeypatch: pytest.MonkeyPatch, verb: str, saves: int
) -> None:
    rename = kernel.renameat2
    saved = 0

    def save_first(*arguments: Any) -> None:
        nonlocal saved
        if arguments[-1] == kernel.RENAME_EXCHANGE and saved < saves:
            saved += 1
            (house.root.parent / "save").write_text(f"save {saved}\n")
            (house.root.parent / "save").rename(house.root / "a")  # as editors save
        rename(*arguments)

    with house.helper() as session:
        text = "*** Begin Patch\n*** Update File: a\n-one\n+two\n*** End Patch"
        session.call({"verb": "plan", "operation": OPERATION, "patch": text, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        if verb == "restore":
            assert session.call({"verb": "install", "operation": OPERATION})["clean"]
        monkeypatch.setattr(kernel, "renameat2", save_first)
        assert not session.call({"verb": verb, "operation": OPERATION})["clean"]
        assert saved == saves
        session.call({"verb": "restore", "operation": OPERATION})
    kept = [path.read_text() for path in (house.journal / OPERATION).glob("rescued/*")]
    assert house.files() == {**BEFORE, "a": f"save {saves}\n"}
    assert kept == ([f"save {saves - 1}\n"] if saves > 1 else [])


def test_the_mark_of_throwing_away_is_on_its_disk_before_the_file_that_proves_a_removal_goes(
    house: House, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.journal = apart / "journal"
    marked: list[bool] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        here = house.journal / OPERATION
        if os.path.samestat(os.fstat(descriptor), here.stat()) and any(house.root.glob("*.aside")):
            marked.append((here / "finishing").exists())
        real(descriptor)

    with house.helper() as session:
        text = "*** Begin Patch\n*** Delete File: gone\n*** End Patch"
        session.call({"verb": "plan", "operation": OPERATION, "patch": text, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        assert session.call({"verb": "install", "operation": OPERATION})["clean"]
        monkeypatch.setattr(os, "fsync", noting)
        assert session.call({"verb": "finish", "operation": OPERATION})["clean"]
    assert marked == [True]


async def test_a_helper_that_no_thread_is_free_to_start_is_lost_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELPER_START_SECONDS", 0.05)
    busy = trio.to_thread.current_default_thread_limiter()
    held = [object() for _ in range(int(busy.total_tokens))]
    for holder in held:
        busy.acquire_on_behalf_of_nowait(holder)
    try:
        before = os.listdir("/proc/self/fd")
        with pytest.raises((OSError, Lost)):
            await Channel.start(["/bin/true"])
        assert len(os.listdir("/proc/self/fd")) == len(before)
    finally:
        for holder in held:
            busy.release_on_behalf_of(holder)
