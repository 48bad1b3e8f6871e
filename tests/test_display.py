"""Whatever comes from outside is shown as what it is, and acts on nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.display import display, display_json

_ACTS = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def test_plain_text_stays_as_it_is() -> None:
    assert display("src/main.py: 3 lines, 50 %") == "src/main.py: 3 lines, 50 %"


def test_letters_of_every_language_stay_readable() -> None:
    assert display("파일 größer 文件 файл") == "파일 größer 文件 файл"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\x07b\x00c", "a\\x07b\\x00c"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("pay\u200bpal", "pay\\u200bpal"),
        ("bad\udcffname", "bad\\udcffname"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("no\u00a0break", "no\\xa0break"),
        ("filler\u3164", "filler\\u3164"),
        ("line\u2028end", "line\\u2028end"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("vowels\u17b4\u17b5", "vowels\\u17b4\\u17b5"),
        ("joiners\u2d7f\U0001107f", "joiners\\u2d7f\\U0001107f"),
        ("note\U0001d159", "note\\U0001d159"),
        ("khitan\U00016fe4", "khitan\\U00016fe4"),
        ("\u0338joins what stands before", "\\u0338joins what stands before"),
        ("\u200b\u0338joins an escape", "\\u200b\\u0338joins an escape"),
    ],
)
def test_what_acts_or_hides_is_written_as_an_escape(text: str, shown: str) -> None:
    assert display(text) == shown


def test_a_written_escape_cannot_be_taken_for_a_real_one() -> None:
    assert display("\\x1b") == "\\\\x1b"
    assert display("\x1b") == "\\x1b"


def test_lines_keep_their_ends_and_nothing_else() -> None:
    assert display("one\n\ttwo\r\n\x1b[2J", newlines=True) == "one\n\ttwo⟨CR⟩\n⟨ESC⟩[2J"


def test_what_a_program_writes_as_an_escape_stays_and_is_told_from_a_real_one() -> None:
    assert display("'\\u202e\\x1b'", newlines=True) == "'\\u202e\\x1b'"
    assert display("'\u202e\u200b'", newlines=True) == "'⟨U+202E⟩⟨U+200B⟩'"
    assert display("'⟨U+202E⟩'", newlines=True) == "'⟨U+27E8⟩U+202E⟩'"


@pytest.mark.parametrize("mark", ["\u0338", "\u20dd", "\u093f"])
def test_no_mark_joins_the_sign_of_a_line_and_those_of_letters_stay(mark: str) -> None:
    told = f"⟨U+{ord(mark):04X}⟩"
    lines = f"{mark}\n+{mark}{mark}=\n-{mark}\n {mark}\n\t{mark}\n+a{mark}{mark}\n"
    assert display(lines, newlines=True) == (f"{told}\n+{told}{told}=\n-{told}\n {told}\n\t{told}\n+a{mark}{mark}\n")
    assert display(f"a{mark}") == f"a{mark}"


def test_json_keeps_its_own_backslashes_and_nothing_in_it_acts() -> None:
    assert display_json(["a\\.py$", "one\ntwo", "\u202e"]) == r'["a\\.py$", "one\ntwo", "\u202e"]'
    assert display_json("abcdef", limit=3) == '"ab… (+5 characters)'


def test_a_cut_says_how_much_is_missing() -> None:
    assert display("abcdefgh", limit=3) == "abc… (+5 characters)"
    assert display("abc", limit=3) == "abc"


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_text_whatsoever_shows_a_character_that_acts(text: str) -> None:
    assert not [character for character in display(text) if unicodedata.category(character) in _ACTS]


@given(st.text(), st.text(), st.booleans())
def test_different_texts_never_look_the_same(one: str, other: str, newlines: bool) -> None:
    assert (display(one, newlines=newlines) == display(other, newlines=newlines)) == (one == other)
