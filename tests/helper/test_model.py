"""Random trees and patches against a simple model: what is applied is what it says, and an undo is identity.

The helper's session in the test's own process, so that hundreds of examples fit; the real process is
shown elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helper.patch.session import Session

Files = dict[str, tuple[str, int]]
NAMES = ("a", "b", "c", "d/a", "d/b", "d/e/a", "f/a")
FREE = ("new", "d/new", "g/new", "g/h/new", "f/other")
MODES = (0o644, 0o600, 0o755, 0o640, 0o444)
LINES = st.lists(st.sampled_from(["one", "two", "three", "", "  x", "é"]), min_size=1, max_size=6)


@dataclass
class Case:
    """One tree, one patch on it, and what must be there afterwards."""

    before: Files
    empty: set[str]
    patch: list[str] = field(default_factory=list)
    after: Files = field(default_factory=dict)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    before: Files = {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        lines = draw(LINES)
        before[name] = (
            "".join(f"{number} {line}\n" for number, line in enumerate(lines)),
            draw(st.sampled_from(MODES)),
        )
    case = Case(before, draw(st.sets(st.sampled_from(["empty", "d", "f/void"]))))
    case.after = dict(before)
    free = set(FREE)
    for name in draw(st.sets(st.sampled_from(sorted(before)))):
        _touch(draw, case, name, free)
    for name in draw(st.sets(st.sampled_from(sorted(free)), max_size=2) if free else st.just(set())):
        lines = draw(LINES)
        case.patch += [f"*** Add File: {name}", *(f"+{line}" for line in lines)]
        case.after[name] = ("".join(f"{line}\n" for line in lines), -1)
    if not case.patch:
        case.patch = ["*** Add File: only", "+only"]
        case.after["only"] = ("only\n", -1)
    return case


def _touch(draw: st.DrawFn, case: Case, name: str, free: set[str]) -> None:
    text, mode = case.before[name]
    how = draw(st.sampled_from(["update", "delete", "move"]))
    if how == "delete":
        case.patch.append(f"*** Delete File: {name}")
        del case.after[name]
        return
    line = draw(st.sampled_from(text.splitlines()))
    changed = text.replace(f"{line}\n", f"{line} changed\n", 1)
    case.patch.append(f"*** Update File: {name}")
    target = name
    if how == "move" and free:
        target = draw(st.sampled_from(sorted(free)))
        free.discard(target)
        case.patch.append(f"*** Move to: {target}")
        del case.after[name]
    case.patch += ["@@", f"-{line}", f"+{line} changed"]
    case.after[target] = (changed, mode)


class House:
    """A root built from a case, and sessions that come and go."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.root = folder / "root"
        self.journal = folder / "state/journal"
        self.root.mkdir()
        for name, (text, mode) in case.before.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
            (self.root / name).chmod(mode)
        for name in case.empty:
            (self.root / name).mkdir(parents=True, exist_ok=True)
            (self.root / name).chmod(0o751)
        self.patch = "\n".join(("*** Begin Patch", *case.patch, "*** End Patch"))

    @contextmanager
    def helper(self) -> Iterator[Session]:
        mask = os.umask(0o022)
        session = Session.open(
            {
                "root": str(self.root),
                "journal": str(self.journal),
                "umask": 0o022,
                "allow_submounts": False,
                "hidden": [],
                "protected": [],
                "git_protected": True,
                "file_bytes": 1_000_000,
                "patch_bytes": 1_000_000,
            }
        )
        try:
            yield session
        finally:
            session.close()
            os.umask(mask)

    def look(self) -> dict[str, tuple[bytes, int]]:
        found = {}
        for path in self.root.rglob("*"):
            data = b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(self.root))] = (data, stat.S_IMODE(path.stat().st_mode))
        return found

    def files(self) -> Files:
        return {
            name: (data.decode(), mode) for name, (data, mode) in self.look().items() if (self.root / name).is_file()
        }


@contextmanager
def built(case: Case) -> Iterator[House]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield House(folder, case)
    finally:
        shutil.rmtree(folder)


def run(session: Session, operation: str, *verbs: str) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for verb in verbs:
        answer = session.call({"verb": verb, "operation": operation})
    return answer


def plan(session: Session, house: House) -> None:
    session.call({"verb": "plan", "operation": "op-1", "patch": house.patch, "expected_versions": {}})


def undo(session: Session, house: House, operation: str, undone: str) -> None:
    session.call({"verb": "plan_undo", "operation": operation, "undone": undone, "folder": str(house.journal)})
    report = run(session, operation, "stage", "install")
    assert report["clean"], report
    run(session, operation, "finish")


def same(found: Files, wanted: Files) -> bool:
    return found == {name: (text, 0o644 if mode == -1 else mode) for name, (text, mode) in wanted.items()}


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(case=cases())
def test_what_is_applied_is_what_the_model_says_and_undo_is_identity_byte_for_byte_and_mode_for_mode(
    case: Case,
) -> None:
    with built(case) as house, house.helper() as session:
        before = house.look()
        plan(session, house)
        assert run(session, "op-1", "stage", "install")["clean"]
        run(session, "op-1", "finish")
        assert same(house.files(), case.after)
        after = house.look()
        undo(session, house, "op-2", "op-1")
        assert house.look() == before
        undo(session, house, "op-3", "op-2")
        assert house.look() == after
        undo(session, house, "op-4", "op-3")
        assert house.look() == before


@SETTINGS
@given(case=cases(), verbs=st.integers(0, 3), undoing=st.booleans())
def test_a_patch_or_an_undo_that_ends_behind_any_verb_is_settled_as_whole(
    case: Case, verbs: int, undoing: bool
) -> None:
    with built(case) as house:
        with house.helper() as session:
            plan(session, house)
            if undoing:
                run(session, "op-1", "stage", "install", "finish")
                session.call({"verb": "plan_undo", "operation": "op-2", "undone": "op-1", "folder": str(house.journal)})
            before = house.look()
            operation = "op-2" if undoing else "op-1"
            run(session, operation, *("stage", "install", "restore")[:verbs])
        with house.helper() as session:
            settled = session.call({"verb": "settle", "operation": operation})["outcome"]
            run(session, operation, "finish")
            if settled == "applied":
                if not undoing:
                    assert same(house.files(), case.after)
                else:
                    assert same(house.files(), case.before)
            else:
                assert settled == {0: None, 1: "rejected", 3: "failed_rolled_back"}[verbs]
                assert house.look() == before
