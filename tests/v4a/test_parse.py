"""The grammar: what is a patch, which line is at fault, and that hostile text never does worse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace import limits
from codespace.errors import Refusal
from codespace.v4a import Add, Chunk, Delete, Update, parse

PIECES = st.sampled_from(
    [
        "*** Begin Patch",
        "*** End Patch",
        "*** Add File: a",
        "*** Delete File: b/c",
        "*** Update File: d",
        "*** Move to: e",
        "*** End of File",
        "*** Environment ID: box",
        "@@",
        "@@ anchor",
        "+added",
        "-removed",
        " context",
        "",
        "\r",
        "\x1f",
        "\ufeff",
        "\u2028",
        "\ud800",
        "<<EOF",
        "EOF",
    ]
)


def parsed_or_refused(text: str) -> bool:
    """Whether the parser keeps its promise; any other exception goes through."""
    try:
        parse(text)
    except Refusal as refusal:
        return refusal.code == "INVALID_PATCH" and refusal.details is not None
    return True


@given(st.text())
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    assert parsed_or_refused(text)


@given(st.lists(PIECES | st.text(max_size=5)), st.sampled_from(["\n", "\r\n", "\r\r\n", "\r"]))
def test_arbitrary_lines_in_a_frame_are_parsed_or_refused(lines: list[str], ending: str) -> None:
    assert parsed_or_refused(ending.join(["*** Begin Patch", *lines, "*** End Patch"]))
    assert parsed_or_refused(ending.join(lines))


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))))
def test_added_lines_arrive_as_they_are_written(lines: list[str]) -> None:
    (operation,) = parse(
        "\n".join(["*** Begin Patch", "*** Add File: f", *[f"+{line}" for line in lines], "*** End Patch"])
    ).operations
    assert operation == Add("f", "".join(f"{line}\n" for line in lines).encode(), 2)


def test_operations_keep_their_order_and_their_line_numbers(bench: Any) -> None:
    text = bench.envelope(
        "*** Add File: a",
        "+x",
        "*** Delete File: b",
        "*** Update File: c",
        "*** Move to: d",
        "@@ anchor",
        " k",
        "-l",
        "+m",
        "*** End of File",
    )
    chunk = Chunk(7, 8, "anchor", ((" ", "k"), ("-", "l"), ("+", "m")), True)
    assert parse(text).operations == (Add("a", b"x\n", 2), Delete("b", 4), Update("c", "d", (chunk,), 5))


def test_a_chunk_without_a_marker_begins_at_its_first_line(bench: Any) -> None:
    (operation,) = parse(bench.update(" k", "+l", "@@", "-m")).operations
    assert isinstance(operation, Update)
    assert [(chunk.line, chunk.body_line) for chunk in operation.chunks] == [(3, 3), (5, 6)]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["*** Update File: f", "@@", " k", "oops"], 5),
        (["*** Update File: f", "@@", "@@", "-k"], 4),
        (["*** Update File: f"], 2),
        (["*** Update File: f", "@@"], 4),
        (["*** Add File: f", "x"], 3),
        (["*** Delete File: f", ""], 3),
        (["", "*** Delete File: f"], 2),
        (["*** Delete File: f", "*** End Patch", "x"], 4),
        (["*** Environment ID: "], 2),
        (["*** Environment ID: a", "*** Environment ID: b"], 3),
        (["*** Update File: f", "@@", "-k", "*** End of File", "+l"], 6),
        (["*** Add File: f", "+\ud800"], 3),
    ],
)
def test_a_fault_is_named_with_its_line(bench: Any, lines: list[str], line: int) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(bench.envelope(*lines))
    assert refusal.value.code == "INVALID_PATCH"
    assert refusal.value.details == {"line": line}
    assert f"Line {line} " in refusal.value.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("diff --git a/f b/f\nindex 1..2 100644\n--- a/f", "unified diff"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@", "unified diff"),
        ("*** Begin Patch\n--- a/f\n+++ b/f\n*** End Patch", "unified diff"),
        ("```diff\n*** Begin Patch\n*** End Patch\n```", "fence"),
        ("*** Begin Patch\n*** Delete File: f\n*** End Patch\n```", "fence"),
        ("apply_patch <<'PATCH'\n*** Begin Patch\n*** End Patch\nPATCH", "heredoc"),
        ("src/f.py\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", "search and replace"),
        ("*** Begin Patch\n*** Update File: f\n<<<<<<< SEARCH\n*** End Patch", "search and replace"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-a\n=======\n+b\n*** End Patch", "search and replace"),
        ("*** Begin Patch\n*** Update File: f\n@@\n+b\n--- a comment", "Correct the patch text"),
    ],
)
def test_the_next_step_names_another_format_by_its_marks(text: str, told: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(text)
    assert told in refusal.value.next_step
    assert ("*** Update File: PATH" in refusal.value.next_step) == (told in ("unified diff", "search and replace"))


@pytest.mark.parametrize("text", ["", " \n\t", "hello", "*** End Patch", "\ufeff*** Begin Patch\n*** End Patch"])
def test_text_without_a_frame_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="INVALID_PATCH"):
        parse(text)


def test_white_space_is_the_unicode_property_and_no_more(bench: Any) -> None:
    inner = bench.envelope("*** Delete File: f")
    for space in "\t\x0b\x0c\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000":
        assert parse(f"{space}{inner}{space}").operations
        assert parse(bench.envelope(f"*** Delete File: f{space}")).operations == (Delete("f", 2),)
    for other in "\x1c\x1d\x1e\x1f\u180e\u200b\u200d\u2060\ufeff\xad":
        with pytest.raises(Refusal):
            parse(other + inner)
        assert parse(bench.envelope(f"*** Delete File: f{other}")).operations == (Delete(f"f{other}", 2),)


def test_only_a_line_feed_ends_a_line(bench: Any) -> None:
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh"
    assert parse(bench.envelope("*** Add File: f", f"+{text}")).operations == (Add("f", f"{text}\n".encode(), 2),)


def test_a_line_sheds_two_carriage_returns_and_keeps_a_third() -> None:
    text = "*** Begin Patch\r\n*** Add File: f\r\n+a\r\n+b\r\r\n+c\r\r\r\n*** End Patch\r\n"
    assert parse(text).operations == (Add("f", b"a\nb\nc\r\n", 2),)


def test_a_patch_of_too_many_lines_or_operations_is_refused(bench: Any) -> None:
    with pytest.raises(Refusal, match="LIMIT_REACHED"):
        parse(bench.envelope("*** Add File: f", *["+"] * limits.PATCH_LINES))
    with pytest.raises(Refusal, match="LIMIT_REACHED"):
        parse(bench.envelope(*["*** Delete File: f"] * (limits.PATCH_OPERATIONS + 2)))


def test_a_hostile_line_is_quoted_in_part(bench: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(bench.envelope("x" * 1_000_000))
    assert len(refusal.value.message) < 600


def test_a_patch_whose_paths_are_too_deep_together_is_refused_before_the_tree_is_asked(bench: Any) -> None:
    deep = "d/" * 2000
    parse(bench.envelope(f"*** Add File: {deep}f", "+"))
    parse(bench.envelope(*(f"*** Delete File: {number}/{'d/' * 39}f" for number in range(limits.PATCH_OPERATIONS))))
    for lines in (
        [f"*** Add File: {number}/{deep}f" for number in range(3)],
        [line for number in range(3) for line in ("*** Update File: f", f"*** Move to: {number}/{deep}f", "+x")],
    ):
        with pytest.raises(Refusal) as refused:
            parse(bench.envelope(*lines))
        assert (refused.value.code, (refused.value.details or {})["limit"]) == ("LIMIT_REACHED", "PATCH_DEPTH_EFFORT")
