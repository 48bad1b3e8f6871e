"""`find` and `search`, in the bubblewrap sandbox and on descriptors alone: the same answers, the same refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.beneath import Hidden
from codespace.beneath.walking import Entry
from codespace.contract import FindResult, SearchResult, Workspace
from codespace.errors import Refusal
from codespace.runner.roots import Roots
from codespace.runner.search import ripgrep
from codespace.runner.search.confinement import Prober
from codespace.runner.search.globs import Glob
from codespace.runner.search.ignores import Ignores
from codespace.runner.search.search import Search
from codespace.runner.search.stopping import Stop
from codespace.testing.shortage import descriptors


@pytest.fixture(params=["bubblewrap", "beneath"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def roots() -> Iterator[Roots]:
    opened = Roots()
    yield opened
    opened.close()


@pytest.fixture
def search(roots: Roots, kind: str) -> Search:
    return Search(roots, allow_bubblewrap=kind == "bubblewrap")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    directory = tmp_path / "root"
    directory.mkdir()
    workspace = Workspace(id="w", root=str(directory), hidden_paths=(".env", "vault", "[k]eys"))
    put(
        workspace,
        {
            ".gitignore": "*.log\nbuild/\n!kept.log\n",
            ".git/config": "needle",
            "sub/.git": "gitdir: needle",
            ".dot": "needle",
            "a/one.py": "first\nneedle here\nthird\n",
            "a/two.txt": "a needle and a needle\n",
            "a/.gitignore": "/local\n",
            "a/local": "needle",
            "b/local": "needle",
            "debug.log": "needle",
            "kept.log": "needle",
            "build/out": "needle",
            ".env": "needle",
            "vault/x": "needle",
            "keys": "needle",
            "b/.codespace-1-2.staged": "needle",
        },
    )
    return workspace


def put(workspace: Workspace, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = os.path.join(workspace.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as made:
            made.write(content if isinstance(content, bytes) else content.encode())


def make_failing(fake: Path, real: str | None, worked: Path) -> None:
    """Write a bubblewrap that fails from the moment that `worked` exists."""
    failing = f"if [ -e {worked} ]; then echo 'bwrap: no namespace' >&2; exit 1; fi"
    fake.write_text(f'#!/bin/sh\n{failing}\nexec {real} "$@"\n')
    fake.chmod(0o755)


async def find(search: Search, workspace: Workspace, **changed: Any) -> FindResult:
    asked: dict[str, Any] = {"glob": None, "query": None, "include_ignored": False, "limit": 1000}
    return await search.find(workspace, **(asked | changed))


async def grep(search: Search, workspace: Workspace, pattern: str = "needle", **changed: Any) -> SearchResult:
    asked: dict[str, Any] = {"literal": False, "glob": None, "context_lines": 0, "limit": 1000}
    return await search.search(workspace, pattern, **(asked | changed))


async def refused(search: Search, workspace: Workspace, pattern: str, **changed: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        await grep(search, workspace, pattern, **changed)
    return raised.value


async def test_the_confinement_in_force_is_what_was_asked_for(search: Search, kind: str) -> None:
    assert (await search.confinement()).kind == kind


VISIBLE = [".dot", "a/one.py", "a/two.txt", "b/local", "kept.log"]


async def test_a_find_shows_dotfiles_and_leaves_out_what_is_ignored_hidden_staged_or_git_s(
    search: Search, workspace: Workspace
) -> None:
    result = await find(search, workspace)
    assert list(result.paths) == sorted([*VISIBLE, ".gitignore", "a/.gitignore"])
    assert (result.total_seen, result.truncated, result.reason) == (len(result.paths), False, None)


async def test_ignored_files_are_found_on_request_and_hidden_ones_still_not(
    search: Search, workspace: Workspace
) -> None:
    paths = (await find(search, workspace, include_ignored=True)).paths
    extra = [".gitignore", "a/.gitignore", "a/local", "build/out", "debug.log"]
    assert list(paths) == sorted([*VISIBLE, *extra])


async def test_a_search_finds_the_lines_of_visible_files_only(search: Search, workspace: Workspace) -> None:
    result = await grep(search, workspace)
    assert [match.path for match in result.matches] == VISIBLE
    found = {match.path: match for match in result.matches}
    assert (found["a/one.py"].line, found["a/one.py"].column, found["a/one.py"].text) == (2, 1, "needle here")
    assert found["a/two.txt"].column == 3
    assert not result.truncated


async def test_a_search_that_is_short_of_descriptors_is_refused_or_says_that_it_is_not_whole(
    search: Search, workspace: Workspace
) -> None:
    whole = await grep(search, workspace)
    ends: list[str] = []
    for left in range(16):
        with descriptors(left):
            try:
                found = await grep(search, workspace)
                ends.append("whole" if found == whole else f"cut: {found.truncated}")
            except Refusal as refusal:
                ends.append(refusal.code)
    assert (ends[0], ends[-1]) == ("FILE_OPERATION_FAILED", "whole")
    assert set(ends) <= {"FILE_OPERATION_FAILED", "cut: True", "whole"}


async def test_a_ripgrep_that_went_since_it_was_looked_for_is_a_refusal(
    roots: Roots, kind: str, workspace: Workspace, tmp_path: Path
) -> None:
    mine = tmp_path / "rg"
    shutil.copy(Path(sys.prefix, "bin", "rg"), mine)
    search = Search(roots, rg_path=str(mine), allow_bubblewrap=kind == "bubblewrap")
    await grep(search, workspace)
    mine.unlink()
    refusal = await refused(search, workspace, "needle")
    assert refusal.code == "FILE_OPERATION_FAILED"
    assert "No such file" in refusal.message


@pytest.mark.parametrize("glob", ["keys", "[k]eys", "[!l]eys", "[Kk]e[a-z]s", "*.[pP][eE]m", "[z-a]x", "?"])
async def test_what_is_hidden_is_not_even_counted(search: Search, tmp_path: Path, glob: str) -> None:
    workspace = Workspace(id="w", root=str(tmp_path), hidden_paths=(glob,))
    put(workspace, {"seen": "needle", "zx": "needle", "b-7": "needle"})
    visible = (await grep(search, workspace)).files_searched
    hidden = [name for name in ("keys", "k.pEm", "k") if Hidden([glob]).covers(name)]
    put(workspace, dict.fromkeys(hidden, "needle"))
    result = await grep(search, workspace)
    assert (result.files_searched, len(result.matches)) == (visible, 3)


@pytest.mark.parametrize("glob", ["[!v]ault", "{secret}", "sec\\ret", "[a-]ecret", "**/[!x]ecret/*"])
async def test_what_is_hidden_by_a_glob_that_ripgrep_reads_otherwise_is_not_shown(
    search: Search, tmp_path: Path, glob: str
) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    workspace = Workspace(id="w", root=str(root), hidden_paths=(glob,))
    names = ["xault", "{secret}", "secret", "aecret", "-ecret", "deep/secret/x", "deep/{secret}/x", "vault"]
    for name in names:
        if not (root / name).exists():
            put(workspace, {f"{name}/in" if name == "secret" else name: "needle"})
    shown = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and not Hidden((glob,)).covers(path.relative_to(root).as_posix())
    )
    assert len(shown) < sum(path.is_file() for path in root.rglob("*")), "the glob hides something"
    for include_ignored in (False, True):
        assert sorted((await find(search, workspace, include_ignored=include_ignored)).paths) == shown
    assert sorted(match.path for match in (await grep(search, workspace)).matches) == shown


async def test_context_lines_come_with_a_match(search: Search, workspace: Workspace) -> None:
    put(workspace, {"c": "1\r\n2\r\nxx\r\nxx\r\n5\r\n6\r\n"})
    first, second = (await grep(search, workspace, "xx", context_lines=2)).matches
    assert (first.before, first.text, first.after) == (("1", "2"), "xx", ("xx", "5"))
    assert (second.before, second.after) == (("2", "xx"), ("5", "6"))


async def test_a_glob_narrows_and_never_brings_back_what_is_ignored(search: Search, workspace: Workspace) -> None:
    assert [match.path for match in (await grep(search, workspace, glob="*.log")).matches] == ["kept.log"]
    assert [match.path for match in (await grep(search, workspace, glob="a/**")).matches] == ["a/one.py", "a/two.txt"]
    assert [match.path for match in (await grep(search, workspace, glob="!*.{py,txt}")).matches] == [
        ".dot",
        "b/local",
        "kept.log",
    ]
    assert (await find(search, workspace, glob="*.log")).paths == ("kept.log",)
    assert (await find(search, workspace, glob="**/one.*")).paths == ("a/one.py",)


@pytest.mark.parametrize(
    ("glob", "files"),
    [("a/**", 3), ("a/*.py", 1), ("*.py", 1), ("**/*.py", 1), ("!*.py", 6), ("build/**", 0), ("no/**", 0), ("n?", 0)],
)
async def test_only_files_that_were_asked_for_count_as_searched(
    search: Search, workspace: Workspace, glob: str, files: int
) -> None:
    for pattern in ("needle", "nowhere"):
        found = await grep(search, workspace, pattern, glob=glob)
        assert (found.files_searched, found.truncated, found.reason) == (files, False, None)


async def test_a_question_mark_is_one_letter_of_any_script(search: Search, workspace: Workspace) -> None:
    put(workspace, {"names/가.md": "needle", "names/é.md": "needle", "names/x.md": "needle", "names/xy.md": "needle"})
    wanted = ("names/x.md", "names/é.md", "names/가.md")
    assert (await find(search, workspace, glob="names/?.md")).paths == wanted
    assert tuple(match.path for match in (await grep(search, workspace, "needle", glob="?.md")).matches) == wanted


async def test_a_rule_is_a_line_and_its_bytes_as_git_reads_them(search: Search, tmp_path: Path, kind: str) -> None:
    root = os.fsencode(tmp_path / "root")
    os.mkdir(root)
    ignored = [b"first", b"a\x0cb", b"c\xc2\x85d", b"e\xe2\x80\xa8f"]
    shown = [b"a", b"b", b"c", b"d", b"e", b"f"]
    rules = b"\xef\xbb\xbf" + b"\n".join(ignored)
    if kind == "beneath":  # ripgrep ends at a line that is not UTF-8
        rules += b"\n\xff*"
        ignored.append(b"\xffg")
    for name in [*ignored, *shown]:
        Path(os.fsdecode(os.path.join(root, name))).write_bytes(b"")
    Path(os.fsdecode(root), ".gitignore").write_bytes(rules)
    found = await find(search, Workspace(id="w", root=os.fsdecode(root)))
    assert found.paths == (".gitignore", *map(os.fsdecode, shown))


async def test_a_query_finds_a_name_by_some_of_its_letters(search: Search, workspace: Workspace) -> None:
    assert (await find(search, workspace, query="onpy")).paths == ("a/one.py",)


async def test_a_cut_answer_is_the_first_part_and_says_so(search: Search, workspace: Workspace) -> None:
    result = await find(search, workspace, limit=2)
    assert (result.paths, result.truncated, result.total_seen, result.reason) == (
        (".dot", ".gitignore"),
        True,
        7,
        "limit",
    )
    matches = await grep(search, workspace, limit=2)
    assert ([match.path for match in matches.matches], matches.truncated, matches.reason) == (
        [".dot", "a/one.py"],
        True,
        "limit",
    )


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("last$", [1, 3]),
        ("^$", [2]),
        ("\\r$", [1, 2]),
        ("last\\r", [1]),
        ("last.", []),
        ("last\\s*$", [1, 3]),
        ("last\\x0D", [1]),
        ("last\\u{d}", [1]),
        ("last\\u000d", [1]),
        ("last[[:cntrl:]]", [1]),
    ],
)
async def test_a_line_ends_before_either_kind_of_line_end(
    search: Search, workspace: Workspace, pattern: str, lines: list[int]
) -> None:
    put(workspace, {"crlf/f": b"the last\r\n\r\nthe last\n"})
    found = (await grep(search, workspace, pattern, glob="crlf/**")).matches
    assert [match.line for match in found] == lines
    assert all("\r" not in match.text for match in found)


async def test_a_pattern_is_only_ever_a_pattern(search: Search, workspace: Workspace) -> None:
    put(workspace, {"p": "--files\n-e\n(((\n$(touch x)\n"})
    for pattern in ("--files", "-e", "(((", "$(touch x)"):
        assert [match.text for match in (await grep(search, workspace, pattern, literal=True)).matches] == [pattern]
    assert [match.text for match in (await grep(search, workspace, "--fil+es")).matches] == ["--files"]


async def test_a_wrong_pattern_is_refused_with_ripgrep_s_own_words(search: Search, workspace: Workspace) -> None:
    failure = await refused(search, workspace, "(unclosed")
    assert failure.code == "INVALID_ARGUMENT"
    assert "unclosed group" in failure.message
    assert "exceeds size limit" in (await refused(search, workspace, "(a{1000}){1000}{1000}")).message
    assert (await refused(search, workspace, "a\nb")).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("pattern", "literal"), [("a\nb", True), ("a\nb", False), ("a\\nb", False)])
async def test_a_pattern_of_two_lines_is_refused_with_a_step_that_helps(
    search: Search, workspace: Workspace, pattern: str, literal: bool
) -> None:
    failure = await refused(search, workspace, pattern, literal=literal)
    assert failure.code == "INVALID_ARGUMENT"
    assert "one line" in failure.next_step
    assert "literal" not in failure.next_step


async def test_a_wrong_pattern_is_refused_in_an_empty_workspace_too(search: Search, tmp_path: Path) -> None:
    workspace = Workspace(id="e", root=str(tmp_path))
    assert (await refused(search, workspace, "(")).code == "INVALID_ARGUMENT"
    result = await grep(search, workspace)
    assert (result.matches, result.files_searched, result.truncated) == ((), 0, False)
    assert (await find(search, workspace)).paths == ()


@pytest.mark.parametrize("pattern", ["", "a\0b", "x" * 10_001, "\udcff"])
async def test_what_is_no_pattern_never_reaches_ripgrep(search: Search, workspace: Workspace, pattern: str) -> None:
    failure = await refused(search, workspace, pattern)
    assert (failure.code, failure.details) == ("INVALID_ARGUMENT", {"argument": "pattern"})


@pytest.mark.parametrize("changed", [{"limit": 0}, {"context_lines": -1}, {"context_lines": 51}, {"glob": "a\0"}])
async def test_wrong_numbers_and_globs_are_refused(
    search: Search, workspace: Workspace, changed: dict[str, Any]
) -> None:
    failure = await refused(search, workspace, "x", **changed)
    assert (failure.code, failure.details) == ("INVALID_ARGUMENT", {"argument": next(iter(changed))})


@pytest.mark.parametrize(
    ("glob", "code"), [("[", "INVALID_ARGUMENT"), ("../*", "PATH_ESCAPE"), ("!../*", "PATH_ESCAPE")]
)
async def test_a_glob_that_can_match_nothing_is_no_empty_success(
    search: Search, workspace: Workspace, glob: str, code: str
) -> None:
    for asked in (find(search, workspace, glob=glob), grep(search, workspace, glob=glob)):
        with pytest.raises(Refusal) as refused:
            await asked
        assert refused.value.code == code


async def test_a_glob_from_here_is_one_from_the_root(search: Search, workspace: Workspace) -> None:
    assert (await find(search, workspace, glob="./a/*.py")).paths == ("a/one.py",)
    assert (await find(search, workspace, glob="./one.py")).paths == ()


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("a", ["a/.gitignore", "a/one.py", "a/two.txt"]),
        ("a/", ["a/.gitignore", "a/one.py", "a/two.txt"]),
        ("./a/", ["a/.gitignore", "a/one.py", "a/two.txt"]),
        ("/a", ["a/.gitignore", "a/one.py", "a/two.txt"]),
        ("deep/a", ["deep/a/x"]),
        ("?/", ["a/.gitignore", "a/one.py", "a/two.txt", "b/local", "deep/a/x"]),
        ("b", ["b/local"]),
        ("one.py", ["a/one.py"]),
        ("local", ["b/local"]),
        ("x/", []),
        ("vault", []),
        ("link", []),
        ("!a", [".dot", ".gitignore", "b/local", "deep/a/x", "kept.log"]),
    ],
)
async def test_a_glob_that_names_a_directory_is_about_what_is_below_it(
    search: Search, workspace: Workspace, glob: str, paths: list[str]
) -> None:
    put(workspace, {"deep/a/x": "needle"})
    os.symlink("a", f"{workspace.root}/link")
    assert list((await find(search, workspace, glob=glob)).paths) == paths
    found = await grep(search, workspace, glob=glob)
    assert found.files_searched == len(paths)
    assert {match.path for match in found.matches} == {path for path in paths if not path.endswith(".gitignore")}


@pytest.mark.parametrize("glob", ["zz/-b/f.x", "zz/-b/*.x", "zz/-b/", "f.x", "**/-b/**"])
async def test_what_was_not_asked_for_counts_for_no_limit(
    search: Search, workspace: Workspace, glob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, {"zz/-b/f.x": "needle", **{f"aa/{number}.x": "needle\n" * 300 for number in range(30)}})
    monkeypatch.setattr(limits, "FIND_PATHS", 5)
    monkeypatch.setattr(limits, "SEARCH_MATCHES", 50)
    monkeypatch.setattr(limits, "SEARCH_OUTPUT_BYTES", 20_000)
    found = await find(search, workspace, glob=glob)
    assert (found.paths, found.truncated) == (("zz/-b/f.x",), False)
    result = await grep(search, workspace, glob=glob, limit=10)
    assert [match.path for match in result.matches] == ["zz/-b/f.x"]
    assert (result.files_searched, result.truncated) == (1, False)


@pytest.mark.parametrize(("glob", "hidden"), [("**/*.x", ("[!k]id",)), ("{kept,lib}/*.x", ())])
async def test_a_file_that_is_hidden_or_not_asked_for_ends_no_search_however_large_it_is(
    search: Search, workspace: Workspace, glob: str, hidden: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, {"kept/f.x": "needle", "hid/large.x": "needle\n" * 9_000, "hid/wide.x": "needle " * 900_000})
    monkeypatch.setattr(limits, "SEARCH_OUTPUT_BYTES", 20_000)
    result = await grep(search, replace(workspace, hidden_paths=hidden), glob=glob)  # ripgrep is not told of either
    assert ([match.path for match in result.matches], result.truncated) == (["kept/f.x"], False)


@pytest.mark.parametrize("below", ["a-b.c/\u00e9]", f"{'x' * 30}/in", "a", "ab/c", "build/kept"])
async def test_what_lies_beside_a_glob_s_directory_is_not_opened_and_the_rules_above_it_hold(
    search: Search, workspace: Workspace, tmp_path: Path, below: str
) -> None:
    beside = ["a-b.d", "a-b.cc", "a-b.", f"{'x' * 24}", "ab/d", "abc", "a-b.c/\u00e9", "build/keep"]
    put(workspace, {f"{name}/{rest}": "needle" for name in (*beside, below) for rest in ("f.log", "g", "h/i")})
    put(workspace, {"ab/.gitignore": "g\n/c/h/\n!c/f.log\n"})
    everything = await find(search, workspace)
    inside = tuple(path for path in everything.paths if path.startswith(f"{below}/"))
    assert bool(inside) is not below.startswith("build")
    for glob in (f"{below}/**", f"/{below}/"):
        assert (await find(search, workspace, glob=glob)).paths == inside
        assert (await grep(search, workspace, glob=glob)).files_searched == len(inside)


async def test_a_directory_that_cannot_be_read_makes_no_answer_about_another_one_less_than_whole(
    roots: Roots, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = replace(
        workspace, hidden_paths=("e\\xtra", "vault", ".env", "keys")
    )  # ripgrep is not told of the first
    put(workspace, {"shut/x": "needle", "extra/x": "needle"})
    for name in ("shut", "extra"):
        os.chmod(os.path.join(workspace.root, name), 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # as who may not read it outside of the sandbox either
    search = Search(roots)
    everything, matching = await find(search, workspace), await grep(search, workspace)
    found, result = await find(search, workspace, glob="a/**"), await grep(search, workspace, glob="a/*.py")
    for name in ("shut", "extra"):
        os.chmod(os.path.join(workspace.root, name), 0o700)
    for whole in (everything, matching):
        assert (whole.truncated, whole.reason) == (True, "unreadable")
        assert [note.partition(" (")[0] for note in whole.notes] == ["not readable, so left out: shut"]
    assert (len(found.paths), found.truncated, found.notes) == (3, False, ())
    assert ([match.path for match in result.matches], result.truncated) == (["a/one.py"], False)


@pytest.mark.parametrize("glob", [".", "./", "/", ".//"])
async def test_a_glob_of_the_root_is_about_all_of_it(search: Search, workspace: Workspace, glob: str) -> None:
    assert (await find(search, workspace, glob=glob)).paths == (await find(search, workspace)).paths
    assert len((await grep(search, workspace, glob=glob)).matches) == len(VISIBLE)


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("app/[id]/{x,y}.txt", ["app/[id]/{x,y}.txt"]),
        ("./app//[id]/./{x,y}.txt", ["app/[id]/{x,y}.txt"]),
        ("app/[id]/*.txt", ["app/[id]/{x,y}.txt"]),
        ("app/[id]", ["app/[id]/[", "app/[id]/b\\d", "app/[id]/{x,y}.txt"]),
        ("app/[id]/[", ["app/[id]/["]),
        ("app/[id]/b\\d", ["app/[id]/b\\d"]),
        ("app/\\[id\\]/\\{x,y\\}.txt", ["app/[id]/{x,y}.txt"]),
        ("app/*/[{]x[,]y}.txt", ["app/[id]/{x,y}.txt"]),
        ("app/[ij]", ["app/i"]),
        ("!app/[id]/", ["app/i"]),
        ("app//./i", ["app/i"]),
        ("app/i/..", None),
    ],
)
async def test_a_path_that_is_there_is_taken_by_its_letters(
    search: Search, tmp_path: Path, glob: str, paths: list[str] | None
) -> None:
    workspace = Workspace(id="w", root=str(tmp_path))
    put(workspace, dict.fromkeys(("app/[id]/{x,y}.txt", "app/[id]/b\\d", "app/[id]/[", "app/i"), "needle"))
    if paths is None:
        assert (await refused(search, workspace, "needle", glob=glob)).code == "PATH_ESCAPE"
        return
    assert list((await find(search, workspace, glob=glob)).paths) == paths
    assert [match.path for match in (await grep(search, workspace, glob=glob)).matches] == paths


@pytest.mark.parametrize(("below", "step"), [("/a/*.py", "a/*.py"), ("/", "Leave"), ("", "Leave")])
async def test_a_glob_with_the_root_s_own_path_is_refused_and_told_how_to_be_written(
    search: Search, workspace: Workspace, below: str, step: str
) -> None:
    for sign in ("", "!"):
        told = await refused(search, workspace, "needle", glob=f"{sign}{workspace.root}{below}")
        assert (told.code, (told.details or {})["argument"]) == ("INVALID_ARGUMENT", "glob")
        assert step in (told.next_step or "")
    put(workspace, {f"{workspace.root[1:]}/a/two.py": "needle"})  # then it is the path of something below, too
    assert len((await find(search, workspace, glob=f"{workspace.root}/a/*.py")).paths) == 1


async def test_a_name_that_no_caller_could_say_is_shown_escaped(search: Search, workspace: Workspace) -> None:
    for name in (b"new\nline", b"bad\xff", b"esc\x1b[2J"):
        descriptor = os.open(os.path.join(os.fsencode(workspace.root), name), os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"odd")
        os.close(descriptor)
    shown = ["bad\\udcff", "esc\\x1b[2J", "new\\nline"]
    assert sorted(match.path for match in (await grep(search, workspace, "odd")).matches) == shown
    assert set(shown) <= set((await find(search, workspace)).paths)


async def test_binary_files_and_bytes_that_are_no_text_do_no_harm(search: Search, workspace: Workspace) -> None:
    put(workspace, {"binary": b"x\0\0", "latin": b"treasure \xe9\n", "utf16": "treasure\n".encode("utf-16")})
    result = await grep(search, workspace, "treasure")
    assert [(match.path, match.text) for match in result.matches] == [
        ("latin", "treasure \ufffd"),
        ("utf16", "treasure"),
    ]
    assert (result.truncated, result.notes) == (False, ())


@pytest.mark.parametrize("early", [True, False])
async def test_of_a_file_with_a_nul_byte_the_lines_before_it_are_shown_and_matches_behind_it_told(
    search: Search, workspace: Workspace, early: bool
) -> None:
    lines = b"a line\n" * (1 if early else 50_000)  # ripgrep looks at 64 KiB first
    put(workspace, {"build.txt": b"treasure\n" + lines + b"treasure 10%\0 treasure 20%\ntreasure\n"})
    put(workspace, {f"picture{number}": b"\0 treasure\n" for number in range(4)})
    result = await grep(search, workspace, "treasure", context_lines=1)
    assert [(match.path, match.line, match.after) for match in result.matches] == [("build.txt", 1, ("a line",))]
    assert (result.truncated, result.reason) == (True, "binary")
    (note,) = result.notes
    assert "build.txt, picture0, picture1 and 2 more" in note


async def test_a_search_does_without_binary_files_where_they_take_too_long(
    roots: Roots, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_TEXT_SECONDS", limits.SEARCH_SECONDS - 0.5)
    put(workspace, {"disk.img": b""})
    os.truncate(os.path.join(workspace.root, "disk.img"), 64 * 2**30)
    result = await grep(Search(roots), workspace)
    assert [match.path for match in result.matches] == VISIBLE
    assert (result.truncated, result.reason) == (False, None)
    (note,) = result.notes
    assert "files with a NUL byte were passed over" in note
    # Nor is what was found until then taken for the first of all, where that would be enough.
    first = await grep(Search(roots), workspace, limit=1)
    assert ([match.path for match in first.matches], first.reason) == (VISIBLE[:1], "limit")


async def test_without_a_sandbox_a_large_file_is_searched_and_a_large_binary_one_left_out_and_told(
    roots: Roots, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_BINARY_BYTES", 100)
    put(workspace, {"long": "needle\n" * 100, "long.img": b"needle\n\0" * 100})
    small = replace(workspace, limits=replace(workspace.limits, file_bytes=100))
    result = await grep(Search(roots, allow_bubblewrap=False), small, glob="long*")
    assert {match.path for match in result.matches} == {"long"}
    assert (result.files_searched, result.truncated) == (1, False)
    (note,) = result.notes
    assert "long.img" in note


async def test_a_long_line_is_cut_to_a_window_around_the_match(search: Search, workspace: Workspace) -> None:
    put(workspace, {"min.js": "x" * 200_000 + "HERE" + "y" * 200_000})
    (match,) = (await grep(search, workspace, "HERE")).matches
    assert match.column == 200_001
    assert "HERE" in match.text
    assert match.text.startswith("…")
    assert match.text.endswith("…")
    assert len(match.text) <= limits.SEARCH_LINE_CHARACTERS + 2


async def test_a_line_too_long_to_take_is_left_out_and_said(search: Search, workspace: Workspace) -> None:
    put(workspace, {"huge": "x" * 6_000_000 + "HERE\n", "small": "HERE\n"})
    result = await grep(search, workspace, "HERE")
    assert [match.path for match in result.matches] == ["small"]
    assert (result.truncated, result.reason) == (True, "size")


async def test_a_line_over_the_memory_limit_ends_in_a_partial_answer(
    search: Search, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await search.confinement()
    monkeypatch.setattr(limits, "SEARCH_MEMORY_BYTES", 100 * 1_048_576)
    put(workspace, {"endless": b"x" * 250_000_000})
    result = await grep(search, workspace)
    assert (result.truncated, result.reason) == (True, "size")


async def test_a_pattern_that_matches_everything_ends_early(search: Search, workspace: Workspace) -> None:
    put(workspace, {f"many/{number}": "line\n" * 2_000 for number in range(60)})
    result = await grep(search, workspace, "line", limit=10)
    assert (len(result.matches), result.truncated, result.reason) == (10, True, "limit")


async def test_a_large_file_with_a_match_in_each_line_takes_nothing_from_an_answer(
    search: Search, workspace: Workspace
) -> None:
    put(workspace, {"big.txt": f"{'x' * 60}\n" * 400_000, "b/x": "x"})
    found = await grep(search, workspace, "x", limit=3)
    assert [(match.path, match.line) for match in found.matches] == [("b/x", 1), ("big.txt", 1), ("big.txt", 2)]
    assert (found.truncated, found.reason) == (True, "limit")


async def test_context_comes_behind_the_last_match_that_is_shown_too(search: Search, workspace: Workspace) -> None:
    put(workspace, {"five": "x1\nx2\nx3\nx4\nx5\n"})
    found = await grep(search, workspace, "x", limit=2, context_lines=2)
    assert [(match.before, match.after) for match in found.matches] == [((), ("x2", "x3")), (("x1",), ("x3", "x4"))]
    assert found.reason == "limit"
    exactly = await grep(search, workspace, "x", limit=5)
    assert (len(exactly.matches), exactly.truncated) == (5, False)


async def test_the_matches_of_one_file_with_too_many_are_shown_as_far_as_they_came(
    search: Search, workspace: Workspace
) -> None:
    put(workspace, {"log": "".join(f"{number} {'x' * 520}\n" for number in range(30_000))})
    result = await grep(search, workspace, "xxx", limit=10)
    assert [match.line for match in result.matches] == list(range(1, 11))
    assert (result.truncated, result.reason) == (True, "limit")


async def test_an_answer_holds_only_so_much_however_much_context_is_asked_for(
    search: Search, workspace: Workspace
) -> None:
    wide = "\u00e9" * 480
    put(workspace, {"log": "".join(f"{number} {wide} x\n" for number in range(2_000))})
    result = await grep(search, workspace, "x$", limit=2_000, context_lines=20)
    size = sum(len(json.dumps(asdict(match), ensure_ascii=False).encode()) for match in result.matches)
    assert limits.SEARCH_ANSWER_BYTES / 2 < size < limits.SEARCH_ANSWER_BYTES * 1.1
    assert [match.line for match in result.matches] == list(range(1, len(result.matches) + 1))
    assert (result.truncated, result.reason) == (True, "size")


@pytest.mark.parametrize("name", [".gitignore", ".ignore", ".rgignore"])
async def test_a_fifo_in_place_of_ignore_rules_holds_up_nobody(
    search: Search, workspace: Workspace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_STALL_SECONDS", 0.2)
    put(workspace, {"trap/here": "needle"})
    os.mkfifo(Path(workspace.root, "trap", name))
    result = await grep(search, workspace)
    assert ([match.path for match in result.matches], result.truncated) == ([*VISIBLE, "trap/here"], False)
    found = await search.find(workspace, glob="trap/*", query=None, include_ignored=False, limit=10)
    assert (found.paths, found.truncated) == (("trap/here",), False)


async def test_what_may_not_be_read_is_left_out_and_said(search: Search, workspace: Workspace) -> None:
    put(workspace, {"locked": "needle", "shut/x": "needle"})
    os.chmod(os.path.join(workspace.root, "locked"), 0)
    os.chmod(os.path.join(workspace.root, "shut"), 0)
    result = await grep(search, workspace)
    os.chmod(os.path.join(workspace.root, "shut"), 0o700)
    paths = [match.path for match in result.matches]
    if os.geteuid() == 0:  # root may read them, and does, though not in the sandbox
        assert (paths, result.truncated) == (sorted([*VISIBLE, "locked", "shut/x"]), False)
    else:
        assert (paths, result.truncated, result.reason) == (VISIBLE, True, "unreadable")


@pytest.mark.parametrize("files", [4, 5])
async def test_batches_of_descriptors_add_up(
    roots: Roots, tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ripgrep, "_BATCH", 2)
    workspace = Workspace(id="b", root=str(tmp_path))
    put(workspace, {str(number): "needle" for number in range(files)})
    result = await grep(Search(roots, allow_bubblewrap=False), workspace)
    assert (len(result.matches), result.files_searched) == (files, files)


async def test_a_sandbox_that_fails_for_once_is_done_without(
    roots: Roots, workspace: Workspace, tmp_path: Path
) -> None:
    real = (await Search(roots).confinement()).bubblewrap
    fake = tmp_path / "bwrap"
    worked = tmp_path / "worked"
    make_failing(fake, real, worked)
    search = Search(roots, bwrap_path=str(fake))
    assert (await search.confinement()).kind == "bubblewrap"
    os.close(os.open(worked, os.O_CREAT))
    assert [match.path for match in (await grep(search, workspace)).matches] == VISIBLE
    assert set(VISIBLE) <= set((await find(search, workspace)).paths)


@pytest.mark.parametrize("said", ["rg: ./shut: Permission denied (os error 13)", "rg: killed"])
async def test_a_ripgrep_that_was_killed_is_no_answer_whatever_it_said_of_a_file_before(
    roots: Roots, workspace: Workspace, tmp_path: Path, said: str
) -> None:
    fake, ended = tmp_path / "bwrap", "137"  # as bubblewrap tells of a SIGKILL
    fake.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {ended}\n")
    fake.chmod(0o755)
    confinement = replace(Prober(None, None).confinement(), kind="bubblewrap", bubblewrap=str(fake))
    stop = Stop()
    call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, time.monotonic() + 30)
    try:
        with pytest.raises(Refusal, match=ended):
            call.names(None, include_ignored=False)
        with pytest.raises(Refusal, match=ended):
            call.matches(ripgrep.Question("needle", False, 0, None, None))
    finally:
        stop.close()


async def test_links_are_never_followed_out(search: Search, workspace: Workspace, tmp_path: Path) -> None:
    put(Workspace(id="o", root=str(tmp_path / "outside")), {"file": "needle SECRET"})
    os.symlink(tmp_path / "outside", os.path.join(workspace.root, "dir"))
    os.symlink(tmp_path / "outside" / "file", os.path.join(workspace.root, "link"))
    os.mkfifo(os.path.join(workspace.root, "fifo"))
    assert [match.path for match in (await grep(search, workspace)).matches] == VISIBLE
    assert not {"dir/file", "link", "fifo"} & set((await find(search, workspace)).paths)


_SWAP = """
import os, select, sys
from codespace.beneath import RENAME_EXCHANGE, renameat2
directory = os.open(sys.argv[1], os.O_PATH)
swaps = 0
os.write(1, b"+")
while not select.select([0], [], [], 0)[0]:
    for _ in range(50):
        renameat2(directory, "a", directory, "bad", RENAME_EXCHANGE)
        swaps += 1
