"""Placing: against a plain model, and within a fixed effort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.errors import Refusal
from codespace.v4a import Update, parse, plan
from codespace.v4a.lines import Text, folded, right_trimmed, trimmed
from codespace.v4a.place import Effort, Finder, Notes, place

FEW_LINES = st.lists(
    st.sampled_from(["a", "b", " a", "a ", "", "  ", "\u2018a\u2019", "'a'", "a\xa0b", "a b", "a\u2014b", "a-b"]),
    max_size=12,
)
FORMS: list[Callable[[str], str]] = [lambda line: line, right_trimmed, trimmed, lambda line: folded([line])[0]]


def slow_find(lines: list[str], pattern: list[str], start: int) -> int | None:
    for form in FORMS:
        for at in range(start, len(lines) - len(pattern) + 1):
            if all(form(lines[at + number]) == form(wanted) for number, wanted in enumerate(pattern)):
                return at
    return None


@given(FEW_LINES, st.lists(st.tuples(FEW_LINES.filter(bool), st.integers(0, 12)), max_size=20))
def test_scanning_and_looking_up_find_what_a_plain_loop_finds(
    lines: list[str], searches: list[tuple[list[str], int]]
) -> None:
    finder = Finder(lines, Effort())
    for pattern, start in searches * 4:  # often enough that the index is built
        assert finder.find(pattern, start) == slow_find(lines, pattern, start)


@given(FEW_LINES, FEW_LINES.filter(bool), st.integers(0, 12))
def test_one_place_fits_as_a_plain_loop_says(lines: list[str], pattern: list[str], at: int) -> None:
    there = lines[at : at + len(pattern)]
    fits = len(there) == len(pattern) and all(
        any(form(line) == form(wanted) for form in FORMS) for line, wanted in zip(there, pattern, strict=True)
    )
    assert Finder(lines, Effort()).matches_at(pattern, at) == fits


@given(st.text(alphabet="ab\r\n\u2028é"))
def test_a_text_is_its_lines_and_endings(content: str) -> None:
    text = Text(content)
    assert text.raw(0, len(text.lines)) == content
    assert "".join(text.raw(number, number + 1) for number in range(len(text.lines))) == content
    assert not any("\n" in line or "\r" in line for line in text.lines)
    assert text.closed == (not content or content[-1] in "\r\n")


@st.composite
def edited_files(draw: st.DrawFn) -> tuple[bytes, list[str], bytes]:
    """Draw a file of distinct lines, the update of random edits to it, and the file that must come out."""
    ending = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    count = draw(st.integers(1, 30))
    lines = [f"line {number} {draw(st.sampled_from(['', 'é', '日本', '😀']))}" for number in range(count)]
    closed = draw(st.booleans())
    patch: list[str] = []
    wanted: list[str] = []
    number = 0
    while number < count:
        if draw(st.booleans()):
            wanted.append(lines[number])
            number += 1
            continue
        patch.append("@@")
        fresh = True
        for step in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(" -+")) if number < count else "+"
            if kind == "+" and fresh and number < count:
                kind = " "  # additions alone would go to the end of the file
            if kind == "+" and fresh:
                patch.pop()
                break
            fresh = False
            text = f"new {number}.{step}" if kind == "+" else lines[number]
            patch.append(kind + text)
            number += kind != "+"
            if kind != "-":
                wanted.append(text)
    before = ending.join(lines) + (ending if closed else "")
    after = "".join(line + (ending if count > 1 or closed else "\n") for line in wanted)
    return before.encode(), patch, after.encode() if patch else before.encode()


@given(edited_files())
def test_random_edits_give_what_a_list_of_lines_gives(bench: Any, edits: tuple[bytes, list[str], bytes]) -> None:
    before, patch, after = edits
    if patch:
        assert bench.updated(before, *patch) == after


@given(
    st.lists(st.sampled_from(["@@", "@@ a", " a", "-a", "+a", " ", "", "-", "+", " b", "-b", "+b", "*** End of File"])),
    st.text("ab \r\n"),
)
def test_any_chunks_on_any_file_are_planned_or_refused(bench: Any, lines: list[str], before: str) -> None:
    try:
        changes = plan(parse(bench.update(*lines)), bench.Tree({"f": before.encode()})).changes
    except Refusal as refusal:
        code = refusal.code
    else:
        assert all(not change.after or change.after.endswith((b"\n", b"\r")) for change in changes)
        code = "INVALID_PATCH"
    assert code == "INVALID_PATCH"


@pytest.mark.parametrize(
    ("lines", "before", "after"),
    [
        ([" a", "", "+b"], b"a\n", b"a\n\nb\n"),
        ([" a", "", "+"], b"a\n", b"a\n\n"),
        ([" a", "-", "+b"], b"a\n", b"a\nb\n"),
        ([" a", "-"], b"a\n", b"a\n"),
        (["", "+b"], b"a\n", b"\nb\na\n"),
    ],
)
def test_a_last_empty_pattern_line_that_is_not_there_is_dropped(
    bench: Any, lines: list[str], before: bytes, after: bytes
) -> None:
    assert bench.updated(before, "@@", *lines) == after


@pytest.mark.parametrize("character", ["é", "日", "😀", "\u0301", "\u200d"])
def test_lines_are_never_cut_inside_a_character(bench: Any, character: str) -> None:
    before = f"{character}\n{character * 2}\nx{character}".encode()
    after = bench.updated(before, "@@", f"-{character * 2}", f"+{character * 3}")
    assert after == f"{character}\n{character * 3}\nx{character}\n".encode()


def test_canonically_equal_spellings_are_different_lines(bench: Any) -> None:
    assert bench.refused("é\n".encode(), "@@", "-e\u0301", "+x").code == "INVALID_PATCH"


REPEATS = [" a"] * 1000 + ["-b"] + [" a"] * 1000


def test_a_quadratic_search_ends_at_the_limit(bench: Any) -> None:
    before = ("a\n" * 1000 + "b\n" + "a\n" * 999 + "c\n").encode() * 250
    refusal = bench.refused(before, "@@", *REPEATS)
    assert (refusal.code, refusal.details) == ("LIMIT_REACHED", {"limit": "PATCH_EFFORT"})


def test_a_passed_deadline_ends_the_plan(bench: Any) -> None:
    looks = iter([False, False, True])
    before = b"a\n" * 200_000
    with pytest.raises(Refusal) as refusal:
        plan(parse(bench.update("@@", "-b")), bench.Tree({"f": before}), lambda: next(looks))
    assert refusal.value.details == {"limit": "deadline"}


def test_ten_thousand_chunks_in_a_large_file_are_within_the_limit(bench: Any) -> None:
    lines = [f"line number {number} of a large file" for number in range(30_000)]
    chunks = [line for number in range(0, 20_000, 2) for line in ("@@", f"-  {lines[number]}", f"+{number}")]
    after = bench.updated("\n".join(lines).encode() + b"\n", *chunks)
    assert after.split(b"\n")[:3] == [b"0", lines[1].encode(), b"2"]


def test_a_file_of_too_many_lines_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespace.limits.PATCH_FILE_LINES", 10)
    assert bench.refused(b"a\n" * 11, "@@", "-a").code == "LIMIT_REACHED"
    assert bench.updated(b"a\n" * 10, "@@", "-a") == b"a\n" * 9


CLASSES = "class A:\n    def run(self):\n        return 1\n\nclass B:\n    def run(self):\n        return 1\n"
ONE, TWO = "-        return 1", "+        return 2"
OWN = "its new lines keep the patch's own"


def notes(bench: Any, before: str, *lines: str) -> list[str]:
    """Return what is told of the chunks of an update of `f`, each without its path."""
    told = plan(parse(bench.update(*lines)), bench.Tree({"f": before.encode()})).notes
    return [note.removeprefix("f, ") for note in told]


@pytest.mark.parametrize(
    ("before", "lines", "told"),
    [
        (CLASSES, [ONE, TWO], "its lines stand at 2 places; the first, line 3, was taken"),
        (CLASSES, ["@@ class A:", ONE, TWO], "its lines stand at 2 places behind line 1; the first, line 3, was taken"),
        (
            CLASSES,
            ["@@     def run(self):", ONE],
            "with its @@ line it stands at 2 places; the first, line 3, was taken",
        ),
        ("a\n" * 500, ["-a"], "its lines stand at 100 places or more; the first, line 1, was taken"),
        ("    a\n", ["-  a", "+  b"], f"placed with white space ignored; {OWN} indentation"),
        ("\ta\n", ["-    a"], "placed with white space ignored"),
        ("a \n", ["-a", "+b"], "placed with white space at line ends ignored"),
        (
            "\ta\n" * 3,
            ["-a"],
            "placed with white space ignored; its lines stand at 3 places; the first, line 1, was taken",
        ),
        (
            "    a\nb\n\ta\n",
            ["-a"],
            "placed with white space ignored; its lines stand at 2 places; the first, line 1, was taken",
        ),
        ("b\n  a\n", ["-a", "+b", "*** End of File"], f"placed with white space ignored; {OWN} indentation"),
        (
            "a\u2014b\n",
            ["-a-b", "+b"],
            f"placed with white space ignored, and typographic quotes, dashes and spaces taken as plain ones; {OWN} "
            "characters",
        ),
        ("a\nb\n", ["@@ a", "+c", ""], "its empty line is not there; its new lines stand behind line 1"),
        ("z\ra\nb\n", ["@@ a", "+c", ""], "its empty line is not there; its new lines stand behind line 1"),
        ("z\ry\na\na\n", ["-a", "+c"], "its lines stand at 2 places; the first, line 2, was taken"),
        ("a\n", ["", "+c"], "its empty line is not there; its new lines stand at the top"),
        (
            "a\nb\n",
            ["@@ a", "+c"],
            "it has new lines alone, so they stand at the end of the file, not behind its @@ line",
        ),
    ],
)
def test_a_chunk_that_was_not_placed_plainly_is_told(bench: Any, before: str, lines: list[str], told: str) -> None:
    assert notes(bench, before, *lines) == [f"chunk 1: {told}"]


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        (CLASSES, ["@@ class B:", ONE, TWO]),
        (CLASSES, ["     def run(self):", "-        return 1", "+        return 2", " ", " class B:"]),
        (CLASSES, ["@@ class A:", "     def run(self):", ONE, TWO, "", " class B:"]),
        (CLASSES, ["-class A:", "@@", "     def run(self):", ONE]),
        (CLASSES, [ONE, TWO, "*** End of File"]),
        ("a\nb\n", ["@@ b", "+c"]),
        ("a\n", ["+c"]),
        ("a\n", ["-a", ""]),
    ],
)
def test_a_chunk_to_the_letter_at_the_only_place_behind_what_is_before_it_costs_no_words(
    bench: Any, before: str, lines: list[str]
) -> None:
    assert notes(bench, before, *lines) == []


def test_ten_chunks_are_told_of_and_the_others_counted(bench: Any) -> None:
    told = notes(bench, " a\nb\n" * 12, *["@@", "-a"] * 12)
    assert [note.partition(":")[0] for note in told[:-1]] == [f"chunk {number}" for number in range(1, 11)]
    assert told[-1] == "and of 2 more chunks there is the like to tell: see the diff"


class Counted(Effort):
    """An effort that says how much of it was spent."""

    spent = 0

    def spend(self, amount: int) -> None:
        self.spent += amount
        super().spend(amount)


def test_looking_for_other_places_takes_nothing_of_what_a_patch_may_cost_and_ends_with_its_own(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{number}" for number in range(1_000)] * 2
    (update,) = parse(
        bench.update(*(line for number in range(0, 1_000, 2) for line in ("@@", f"-{number}")))
    ).operations
    assert isinstance(update, Update)
    spent, told = list[int](), list[int]()
    for budget in (0, 10_000, 1_000_000):
        monkeypatch.setattr("codespace.limits.PATCH_NOTES_EFFORT", budget)
        effort, notes = Counted(), Notes()
        assert len(place("f", update.chunks, Text("\n".join(lines)), effort, notes)) == 500
        spent.append(effort.spent)
        told.append(len(notes.told()))
    assert spent == [spent[0]] * 3
    assert told == [0, 5, 11]
