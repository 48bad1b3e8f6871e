"""Diffs: true, readable, and never longer than asked."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.errors import Refusal
from codespace.v4a import NetChange, parse, plan, unified_diff

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "é", "日本\r", "x\ry"]), max_size=40)
ENDS = st.sampled_from(["", "\n"])
PLENTY = 1_000_000


def change(before: bytes | None, after: bytes | None, path: str = "f") -> NetChange:
    kind = "add" if before is None else "delete" if after is None else "update"
    return NetChange(path, kind, None, before, after, 0o644)  # type: ignore[arg-type]  # one of the literals


@given(LINES, ENDS, LINES, ENDS)
def test_a_diff_leads_from_the_old_bytes_to_the_new(
    bench: Any, old: list[str], old_end: str, new: list[str], new_end: str
) -> None:
    before, after = ("\n".join(old) + old_end).encode(), ("\n".join(new) + new_end).encode()
    diff, truncated = unified_diff([change(before, after)], PLENTY)
    assert not truncated
    assert bench.apply_diff(before, diff) == after


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=60),
    ENDS,
    st.lists(st.integers(0, 59), max_size=6),
    st.sampled_from([["+z"], ["+z", "+a"], []]),
)
def test_known_edits_give_the_same_outcome_as_a_search(
    bench: Any, lines: list[str], end: str, at: list[int], added: list[str]
) -> None:
    lines = [f"{line}{number // 7}" for number, line in enumerate(lines)]
    before = ("\n".join(lines) + end).encode()
    body = [part for number in sorted(set(at)) if number < len(lines) for part in ("@@", f"-{lines[number]}", *added)]
    try:
        changes = plan(parse(bench.update(*body or ["+z"])), bench.Tree({"f": before})).changes
    except Refusal:
        return  # a repeated line may have no place behind the one before
    for planned in changes:
        assert planned.edits is not None
        assert planned.after is not None
        diff, truncated = unified_diff([planned], PLENTY)
        assert not truncated
        assert bench.apply_diff(before, diff) == planned.after


def test_a_small_change_shows_three_lines_of_context(bench: Any) -> None:
    before = b"".join(b"%d\n" % number for number in range(1, 21))
    (planned,) = plan(
        parse(bench.update("@@", " 9", "-10", "+ten", " 11", "@@", "-19")), bench.Tree({"f": before})
    ).changes
    diff, truncated = unified_diff([planned], PLENTY)
    first = "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
    second = "@@ -16,5 +16,4 @@\n 16\n 17\n 18\n-19\n 20\n"
    assert (diff, truncated) == ("--- a/f\n+++ b/f\n" + first + second, False)


def test_lines_that_are_taken_out_and_put_back_are_not_shown(bench: Any) -> None:
    lines = ["@@", "-a", "-b", "-c", "+a", "+B", "+c"]
    (planned,) = plan(parse(bench.update(*lines)), bench.Tree({"f": b"a\nb\nc\n"})).changes
    assert unified_diff([planned], PLENTY)[0] == "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"


def test_a_missing_last_newline_is_told(bench: Any) -> None:
    (planned,) = plan(parse(bench.update("@@", " a")), bench.Tree({"f": b"a"})).changes
    assert (
        unified_diff([planned], PLENTY)[0]
        == "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n"
    )


def test_whole_files_and_moves_have_their_own_form() -> None:
    changes = [
        change(None, b"x\ny\n", "new"),
        change(b"x", None, "old"),
        change(None, b"", "empty"),
        NetChange("to", "move", "from", b"k\n", b"k\n", 0o644),
        NetChange("there", "move", "here", b"k\n", b"l\n", 0o644),
    ]
    assert unified_diff(changes, PLENTY) == (
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+x\n+y\n"
        "--- a/old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n\\ No newline at end of file\n"
        "--- /dev/null\n+++ b/empty\n"
        "rename from from\nrename to to\n"
        "rename from here\nrename to there\n--- a/here\n+++ b/there\n@@ -1,1 +1,1 @@\n-k\n+l\n",
        False,
    )


def test_bytes_that_are_no_text_are_named_by_size_and_hash() -> None:
    diff, truncated = unified_diff([change(b"\xff\x00", None, "gone"), change(b"\xff", b"text\n", "made")], PLENTY)
    assert not truncated
    digest = sha256(b"\xff\x00").hexdigest()
    assert f"[old content: 2 bytes, sha256:{digest}, not UTF-8 text]" in diff
    assert diff.endswith("@@ -0,0 +1,1 @@\n+text\n")


@pytest.mark.parametrize("before", [None, b"old\n", b"\xfe\xff"])
def test_new_bytes_that_are_no_text_are_told_by_size_and_hash(before: bytes | None) -> None:
    after = b"shown\n\xff\xfe"
    diff, _ = unified_diff([change(before, after)], PLENTY)
    assert f"[new content: 8 bytes, sha256:{sha256(after).hexdigest()}, not UTF-8 text]\n" in diff
    assert "shown" not in diff
    assert ("-old\n" in diff) == (before == b"old\n")


def test_a_whole_file_that_does_not_fit_is_named_and_what_follows_is_shown() -> None:
    diff, truncated = unified_diff([change(None, b"x\n" * 5000, "big"), change(None, b"y\n", "small")], 2000)
    assert truncated
    assert "10000 bytes, sha256:" in diff
    assert "5000 lines, too large to show here" in diff
    assert diff.endswith("+++ b/small\n@@ -0,0 +1,1 @@\n+y\n")


def test_a_cut_diff_says_where_it_was_cut() -> None:
    changes = [
        change(b"a\n", b"b\n", "one"),
        change(b"x\n" * 4000, b"y\n" * 4000, "two"),
        change(b"a\n", b"b\n", "three"),
    ]
    diff, truncated = unified_diff(changes, 2000)
    assert truncated
    assert diff.endswith("\n[diff cut here, in change 2 of 3: it is over the limit of 2000 bytes]\n")


@given(st.lists(st.text("aé日😀\n", max_size=60), min_size=1, max_size=4), st.integers(0, 700))
def test_a_diff_is_whole_characters_within_its_limit(texts: list[str], limit: int) -> None:
    changes = [
        change(text.encode(), None if number % 2 else text[::-1].encode(), f"ф{number}")
        for number, text in enumerate(texts)
    ]
    diff, truncated = unified_diff(changes, limit)
    assert len(diff.encode()) <= limit
    whole, _ = unified_diff(changes, PLENTY)
    assert truncated == (diff != whole)


@pytest.mark.parametrize("count", [200, 20_000])
def test_repeated_lines_end_in_one_block_when_a_search_costs_too_much(bench: Any, count: int) -> None:
    before, after = b"a\nb\n" * count, b"b\nb\na\n" * count
    diff, truncated = unified_diff([change(before, after)], 10_000_000)
    assert not truncated
    assert bench.apply_diff(before, diff) == after


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        ({"f": b"1\n2\n3\n"}, ["*** Update File: f", "-1", "*** Update File: f", "-3", "+4"]),
        ({"f": b"1\r2\n3\n"}, ["*** Update File: f", "-3", "+4"]),
        ({"f": b"x\ny\n", "g": b"1\n2\n"}, ["*** Delete File: f", "*** Update File: g", "*** Move to: f", "-1", "+y"]),
    ],
)
def test_a_diff_is_true_where_the_edits_of_the_patch_are_not_those_of_the_file(
    bench: Any, files: dict[str, bytes], lines: list[str]
) -> None:
    net = plan(parse(bench.envelope(*lines)), bench.Tree(files))
    (planned,) = (planned for planned in net.changes if planned.path == "f")
    assert planned.before == files["f"]
    assert bench.apply_diff(files["f"], unified_diff([planned], PLENTY)[0]) == planned.after
