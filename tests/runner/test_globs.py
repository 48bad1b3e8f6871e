"""Globs are read as .gitignore reads them, and no pattern takes long."""

from __future__ import annotations

import time

import pytest

from codespace.errors import Refusal
from codespace.runner.search.globs import Glob, check


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.py", ["a.py", "d/e/a.py", ".py"], ["a.pyc", "py"]),
        ("name", ["name", "d/name"], ["names", "name/x"]),
        ("/top", ["top"], ["d/top"]),
        ("src/*.c", ["src/a.c"], ["src/d/a.c", "x/src/a.c"]),
        ("src/**/*.c", ["src/a.c", "src/d/e/a.c"], ["a.c"]),
        ("**/t/*", ["t/a", "d/t/a"], ["t", "t/d/a"]),
        ("d/**", ["d/a", "d/e/a"], ["d", "e/d/a"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]x", ["dx"], ["ax"]),
        ("[]]x", ["]x"], ["x"]),
        ("[a", ["[a"], ["a"]),
        ("\\*x", ["*x"], ["ax"]),
        ("*.{ts,tsx}", ["a.ts", "d/a.tsx"], ["a.js"]),
        ("{a,b/c}", ["a", "d/a", "b/c"], ["c", "d/b/c"]),
        ("{a", ["{a"], ["a"]),
        ("a*b*c", ["abc", "axxbxxc", "abcbc"], ["ab", "acb"]),
        ("**", ["a", "a/b"], []),
        ("*\n*", ["a\nb"], ["ab"]),
    ],
)
def test_a_glob_matches_as_gitignore_would(pattern: str, matching: list[str], others: list[str]) -> None:
    glob = Glob(pattern)
    assert [path for path in matching if not glob.matches(path)] == []
    assert [path for path in others if glob.matches(path)] == []


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 200 + "b", "a" * 4000), ("**/a/" * 100 + "b", "a/" * 2000 + "a"), ("[a-z]*" * 300 + "!", "q" * 4000)],
)
def test_a_hostile_glob_takes_no_longer_than_its_length_allows(pattern: str, path: str) -> None:
    glob = Glob(pattern)

    def seconds() -> float:
        began = time.process_time()
        assert not glob.matches(path)
        return time.process_time() - began

    assert any(seconds() < 2 for _ in range(5))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("\\{x,y\\}", ["{x,y}"], ["x", "y", "\\{x"]),
        ("[{]x,y[}]", ["{x,y}"], ["x", "y"]),
        ("{[,]a,b\\}}", [",a", "b}"], ["a", "b"]),
        ("{a,\\{b,c}", ["a", "{b", "c"], ["b"]),
    ],
)
def test_braces_and_commas_that_are_escaped_or_in_a_class_are_letters(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    glob = Glob(pattern)
    assert all(map(glob.matches, matching))
    assert not any(map(glob.matches, others))


@pytest.mark.parametrize("pattern", ["{a,b}" * 7, "x" * 10_001, "{" * 2_000 + "}" * 2_000])
def test_a_glob_that_grows_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(Refusal) as refused:
        Glob(pattern)
    assert refused.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("[", "INVALID_ARGUMENT"),
        ("src/[a-z/*.py", "INVALID_ARGUMENT"),
        ("[]", "INVALID_ARGUMENT"),
        ("[!]", "INVALID_ARGUMENT"),
        ("{a,[b}", "INVALID_ARGUMENT"),
        ("..", "PATH_ESCAPE"),
        ("../*", "PATH_ESCAPE"),
        ("src/../*.py", "PATH_ESCAPE"),
        ("{..,a}/b/", "PATH_ESCAPE"),
    ],
)
def test_a_slip_that_would_match_nothing_is_refused(pattern: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(pattern)
    assert refused.value.code == code
    assert (refused.value.details or {})["argument"] == "glob"


@pytest.mark.parametrize(
    "pattern", ["\\[", "[]]", "[!]]", "[[]", "a\\[b", "...", "..a/b..", "a]", "[.]./x", "**/[a-z]*"]
)
def test_what_only_looks_like_a_slip_is_taken(pattern: str) -> None:
    check(pattern)
