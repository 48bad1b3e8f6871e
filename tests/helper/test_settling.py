"""What a new helper makes of a transaction that was cut off anywhere."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from codespace import limits
from codespace.beneath import STAGED_PREFIX, Root
from codespace.beneath.faults import refusal
from codespace.errors import Refusal
from helper.patch import staging
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest, Slot, spare_name, staged_name
from helper.patch.session import Session

OPERATION = "op-bbbbbbbbbbbbbbbbbbbbbbbb"
BEFORE = {"a": "one\n", "gone": "bye\n", "from": "one\n"}
AFTER = {"a": "two\n", "d/e/new": "new\n", "to": "two\n"}
PATCH = """*** Begin Patch
*** Update File: a
-one
+two
*** Add File: d/e/new
+new
*** Delete File: gone
*** Update File: from
*** Move to: to
-one
+two
*** End Patch"""


class House:
    """A root with files, and helpers that come and go."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.journal = folder / "state/journal"
        self.root.mkdir()
        self.hidden: list[str] = []
        for name, text in BEFORE.items():
            (self.root / name).write_text(text)

    @contextmanager
    def helper(self) -> Iterator[Session]:
        session = Session.open(
            {
                "root": str(self.root),
                "journal": str(self.journal),
                "umask": 0o22,
                "allow_submounts": False,
                "hidden": self.hidden,
                "protected": [],
                "git_protected": True,
                "file_bytes": 1_000_000,
                "patch_bytes": 100_000,
            }
        )
        try:
            yield session
        finally:
            session.close()

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Ask a helper that ends afterwards."""
        with self.helper() as session:
            return session.call({"verb": verb, "operation": OPERATION, **fields})

    def files(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}

    def directories(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_dir()}

    def staged(self) -> Manifest:
        """Plan and stage with a helper that dies then."""
        with self.helper() as session:
            session.call({"verb": "plan", "operation": OPERATION, "patch": PATCH, "expected_versions": {}})
            session.call({"verb": "stage", "operation": OPERATION})
            return session.works[OPERATION].manifest

    def cut_off(self, renames: int) -> Manifest:
        """Leave the tree as a helper that died after so many renames leaves it."""
        manifest = self.staged()
        self.mark("installing")
        with Root.open(str(self.root)) as root:
            steps = [("create", entry.path, entry.beside) for entry in manifest.directories]
            steps += [(slot.action, slot.path, slot.beside) for slot in manifest.slots]
            for action, path, beside in steps[:renames]:
                if action == "create":
                    root.move(beside, path)
                elif action == "replace":
                    root.exchange(beside, path)
                else:
                    root.move(path, beside)
        return manifest

    def mark(self, name: str) -> None:
        journal = Journal.load(str(self.journal), OPERATION)
        assert journal is not None
        journal.mark(name)
        journal.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    before = os.umask(0o22)
    yield House(tmp_path)
    os.umask(before)


REPLACED = 5  # the rename that replaces `a`
RENAMES = 7  # two directories, two creations, one replacement, two removals


def test_an_add_in_a_directory_that_may_not_be_searched_is_put_back_once_it_may(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.cut_off(renames=2)
    monkeypatch.setattr(limits, "RESTORE_WAIT_SECONDS", 0.05)
    hold = Root.hold

    def closed(self: Root, path: str) -> int:
        if path.startswith("d/e/"):
            raise refusal(PermissionError(errno.EACCES, "closed"), path)
        return hold(self, path)

    with monkeypatch.context() as shut:
        shut.setattr(Root, "hold", closed)
        with pytest.raises(Refusal, match="EACCES"):
            house.ask("settle")
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.files() == BEFORE


def test_the_patch_takes_as_many_renames_as_the_tests_count(house: House) -> None:
    manifest = house.staged()
    assert len(manifest.directories) + len(manifest.slots) == RENAMES


def test_cut_off_before_the_first_rename_it_is_rejected_and_swept(house: House) -> None:
    house.staged()
    assert house.ask("settle")["outcome"] == "rejected"
    assert house.files() == BEFORE
    house.ask("finish")
    assert house.directories() == set()
    assert not (house.journal / OPERATION).exists()


@pytest.mark.parametrize("renames", range(RENAMES))
def test_cut_off_between_renames_it_is_taken_back_whole(house: House, renames: int) -> None:
    house.cut_off(renames)
    settled = house.ask("settle")
    assert settled["outcome"] == "failed_rolled_back"
    assert settled["report"]["clean"]
    assert house.files() == BEFORE
    assert house.directories() == set()
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    house.ask("finish")
    assert not (house.journal / OPERATION).exists()


def test_cut_off_after_the_last_rename_it_is_applied(house: House) -> None:
    house.cut_off(RENAMES)
    assert house.ask("settle")["outcome"] == "applied"
    house.ask("finish")
    assert house.files() == AFTER


@pytest.mark.parametrize("renames", range(RENAMES + 1))
def test_cut_off_between_renames_and_accepted_it_stays_so_and_leaves_nothing_beside(house: House, renames: int) -> None:
    house.cut_off(renames)
    house.mark("accepted")
    there = {name: text for name, text in house.files().items() if STAGED_PREFIX not in name}
    assert house.ask("finish") == {"clean": True, "kept": [], "rescued": [], "refusal": None}
    assert house.files() == there
    assert house.directories() == {*("d", "d/e")[:renames]}
    assert (house.journal / OPERATION / "finished").exists()


def test_cut_off_between_two_steps_and_accepted_the_old_file_is_back(house: House) -> None:
    manifest = house.cut_off(REPLACED - 1)
    house.mark("accepted")
    replaced = next(slot for slot in manifest.slots if slot.action == "replace")
    (house.root / "a").rename(house.root / spare_name(replaced))
    assert house.ask("finish")["clean"]
    assert (house.root / "a").read_text() == BEFORE["a"]


def test_cut_off_while_throwing_away_it_is_applied_whatever_came_after(house: House) -> None:
    manifest = house.cut_off(RENAMES)
    house.mark("finishing")
    (house.root / next(slot.beside for slot in manifest.slots if slot.action == "replace")).unlink()
    (house.root / "a").write_text("newer work\n")
    assert house.ask("settle") == {
        "outcome": "applied",
        "report": {"clean": True, "kept": [], "rescued": [], "refusal": None},
        "after": {},
    }
    house.ask("finish")
    assert house.files() == {**AFTER, "a": "newer work\n"}


@pytest.mark.parametrize("renames", range(1, RENAMES + 1))
@pytest.mark.parametrize("path", ["a", "d/e/new", "to", "gone", "from"])
def test_work_of_others_survives_settling_after_any_rename(house: House, renames: int, path: str) -> None:
    house.cut_off(renames)
    target = house.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("theirs\n")
    settled = house.ask("settle")
    assert settled["outcome"] in ("failed_partial", "failed_rolled_back")
    house.ask("finish")
    assert house.files() == {**BEFORE, path: "theirs\n"}
    kept = settled["report"]["kept"]
    assert set(kept) <= {path}
    untouched = path == "a" and renames < REPLACED  # its staged file is still there: the patch never came to it
    if path in BEFORE and not untouched:
        assert kept == [path], "what the patch may have changed and is not as before is never called rolled back"


def test_cut_off_between_the_swap_and_the_look_the_foreign_file_goes_back(house: House) -> None:
    manifest = house.staged()
    house.mark("installing")
    (house.root / "a").write_text("theirs\n")
    slot = next(slot for slot in manifest.slots if slot.path == "a")
    with Root.open(str(house.root)) as root:
        root.exchange(slot.beside, slot.path)
    settled = house.ask("settle")
    assert (settled["outcome"], settled["report"]["kept"]) == ("failed_partial", ["a"])
    house.ask("finish")
    assert house.files() == {**BEFORE, "a": "theirs\n"}


def test_an_old_file_that_was_set_aside_and_taken_away_comes_back_from_the_journal(house: House) -> None:
    (house.root / "a").chmod(0o750)
    os.setxattr(house.root / "a", "user.note", b"kept")
    manifest = house.cut_off(RENAMES - 1)
    (house.root / next(slot.beside for slot in manifest.slots if slot.path == "a")).unlink()
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.files() == BEFORE
    assert (house.root / "a").stat().st_mode & 0o777 == 0o750
    assert os.getxattr(house.root / "a", "user.note") == b"kept"


def test_bytes_found_under_a_staged_name_are_rescued(house: House) -> None:
    manifest = house.cut_off(0)
    staged = next(slot.beside for slot in manifest.slots if slot.path == "a")
    (house.root / staged).write_text("who put this here\n")
    settled = house.ask("settle")
    (name,) = settled["report"]["rescued"]
    assert (house.journal / OPERATION / name).read_text() == "who put this here\n"
    assert house.files() == BEFORE


def test_a_second_crash_while_putting_back_does_not_change_the_answer(house: House) -> None:
    manifest = house.cut_off(RENAMES - 1)
    journal = Journal.load(str(house.journal), OPERATION)
    assert journal is not None
    journal.mark("restoring", [slot.number for slot in manifest.slots[:-1]])
    journal.close()
    slot = next(slot for slot in manifest.slots if slot.path == "a")
    with Root.open(str(house.root)) as root:
        root.exchange(slot.beside, slot.path)
        root.remove(slot.beside)
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    assert house.files() == BEFORE


def test_a_journal_without_a_manifest_means_that_nothing_was_written(house: House) -> None:
    Journal.create(str(house.journal), OPERATION).close()
    (house.journal / OPERATION / "manifest.json").write_text('{"format": 1, "oper')
    assert house.ask("settle")["outcome"] == "rejected"
    assert not (house.journal / OPERATION).exists()


def test_a_journal_of_another_release_is_left_as_it_is(house: House) -> None:
    Journal.create(str(house.journal), OPERATION).close()
    (house.journal / OPERATION / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(Refusal) as refused:
        house.ask("settle")
    assert refused.value.code == "FILE_OPERATION_FAILED"
    assert (house.journal / OPERATION / "manifest.json").read_text() == '{"format": 2}'


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", 5),
        ("beside", None),
        ("before", []),
        ("number", "0"),
        ("mode", "x"),
        ("action", "dance"),
        ("metadata", {"mode": 0o644, "owner": [0, 0], "attributes": []}),
        ("metadata", None),
        (None, {"slots": {}, "directories": [5]}),
        (None, {"before": {"zz": "eA=="}}),
        (None, {"before": [1]}),
        (None, {"changes": [{"path": "a"}]}),
        (None, {"changes": [dict.fromkeys(("path", "kind", "before_version", "after_version"), "nowhere")]}),
        (None, {"slots": 2 * [{"path": "a"}]}),
        (None, {"emptied": [["d", None]]}),
        (None, {"mounts": 5}),
        (None, {"mounts": {"d": 1}}),
        ("mode", 1 << 40),
        ("metadata", {"mode": 0o644, "owner": [1 << 32, 0], "attributes": {}}),
    ],
)
def test_a_journal_with_a_value_that_its_field_cannot_have_is_refused_and_left_as_it_is(
    house: House, field: str | None, value: Any
) -> None:
    house.cut_off(RENAMES)
    manifest, there = house.journal / OPERATION / "manifest.json", house.files()
    packed = json.loads(manifest.read_text())
    if field is None:
        packed |= value
    else:
        next(slot for slot in packed["slots"] if slot["action"] == "replace")[field] = value
    manifest.write_text(json.dumps(packed))
    other = {"operation": "op-cccccccccccccccccccccccc", "undone": OPERATION, "folder": str(house.journal)}
    for verb, fields in (("settle", {}), ("finish", {}), ("plan_undo", other)):
        with house.helper() as session, pytest.raises(Refusal) as refused:
            session.call({"verb": verb, "operation": OPERATION, **fields})
        assert refused.value.code == "FILE_OPERATION_FAILED"
    assert (house.files(), json.loads(manifest.read_text())) == (there, packed)


@pytest.mark.parametrize("name", ["astray", "missed", "restoring", "unmade", "outcome"])
@pytest.mark.parametrize("note", ["5", '[{"a": 1}]', '{"outcome": "applied", "kept": 1}'])
def test_a_journal_with_a_note_of_another_kind_is_refused_and_left_as_it_is(house: House, name: str, note: str) -> None:
    house.cut_off(REPLACED)
    (house.journal / OPERATION / name).write_text(note)
    told = []
    for _ in range(2):
        with pytest.raises(Refusal, match="was damaged") as refused:
            house.ask("settle")
        told.append((refused.value.code, (house.journal / OPERATION / name).read_text()))
    assert told == 2 * [("FILE_OPERATION_FAILED", note)]


def test_a_helper_never_settles_what_another_one_still_does(house: House) -> None:
    holding = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    house.staged()
    argv = (sys.executable, "-I", "-c", holding, str(house.journal / OPERATION))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Refusal) as refused:
            house.ask("settle")
        assert refused.value.code == "OUTCOME_UNKNOWN"
        other.communicate()
    assert house.ask("settle")["outcome"] == "rejected"


def test_a_directory_is_taken_away_only_where_the_patch_made_it(house: House) -> None:
    manifest = house.staged()
    house.mark("installing")
    (house.root / "d").mkdir()  # somebody was faster: the staged one is still there
    assert house.ask("settle")["outcome"] == "failed_rolled_back"
    house.ask("finish")
    assert house.directories() == {"d"}
    assert manifest.directories[0].path == "d"


def test_plans_that_nobody_ends_are_forgotten_oldest_first(house: House) -> None:
    with house.helper() as session:
        for number in range(limits.PLANS_HELD + 1):
            patch = f"*** Begin Patch\n*** Add File: n{number}\n+x\n*** End Patch"
            session.call({"verb": "plan", "operation": f"op-{number}", "patch": patch, "expected_versions": {}})
        with pytest.raises(Refusal) as refused:
            session.call({"verb": "stage", "operation": "op-0"})
        assert "no longer held" in refused.value.message
        session.call({"verb": "stage", "operation": "op-1"})
        session.call({"verb": "finish", "operation": "op-1"})
    assert house.files() == BEFORE


@pytest.mark.parametrize("large", [False, True])
def test_a_plan_of_an_operation_makes_no_room_for_looks(
    house: House, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(limits, "PLANS_HELD_BYTES", 3)
    with house.helper() as session:
        for name in ("op-0", *(f"plan-{number}" for number in range(1 if large else limits.PLANS_HELD + 1))):
            patch = f"*** Begin Patch\n*** Add File: {name}\n+x\n*** End Patch"
            session.call({"verb": "plan", "operation": name, "patch": patch, "expected_versions": {}})
        assert "op-0" in session.plans
        assert len(session.plans) == (1 if large else limits.PLANS_HELD)


def test_staging_that_fails_half_way_takes_away_its_own_files_and_nobody_elses(house: House) -> None:
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": PATCH, "expected_versions": {}})
        slot = next(slot for slot in session.plans[OPERATION].manifest.slots if slot.path == "a")
        (house.root / slot.beside).write_text("theirs\n")
        with pytest.raises(Refusal) as refused:
            session.call({"verb": "stage", "operation": OPERATION})
    assert refused.value.message == "a: File exists (EEXIST). Nothing was written."
    assert house.files() == {**BEFORE, slot.beside: "theirs\n"}
    assert house.directories() == set()
    assert not (house.journal / OPERATION).exists()


def test_what_a_probe_of_the_filesystem_left_is_swept(house: House) -> None:
    house.staged()
    (house.root / staged_name(OPERATION, "p1")).touch()
    assert house.ask("settle")["outcome"] == "rejected"
    assert house.files() == BEFORE


@pytest.mark.parametrize("wanderer", [0, "p0", "p2"])
def test_what_lies_in_a_directory_that_is_away_for_a_moment_is_swept_when_it_is_back(
    house: House, wanderer: int | str
) -> None:
    (house.root / "d").mkdir()
    (house.root / "d/b").write_text("b\n")
    away = house.root.parent / "away"
    name = staged_name(OPERATION, wanderer)
    patch = "*** Begin Patch\n*** Update File: d/b\n-b\n+c\n*** End Patch"
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": patch, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
    (house.root / "d" / name).touch()
    (house.root / "d").rename(away)
    (house.root / "d").symlink_to(away)
    assert not house.ask("finish")["clean"]
    assert (house.journal / OPERATION).exists()
    (house.root / "d").unlink()
    away.rename(house.root / "d")
    assert house.ask("finish")["clean"]
    assert house.files() == {**BEFORE, "d/b": "b\n"}
    assert not (house.journal / OPERATION).exists()


def test_what_was_staged_in_a_directory_that_is_moved_while_the_rest_is_staged_is_found(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("d", "z"):
        (house.root / name).mkdir()
        (house.root / name / "b").write_text("b\n")
    patch = "".join(f"*** Update File: {name}/b\n-b\n+c\n" for name in ("d", "z"))
    write, written = staging.write_beside, list[str]()

    def move_then_fail(root: Root, slot: Slot, data: bytes) -> tuple[int, Any]:
        if written:
            (house.root / "d").rename(house.root / "elsewhere")
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(slot.path)
        return write(root, slot, data)

    with house.helper() as session:
        whole = f"*** Begin Patch\n{patch}*** End Patch"
        session.call({"verb": "plan", "operation": OPERATION, "patch": whole, "expected_versions": {}})
        monkeypatch.setattr(staging, "write_beside", move_then_fail)
        with pytest.raises(Refusal, match="No space left"):
            session.call({"verb": "stage", "operation": OPERATION})
    assert written == ["d/b"]
    assert house.files() == {**BEFORE, "elsewhere/b": "b\n", "z/b": "b\n"}
    assert not (house.journal / OPERATION).exists()


def test_what_was_set_aside_in_a_directory_that_was_moved_is_found_by_the_next_helper_too(house: House) -> None:
    (house.root / "d").mkdir()
    (house.root / "d/b").write_text("b\n")
    patch = "*** Begin Patch\n*** Update File: d/b\n-b\n+c\n*** End Patch"
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": patch, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
        session.call({"verb": "install", "operation": OPERATION})
    house.mark("finishing")  # and then it was killed
    (house.root / "d").rename(house.root / "elsewhere")
    assert house.ask("finish")["clean"]
    assert house.files() == {**BEFORE, "elsewhere/b": "c\n"}


def test_what_cannot_be_looked_for_is_given_up_after_a_day(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = house.staged()
    os.unlink(house.root / next(slot.beside for slot in manifest.slots if slot.path == "a"))
    monkeypatch.setattr(limits, "STRAYS_ENTRIES", 0)
    assert not house.ask("finish")["clean"]
    assert (house.journal / OPERATION).exists()
    monkeypatch.setattr(limits, "JOURNAL_AGE_SECONDS", -1.0)
    assert house.ask("finish")["clean"]
    assert not (house.journal / OPERATION).exists()


def test_what_a_probe_left_in_a_directory_that_was_moved_is_found(house: House) -> None:
    (house.root / "d").mkdir()
    (house.root / "d/b").write_text("b\n")
    patch = "*** Begin Patch\n*** Update File: d/b\n-b\n+c\n*** End Patch"
    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": patch, "expected_versions": {}})
        session.call({"verb": "stage", "operation": OPERATION})
    (house.root / "d" / staged_name(OPERATION, "p2")).touch()
    (house.root / "d").rename(house.root / "elsewhere")
    assert house.ask("finish")["clean"]
    assert house.files() == {**BEFORE, "elsewhere/b": "b\n"}


def test_a_probe_whose_files_cannot_be_removed_stops_the_patch_and_is_swept_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with house.helper() as session:
        session.call({"verb": "plan", "operation": OPERATION, "patch": PATCH, "expected_versions": {}})
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", refuse)  # as Landlock does while the directory is outside the root
            with pytest.raises(Refusal, match="EACCES"):
                session.call({"verb": "stage", "operation": OPERATION})
        assert house.files().keys() > BEFORE.keys()
    assert house.ask("finish")["clean"]
    assert house.files() == BEFORE
    assert not (house.journal / OPERATION).exists()


def test_a_file_that_was_staged_only_in_part_leaves_no_journal_behind(house: House) -> None:
    manifest = house.staged()
    staged = next(slot.beside for slot in manifest.slots if slot.path == "a")
    os.truncate(house.root / staged, 0)
    assert house.ask("settle") == {
        "outcome": "rejected",
        "report": {"clean": True, "kept": [], "rescued": [], "refusal": None},
        "after": {slot.path: slot.after for slot in manifest.slots},
    }
    house.ask("finish")
    assert not (house.journal / OPERATION).exists()


@pytest.mark.parametrize("gone", ["restoring", "installing", "staged", "outcome"])
def test_a_journal_whose_removal_was_cut_off_is_gone_after_the_next_try(
    house: House, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    house.cut_off(2)
    assert house.ask("settle")["outcome"] == "failed_rolled_back"

    def die(path: str, **_: Any) -> None:
        Path(path, gone).unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            house.ask("finish")
    assert os.listdir(house.journal) == [OPERATION]
    assert house.ask("finish")["kept"] == []
    assert os.listdir(house.journal) == []
    assert house.files() == BEFORE