print(swaps)
"""


@pytest.mark.parametrize("target", ["../outside", "vault"])
async def test_a_directory_swapped_for_a_link_never_leads_out_nor_to_what_is_hidden(
    search: Search, workspace: Workspace, target: str
) -> None:
    put(workspace, {f"{target}/one.py": "needle SECRET"})
    os.symlink(target, os.path.join(workspace.root, "bad"))
    argv = [sys.executable, "-c", _SWAP, workspace.root]
    process = await trio.lowlevel.open_process(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdin, process.stdout:
        assert await process.stdout.receive_some(1) == b"+"
        for _ in range(20):
            matches = (await grep(search, workspace)).matches
            assert [match.text for match in matches if "SECRET" in match.text] == []
        await process.stdin.send_all(b"end")
        said = b"".join([block async for block in process.stdout])
        await process.wait()
    assert int(said) > 100  # they did overlap


async def test_a_replaced_root_is_refused(search: Search, workspace: Workspace) -> None:
    await find(search, workspace)
    os.rename(workspace.root, workspace.root + "-moved")
    os.mkdir(workspace.root)
    assert (await refused(search, workspace, "needle")).code == "FILE_OPERATION_FAILED"


SLOW = r"(\w\d?){30,60}\b[^\w\s]\b"
"""A pattern that takes seconds on the text of `slow`."""


def slow(workspace: Workspace) -> None:
    put(workspace, {f"slow/{number}": "ab1cd2\u00e9f3gh4ij5kl6mn7\n" * 40_000 for number in range(6)})


def test_time_that_runs_out_gives_the_part_that_was_found(roots: Roots, workspace: Workspace, kind: str) -> None:
    slow(workspace)
    confinement = Prober(None, None, allow_bubblewrap=kind == "bubblewrap").confinement()

    def seconds() -> float:
        stop = Stop()
        began = time.monotonic()
        call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, began + 0.3)
        matches = call.matches(ripgrep.Question(SLOW + "|needle", False, 0, None, None))
        stop.close()
        assert call.cut == "time"
        assert {match.path for match in matches.found} <= set(VISIBLE)
        return time.monotonic() - began

    assert any(seconds() < 2 for _ in range(5)), "not each of them can be a machine that stands still"


def test_a_file_whose_end_does_not_come_in_time_is_shown_as_far_as_it_came(
    roots: Roots, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_STALL_SECONDS", 60.0)
    path = {"text": "./a/one.py"}
    line = {"path": path, "lines": {"text": "needle here\n"}, "line_number": 2, "absolute_offset": 6}
    line["submatches"] = [{"start": 0}]
    said = [{"type": "begin", "data": {"path": path}}, {"type": "match", "data": line}]
    (tmp_path / "said").write_text("".join(f"{json.dumps(message)}\n" for message in said))
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexec sleep 600\n")
    fake.chmod(0o755)
    confinement = replace(Prober(None, None).confinement(), kind="bubblewrap", bubblewrap=str(fake))
    stop = Stop()
    call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, time.monotonic() + 3)
    matches = call.matches(ripgrep.Question("needle", False, 0, None, None))
    stop.close()
    assert (call.cut, [match.path for match in matches.found]) == ("time", ["a/one.py"])


def test_a_walk_whose_time_is_over_says_so(roots: Roots, workspace: Workspace) -> None:
    confinement = Prober(None, None, allow_bubblewrap=False).confinement()
    stop = Stop()
    call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, time.monotonic())
    assert call.names(None, include_ignored=False) == []
    assert call.cut == "time"
    stop.close()


LONG_NAMES = {f"{'a' * 240}{number}": "needle" for number in range(2000)}
COSTLY = "*" + "[a-z]" * 120 + "Z*"
"""A glob that takes milliseconds on each of them."""


def test_a_costly_glob_gives_a_part_in_time(roots: Roots, workspace: Workspace, kind: str) -> None:
    put(workspace, LONG_NAMES)
    confinement = Prober(None, None, allow_bubblewrap=kind == "bubblewrap").confinement()
    wanted = Glob(COSTLY).matches
    for ask in (
        lambda call: call.names(wanted, include_ignored=True),
        lambda call: call.matches(ripgrep.Question("needle", False, 0, wanted, None)),
    ):
        stop = Stop()
        began = time.monotonic()
        call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, began + 0.3)
        ask(call)
        stop.close()
        assert call.cut == "time"
        assert time.monotonic() - began < 30


def test_costly_ignore_rules_give_a_part_in_time(roots: Roots, workspace: Workspace) -> None:
    put(workspace, {**LONG_NAMES, ".gitignore": f"{COSTLY}\n" * 400})
    confinement = Prober(None, None, allow_bubblewrap=False).confinement()
    stop = Stop()
    began = time.monotonic()
    call = ripgrep.Ripgrep(roots.of(workspace), workspace, confinement, stop, began + 0.3)
    call.names(None, include_ignored=False)
    stop.close()
    assert call.cut == "time"
    assert time.monotonic() - began < 30


def test_the_depth_of_a_directory_does_not_count_for_each_name_in_it(roots: Roots, workspace: Workspace) -> None:
    deep = "/".join("d" * 1_500)
    put(workspace, {".gitignore": "no*\n", "d/d/.gitignore": "!now*\n/d/x\n"})
    root = roots.of(workspace)

    def seconds(directory: str, expected: list[bool]) -> float:
        ignores = Ignores(root, lambda: None)
        ignores.skips(Entry(f"{directory}/first", "file"))
        began = time.process_time()
        entries = [Entry(f"{directory}/{name}", "file") for name in ("no", "now", "x")] * 1_000
        assert [ignores.skips(entry) for entry in entries] == expected * 1_000
        return time.process_time() - began

    seconds("d/d/d", [True, False, True])
    deeply = min(seconds(deep, [True, False, False]) for _ in range(3))
    assert deeply < 100 * min(seconds("e", [True, True, False]) for _ in range(3))


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 8, 16, 32, 64])
async def test_a_cancelled_search_leaves_no_process(
    search: Search, workspace: Workspace, kind: str, milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REAP_SECONDS", 60.0)  # the call waits for the end, however slow the machine
    slow(workspace)
    await search.confinement()
    pattern = f"{SLOW}|unique{kind}{milliseconds}of{os.getpid()}end"
    for _ in range(5):
        with trio.move_on_after(milliseconds / 1000) as scope:
            await grep(search, workspace, pattern)
        assert scope.cancelled_caught
        assert _running(pattern) == []


_SEARCHING = """
import sys, trio
from codespace.contract import Workspace
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search
async def main():
    search = Search(Roots())
    await search.confinement()
    print("searching", flush=True)
    workspace = Workspace(id="w", root=sys.argv[1])
    await search.search(workspace, sys.argv[2], literal=False, glob=None, context_lines=0, limit=10)
