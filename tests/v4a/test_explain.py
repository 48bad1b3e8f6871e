"""Explanations: what a caller learns from a chunk that has no place."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

CODE = b"""import os

class Orchard:
    def __init__(self, trees):
        self.trees = trees

    def pick(self, n):
        return self.trees[:n]

    def prune(self, n):
        return self.trees[n:]
"""


def test_the_first_differing_line_is_named_on_both_sides(bench: Any) -> None:
    refusal = bench.refused(
        CODE, "@@", "     def pick(self, n):", "-        return self.tree[:n]", "+        return []"
    )
    assert refusal.code == "INVALID_PATCH"
    assert refusal.details == {
        "path": "f",
        "chunk": 1,
        "chunk_line": 3,
        "expected": "    def pick(self, n):\n        return self.tree[:n]",
        "first_difference": {
            "line": 8,
            "patch_line": 5,
            "expected": "        return self.tree[:n]",
            "actual": "        return self.trees[:n]",
        },
        "nearest": {
            "start_line": 7,
            "end_line": 8,
            "text": "    def pick(self, n):\n        return self.trees[:n]",
            "similarity": 0.96,
        },
        "already_applied": False,
    }
    assert "Chunk 1 (patch line 3) has no place in f" in refusal.message
    assert "at line 8" in refusal.message


def test_a_line_with_a_typing_slip_is_found_without_any_equal_line(bench: Any) -> None:
    details = bench.refused(CODE, "@@", "-        self.tres = trees", "+x").details
    assert details["nearest"]["start_line"] == 5
    assert details["nearest"]["text"] == "        self.trees = trees"
    assert 0.5 < details["nearest"]["similarity"] < 1


def test_the_chunk_that_fails_is_counted_from_one(bench: Any) -> None:
    details = bench.refused(CODE, "@@", "-import os", "+import sys", "@@", " class Orchid:", "+    pass").details
    assert (details["chunk"], details["chunk_line"]) == (2, 6)
    assert details["first_difference"]["patch_line"] == 7
    assert details["first_difference"]["line"] == 3


def test_a_change_that_is_in_the_file_already_is_told(bench: Any) -> None:
    lines = (
        "@@",
        " import sys",
        "-    self.fruit = trees",
        "+        self.trees = trees",
        "+",
        "+    def pick(self, n):",
    )
    refusal = bench.refused(CODE, "@@", "     def __init__(self, trees):", *lines[2:])
    assert refusal.details["already_applied"] is True
    assert refusal.details["applied_at_line"] == 4
    assert "in the file already, at line 4" in refusal.message
    assert "leave this chunk out" in refusal.next_step
    assert bench.refused(CODE, *lines).details["already_applied"] is False


def test_a_removal_that_was_done_already_is_told_where_its_context_touches(bench: Any) -> None:
    lines = ("@@", "         self.trees = trees", "-        self.crates = []", " ", "     def pick(self, n):")
    assert bench.refused(CODE, *lines).details["already_applied"] is True
    assert bench.refused(CODE, *lines[:3]).details["already_applied"] is False


def test_a_closing_bracket_alone_is_no_proof_of_a_change(bench: Any) -> None:
    assert bench.refused(b"{\n}\n", "@@", "-};", "+}").details["already_applied"] is False


def test_chunks_out_of_file_order_are_told_so(bench: Any) -> None:
    refusal = bench.refused(CODE, "@@", "-    def prune(self, n):", "+x", "@@", "-import os", "+y")
    assert "at line 1, but what comes before it in the patch ends at line 10" in refusal.message
    assert "file order" in refusal.next_step
    assert refusal.details["nearest"]["similarity"] == 1.0
    assert refusal.details["first_difference"] is None


def test_lines_that_are_not_the_last_ones_are_told_so(bench: Any) -> None:
    refusal = bench.refused(CODE, "@@", "-import os", "*** End of File")
    assert "'*** End of File'" in refusal.message
    assert refusal.details["nearest"]["start_line"] == 1


def test_a_partial_anchor_is_told_to_be_a_whole_line(bench: Any) -> None:
    refusal = bench.refused(CODE, "@@ def prune", "-        return self.trees[n:]", "+x")
    assert "Most like it is line 10" in refusal.message
    assert "whole line" in refusal.next_step
    assert refusal.details["expected"] == "def prune"
    assert refusal.details["first_difference"]["patch_line"] == 3


def test_line_ranges_behind_a_marker_are_told_to_be_left_out(bench: Any) -> None:
    for behind in ("", " def f():"):
        assert "without line numbers" in bench.refused(CODE, f"@@ -2,1 +2,1 @@{behind}", "-import os").next_step


def test_a_difference_that_is_hard_to_see_is_named(bench: Any) -> None:
    def note(before: str, line: str) -> str:
        return str(bench.refused(before.encode(), "@@", f"-{line}").details["first_difference"]["note"])

    assert note("return  one and two\n", "return one and\ttwo") == "only white space inside the line differs"
    assert note("Return one and two\n", "return one and two") == "only letter case differs"
    assert "write U+FEFF in front of yours" in note("\ufeffreturn one\ntwo\n", "return one")
    assert note("return one and two\n", "return one\r and two") == "the patch has a carriage return inside the line"


def test_nothing_alike_is_named_when_nothing_is(bench: Any) -> None:
    details = bench.refused(CODE, "@@", "-zzzz qqqq xxxx", "+y").details
    assert details["nearest"] is None
    assert details["first_difference"] == {"line": None, "patch_line": 4, "expected": "zzzz qqqq xxxx", "actual": None}


def test_a_block_that_goes_on_behind_the_end_of_the_file_is_told_so(bench: Any) -> None:
    refusal = bench.refused(b"one line\nanother line\n", "@@", " one line", " another line", "-a third line")
    assert "the file ends before line 3" in refusal.message
    assert refusal.details["nearest"]["end_line"] == 2


def test_a_long_line_is_quoted_around_its_difference(bench: Any) -> None:
    before = "x" * 5000 + "A" + "y" * 5000
    difference = bench.refused(before.encode(), "@@", "-" + before.replace("A", "B")).details["first_difference"]
    assert "xA" in difference["actual"]
    assert "xB" in difference["expected"]
    assert len(difference["actual"]) < 300


def test_an_explanation_is_bounded_in_size(bench: Any) -> None:
    before = b"".join(b"line %d %s\n" % (number, b"x" * 500) for number in range(3000))
    chunk = [f"-line {number} {'x' * 500}" for number in range(100, 1100)]
    refusal = bench.refused(before, "@@", *chunk, "-not there")
    assert len(str(refusal.body())) < 12_000
    assert "… (+" in refusal.details["nearest"]["text"]


def test_an_explanation_in_a_large_file_is_quick(bench: Any) -> None:
    lines = [f"    value {number} = compute({number % 97}, 'é')" for number in range(20_000)]
    took = list[float]()
    while len(took) < 5 and min(took, default=1.0) >= 1.0:  # about 0.03 s; a loaded machine is no fault of ours
        started = time.perf_counter()
        details = bench.refused("\n".join(lines).encode(), "@@", f" {lines[15_000]}", "-    value = nothing").details
        took.append(time.perf_counter() - started)
    assert min(took) < 1.0
    assert details["nearest"]["start_line"] == 15_001


@given(
    st.lists(st.text("ab é\t", max_size=6), max_size=12),
    st.lists(st.tuples(st.sampled_from(" -+"), st.text("ab é\t", max_size=6)), min_size=1, max_size=6),
    st.sampled_from([[], ["*** End of File"]]),
)
def test_every_explanation_points_into_the_file(
    bench: Any, lines: list[str], chunk: list[tuple[str, str]], end: list[str]
) -> None:
    before = "\n".join(lines).encode()
    details = bench.refused(before, "@@", " Q", *[kind + text for kind, text in chunk], *end).details
    count = len(lines) - (bool(lines) and lines[-1] == "")
    nearest, difference = details["nearest"], details["first_difference"]
    assert nearest is None or 1 <= nearest["start_line"] <= nearest["end_line"] <= count
    assert difference is not None
    assert difference["actual"] is None or 1 <= difference["line"] <= count


def test_a_difference_far_out_in_a_giant_line_is_shown_and_not_searched_for_a_name(bench: Any) -> None:
    for length, note in ((1_000, "only letter case differs"), (1_000_000, None)):
        line = "é" * length
        refusal = bench.refused(f"{line}a\n".encode(), f"-{line}A", "+x")
        difference = (refusal.details or {})["first_difference"]
        assert (difference["line"], difference["expected"][-1], difference["actual"][-1]) == (1, "A", "a")
        assert difference.get("note") == note


def test_lines_are_counted_as_read_and_search_count_them_where_a_lone_cr_ends_some(bench: Any) -> None:
    content = b"one\rtwo\r\nthree\nfour\rfive\nsix"
    refusal = bench.refused(content, "@@", " five", "-sex", "+seven")
    assert (refusal.details["first_difference"]["line"], "at line 4 of the file" in refusal.message) == (4, True)
    assert (refusal.details["nearest"]["start_line"], refusal.details["nearest"]["end_line"]) == (3, 4)
    early = bench.refused(content, "@@ five", "-two", "+seven")
    assert "at line 1, but what comes before it in the patch ends at line 3" in early.message
    assert "from line 3 on" in bench.refused(content, "@@", "-four", "+4", "@@ nine", "-ten").message
    done = bench.refused(content, "@@", " four", "-fives", "+five", " six")
    assert done.details["applied_at_line"] == 3
