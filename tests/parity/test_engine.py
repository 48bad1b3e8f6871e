"""Every recorded case through the pure engine, on a tree in memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.v4a import Directory, File, Plan, parse, plan
from codespace.v4a.paths import parents

ROOT = "/somewhere/root"
CASES = [json.loads(line) for line in Path(__file__).with_name("corpus.jsonl").read_bytes().splitlines()]
APPLIED = [case for case in CASES if case["expect"]["outcome"] == "applied"]

LINKS = {case["id"] for case in CASES if case.get("symlinks_before")}
PLANNED_THOUGH_REFUSED = {
    "symlink-003": "the tree of the transaction refuses the link that an add would write through",
    "symlink-004": "the same, where the link dangles",
    "symlink-009": "the tree of the transaction refuses the link that a move would replace",
    "paths-035": "that .git is protected is policy of the transaction",
}
"""Refused cases that are not the engine's to refuse: links and protected paths. It knows neither."""
REFUSED = [
    case for case in CASES if case["expect"]["outcome"] == "refused" and case["id"] not in PLANNED_THOUGH_REFUSED
]


class MemoryTree:
    """Files and directories of a case. Links are left out: to the engine they are the tree's business."""

    def __init__(self, case: dict[str, Any]) -> None:
        modes = case.get("modes_before", {})
        self.files = {
            rooted(path): File(content(text), int(modes.get(path, "644"), 8))
            for path, text in case["files_before"].items()
            if not path.startswith("../")
        }
        self.directories = {rooted(path) for path in case.get("dirs_before", [])}
        self.directories |= {parent for path in [*self.files, *self.directories] for parent in parents(path)}

    def look(self, path: str) -> File | Directory | None:
        return Directory() if path in self.directories else self.files.get(path)

    def install(self, net: Plan) -> None:
        """Apply net changes as a transaction does: what goes, goes first."""
        for change in net.changes:
            gone = change.from_path or (change.path if change.kind == "delete" else None)
            if gone is not None:
                assert self.files.pop(gone).data == change.before
        for change in net.changes:
            if change.after is not None:
                assert (change.path in self.files) == (change.kind == "update")
                self.files[change.path] = File(change.after, 0o644 if change.mode is None else change.mode)
                self.directories |= set(parents(change.path))
        self.directories |= set(net.directories)
        assert not self.directories & self.files.keys()

    def empty_directories(self) -> list[str]:
        used = {parent for path in [*self.files, *self.directories] for parent in parents(path)}
        return sorted(self.directories - used)


def content(text: str | dict[str, str]) -> bytes:
    return text.encode() if isinstance(text, str) else base64.b64decode(text["b64"])


def rooted(text: str) -> str:
    return text.replace("{{ROOT}}", ROOT)


def test_the_corpus_is_whole() -> None:
    assert (len(CASES), len(APPLIED)) == (922, 570)


@pytest.mark.parametrize("case", APPLIED, ids=lambda case: case["id"])
def test_an_applied_case_gives_the_recorded_tree(case: dict[str, Any]) -> None:
    tree = MemoryTree(case)
    before = dict(tree.files)
    net = plan(parse(rooted(case["patch"])), tree)
    assert tree.files == before
    assert net.seen == {path: before[path].data if path in before else None for path in net.touched}
    tree.install(net)
    wanted = {rooted(path): content(text) for path, text in case["expect"]["files_after"].items()}
    assert {path: file.data for path, file in tree.files.items()} == wanted
    if "symlinks_before" not in case:
        assert tree.empty_directories() == case["expect"].get("empty_dirs_after", [])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_a_refused_case_is_refused_with_its_code(case: dict[str, Any]) -> None:
    tree = MemoryTree(case)
    before = dict(tree.files)
    with pytest.raises(Refusal) as refusal:
        plan(parse(rooted(case["patch"])), tree)
    assert tree.files == before
    assert refusal.value.message.endswith("Nothing was written.")
    if "code" in case["expect"] and case["id"] not in LINKS:
        assert refusal.value.code == case["expect"]["code"]


@pytest.mark.parametrize("case_id", PLANNED_THOUGH_REFUSED)
def test_what_policy_refuses_is_planned_by_the_engine(case_id: str) -> None:
    case = next(case for case in CASES if case["id"] == case_id)
    assert plan(parse(rooted(case["patch"])), MemoryTree(case)).changes


def test_an_unplaced_chunk_of_every_case_is_explained() -> None:
    explained = 0
    for case in REFUSED:
        if not case.get("reference_message", "").startswith(
            ("Failed to find expected lines", "Failed to find context")
        ):
            continue
        with pytest.raises(Refusal) as refusal:
            plan(parse(rooted(case["patch"])), MemoryTree(case))
        if refusal.value.code != "INVALID_PATCH":
            continue  # an earlier operation of the patch is refused by the stricter rules
        details = refusal.value.details
        assert details is not None
        assert {"path", "chunk", "chunk_line", "expected", "first_difference", "nearest", "already_applied"} <= set(
            details
        )
        patch_line = details["chunk_line"]
        assert 1 < patch_line <= case["patch"].count("\n") + 1
        explained += 1
    assert explained >= 140