trio.run(main)
"""


def test_a_daemon_that_is_killed_leaves_no_sandbox(workspace: Workspace) -> None:
    slow(workspace)
    pattern = f"{SLOW}|killed{os.getpid()}end"
    argv = [sys.executable, "-c", _SEARCHING, workspace.root, pattern]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        deadline = time.monotonic() + 60
        while len(_running(pattern)) < 3:  # ourselves, bubblewrap and ripgrep in it
            assert time.monotonic() < deadline
            assert daemon.poll() is None
        daemon.kill()
    deadline = time.monotonic() + 60
    while _running(pattern):
        assert time.monotonic() < deadline


def _running(pattern: str) -> list[str]:
    """Return the processes of this machine whose command line has the pattern, and that are not zombies."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if pattern.encode() in line.read():
                    found.append(pid)
        except OSError:
            continue
    return found


async def test_many_at_once_take_turns_and_all_answer(search: Search, workspace: Workspace) -> None:
    answers: list[int] = []

    async def one() -> None:
        answers.append(len((await grep(search, workspace)).matches))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(one)
    assert answers == [len(VISIBLE)] * 12


_MOUNTED = """
import os, subprocess, sys, trio
from codespace.contract import Workspace
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search
root, kind = sys.argv[1:]
os.makedirs(root + "/mounted"); os.makedirs(root + "/bound"); os.makedirs(root + "/../beside")
os.makedirs(root + "/single"); open(root + "/single/file", "w").close()
open(root + "/../beside/file", "w").write("needle")
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root + "/mounted"], check=True)
subprocess.run(["mount", "--bind", root + "/../beside", root + "/bound"], check=True)
subprocess.run(["mount", "--bind", root + "/../beside/file", root + "/single/file"], check=True)
open(root + "/mounted/file", "w").write("needle")
async def main():
    for allowed in (False, True):
        search = Search(Roots(), allow_bubblewrap=kind == "bubblewrap")
        workspace = Workspace(id="w", root=root, allow_submounts=allowed)
        assert (await search.confinement()).kind == kind
        found = await search.search(workspace, "needle", literal=True, glob=None, context_lines=0, limit=100)
        names = await search.find(workspace, glob="file", query=None, include_ignored=False, limit=100)
        print(",".join(match.path for match in found.matches if match.path.endswith("/file")), ",".join(names.paths))
        print(names.total_seen, found.files_searched)
trio.run(main)
"""


def test_a_mount_below_the_root_is_searched_only_where_allowed(workspace: Workspace, kind: str) -> None:
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _MOUNTED, workspace.root, kind]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    paths = "bound/file,mounted/file,single/file"
    assert done.stdout.splitlines() == [" ", "0 10", f"{paths} {paths}", "3 13"]
