"""One pass over a file, in blocks of any size, says what a look at the whole would say."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.runner.lines import Scan


def scanned(content: bytes, block: int, first: int = 1, count: int | None = None, limit: int = 1 << 20) -> Scan:
    scan = Scan(first, count, limit)
    for start in range(0, len(content), block):
        scan.feed(content[start : start + block])
    scan.finish()
    return scan


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("content", "ending", "lines", "final"),
    [
        (b"", "none", 0, False),
        (b"one", "none", 1, False),
        (b"one\n", "lf", 1, True),
        (b"one\r\ntwo", "crlf", 2, False),
        (b"one\r\ntwo\n", "mixed", 2, True),
        (b"one\rtwo", "none", 1, False),
        (b"one\rtwo\n", "lf", 1, True),
        (b"\n\n\n", "lf", 3, True),
        (b"\r\n", "crlf", 1, True),
        (b"\r\r\n", "crlf", 1, True),
    ],
)
def test_line_facts_hold_wherever_the_blocks_are_cut(
    content: bytes, ending: str, lines: int, final: bool, block: int
) -> None:
    scan = scanned(content, block)
    assert (scan.line_ending, scan.total_lines, scan.final_newline) == (ending, lines, final)


@given(
    content=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", "é".encode(), "😀".encode()])).map(b"".join),
    block=st.integers(1, 9),
    first=st.integers(1, 6),
    count=st.one_of(st.none(), st.integers(1, 4)),
    limit=st.integers(1, 30),
)
def test_a_range_is_what_splitting_the_whole_would_give(
    content: bytes, block: int, first: int, count: int | None, limit: int
) -> None:
    scan = scanned(content, block, first, count, limit)
    lines = content.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    wanted = b"".join(lines[first - 1 : None if count is None else first - 1 + count])
    assert scan.cut == (len(wanted) > limit)
    assert scan.raw() == wanted[:limit]
    assert scan.version == "sha256:" + hashlib.sha256(content).hexdigest()
    assert scan.is_text
    got = scan.wanted()
    got.decode()  # never a part of a character
    assert wanted.startswith(got)
    if scan.cut and b"\n" in wanted[:limit]:
        assert got.endswith(b"\n")


@given(content=st.binary(max_size=40), block=st.integers(1, 7))
def test_text_is_what_decodes_as_a_whole(content: bytes, block: int) -> None:
    try:
        content.decode()
        text = True
    except UnicodeDecodeError:
        text = False
    assert scanned(content, block).is_text == text
