"""What a path may say, and which names are hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.beneath import Hidden, clean
from codespace.errors import Refusal


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", "."),
        (".", "."),
        ("a/", "a"),
        ("./a//b/.", "a/b"),
        ("a/../b", "b"),
        ("a/..", "."),
        ("a\\b", "a\\b"),
        ("~", "~"),
        ("...", "..."),
        ("gr\u00fc\u00dfe/\u65e5\u672c", "gr\u00fc\u00dfe/\u65e5\u672c"),
    ],
)
def test_a_path_is_normalised_by_its_letters(said: str, meant: str) -> None:
    assert clean(said) == meant


@pytest.mark.parametrize("said", ["/", "/etc/passwd", "..", "../x", "a/../../x", "./..", "//x"])
def test_a_path_that_leads_out_is_an_escape(said: str) -> None:
    with pytest.raises(Refusal) as refused:
        clean(said)
    assert refused.value.code == "PATH_ESCAPE"


@pytest.mark.parametrize("said", ["a\0b", "a\nb", "\x1b[2J", "a\x7f", "a\x85b", "\udcff", "a/" * 2048 + "a"])
def test_a_path_with_controls_or_no_text_or_no_end_is_refused(said: str) -> None:
    with pytest.raises(Refusal) as refused:
        clean(said, "cwd")
    assert (refused.value.code, refused.value.details) == ("INVALID_ARGUMENT", {"argument": "cwd"})
    assert refused.value.message.startswith("The cwd ")


@given(st.text(max_size=40, alphabet=st.sampled_from("ab./\\")))
def test_a_cleaned_path_is_its_own_clean_form_and_never_leaves(said: str) -> None:
    try:
        cleaned = clean(said)
    except Refusal:
        return
    assert clean(cleaned) == cleaned
    assert not cleaned.startswith("/")
    assert ".." not in cleaned.split("/")


@pytest.mark.parametrize(
    ("glob", "covered", "visible"),
    [
        (".env", [".env", "a/.env", ".env/x"], [".envrc", "a.env"]),
        ("*.pem", ["k.pem", "a/b/k.pem"], ["k.pem.txt"]),
        ("/top", ["top", "top/x"], ["a/top"]),
        ("a/secret", ["a/secret", "a/secret/x"], ["b/a/secret", "secret"]),
        ("secrets/", ["secrets", "a/secrets/x"], ["secret"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["z", "b/a/z"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("?at", ["cat", "d/hat"], ["at", "chat"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[!ab]x", ["cx"], ["ax"]),
        ("a\\*", ["a*"], ["ab"]),
        ("[", ["["], ["x"]),
        ("[^]]x", ["ax"], ["]x"]),
        ("[]a]x", ["]x", "ax"], ["bx"]),
        ("[!]", ["[!]"], ["!"]),
        ("[z-a]x", [], ["zx", "ax", "-x"]),
        ("[!z-a]x", ["zx", "-x"], ["x", "a/x/y"]),
        ("[a-c-]x", ["bx", "-x"], ["dx"]),
        ("[&&~~||--a]x", ["&x", "~x", "|x", "ax"], ["bx"]),
        ("[\\d]x", ["dx", "\\x"], ["1x"]),
    ],
)
def test_a_hidden_glob_covers_as_gitignore_would(glob: str, covered: list[str], visible: list[str]) -> None:
    hidden = Hidden([glob])
    assert [path for path in covered if not hidden.covers(path)] == []
    assert [path for path in visible if hidden.covers(path)] == []


@pytest.mark.parametrize("spelt", ["SECRET", "Secret", "sec\u200bret"])
def test_another_spelling_is_covered_where_letter_case_is_folded(spelt: str) -> None:
    hidden = Hidden(["secret"])
    assert not hidden.covers(spelt)
    assert hidden.covers_folded(spelt)


def test_no_globs_hide_nothing() -> None:
    assert not Hidden([])
    assert not Hidden([]).covers("anything")
