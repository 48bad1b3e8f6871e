"""What ripgrep names is looked at anew: it works by name, and a name may lead elsewhere once it opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespace import limits
from codespace.contract import FindResult, SearchResult, Workspace
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search


@pytest.fixture
def roots() -> Iterator[Roots]:
    opened = Roots()
    yield opened
    opened.close()


@pytest.fixture(params=["bubblewrap", "beneath"])
def search(request: pytest.FixtureRequest, roots: Roots) -> Search:
    return Search(roots, allow_bubblewrap=request.param == "bubblewrap")


def put(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


async def find(search: Search, workspace: Workspace, glob: str | None = None) -> FindResult:
    return await search.find(workspace, glob=glob, query=None, include_ignored=False, limit=100)


async def grep(search: Search, workspace: Workspace, glob: str | None = None, limit: int = 100) -> SearchResult:
    return await search.search(workspace, "needle", literal=True, glob=glob, context_lines=1, limit=limit)


async def around(roots: Roots, directory: Path, before: str, after: str) -> Search:
    """Return a search whose ripgrep finds the root as `before` leaves it; what comes then finds it as `after` does."""
    real = (await Search(roots).confinement()).bubblewrap
    fake = directory / "bwrap"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *--no-messages*) ;; *) exec {real} "$@" ;; esac\n'
        f'cd {directory}/root && {before}\n{real} "$@" >{directory}/said\nended=$?\n{after}\n'
        f"cat {directory}/said\nexit $ended\n"
    )
    fake.chmod(0o755)
    search = Search(roots, bwrap_path=str(fake))
    assert (await search.confinement()).kind == "bubblewrap"
    return search


async def test_lines_are_those_of_the_file_that_is_there_and_not_of_what_ripgrep_was_led_to(
    roots: Roots, tmp_path: Path
) -> None:
    workspace = Workspace(id="w", root=str(tmp_path / "root"), hidden_paths=(".env",))
    put(tmp_path / "root", {".env": "needle SECRET", "k": "nothing", "x": "before\nneedle\nafter"})
    search = await around(roots, tmp_path, "mv k .codespace-k && cp .env k", "mv .codespace-k k")
    found = await grep(search, workspace)
    assert [(match.path, match.before, match.text, match.after) for match in found.matches] == [
        ("x", ("before",), "needle", ("after",))
    ]
    assert (found.truncated, found.reason, found.files_searched) == (True, "unreadable", 2)  # k was another one


async def test_a_name_is_told_and_counted_only_where_it_is_there(roots: Roots, tmp_path: Path) -> None:
    workspace = Workspace(id="w", root=str(tmp_path / "root"), hidden_paths=("/vault/",))
    put(tmp_path / "root", {"vault/merger": "", "k/plain": "", "l/plain": ""})
    before = "rm -rf l && mkdir l && cp vault/merger k && cp vault/merger l"
    search = await around(roots, tmp_path, before, "rm k/merger && rm -r l && ln -s vault l")
    found = await find(search, workspace)
    assert (found.paths, found.total_seen, found.truncated) == (("k/plain",), 1, False)
    assert (await grep(search, workspace, "{*/m,m}erger")).files_searched == 0


@pytest.mark.parametrize("rules", ["/*\n!/src\n", ".*\n", "*\n!*/\n!*.py\n"])
async def test_rules_that_match_the_root_itself_leave_it_in(search: Search, tmp_path: Path, rules: str) -> None:
    put(tmp_path, {".gitignore": rules, "src/a.py": "needle"})
    workspace = Workspace(id="w", root=str(tmp_path))
    assert (await find(search, workspace)).paths == ("src/a.py",)
    assert [match.path for match in (await grep(search, workspace)).matches] == ["src/a.py"]


async def test_ignore_rules_that_are_one_huge_line_end_no_search(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await search.confinement()
    monkeypatch.setattr(limits, "SEARCH_MEMORY_BYTES", 100 * 1_048_576)
    put(tmp_path, {".gitignore": "", "a.txt": "needle"})
    os.truncate(tmp_path / ".gitignore", 250_000_000)
    workspace = Workspace(id="w", root=str(tmp_path))
    found = await find(search, workspace)
    assert (found.paths, found.truncated) == ((".gitignore", "a.txt"), False)
    result = await grep(search, workspace, "*.txt")
    assert ([match.path for match in result.matches], result.truncated) == (["a.txt"], False)


@pytest.mark.parametrize(
    ("files", "is_ignored"),
    [
        ({".rgignore": "*.log\n", ".ignore": "!*.log\n"}, True),
        ({".ignore": "!*.log\n", "sub/.gitignore": "*.log\n"}, False),
        ({".gitignore": "!*.log\n", "sub/.git/HEAD": "", "sub/.git/info/exclude": "*.log\n"}, False),
        ({"sub/.git/HEAD": "", "sub/.git/info/exclude": "*.log\n"}, True),
        ({".gitignore": "*.log\n", "sub/.gitignore": "!x.*\n"}, False),
        ({".gitignore": "*.log\n!x.log\n*.log\n"}, True),
    ],
)
async def test_the_same_rules_count_in_either_confinement(
    search: Search, tmp_path: Path, files: dict[str, str], is_ignored: bool
) -> None:
    put(tmp_path, {**files, "sub/x.log": ""})
    found = await find(search, Workspace(id="w", root=str(tmp_path)), "*.log")
    assert found.paths == (() if is_ignored else ("sub/x.log",))


async def test_a_binary_file_of_any_size_is_looked_up_in_the_sandbox_too_and_what_lies_behind_a_nul_told(
    roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_BINARY_BYTES", 10)
    put(tmp_path, {"large": "needle one\n\0needle two\n", "z": "\0\nneedle\n", **{f"m{n}": "needle" for n in range(5)}})
    workspace = Workspace(id="w", root=str(tmp_path))
    search = Search(roots)
    found = await grep(search, workspace)
    assert [match.path for match in found.matches] == ["large", "m0", "m1", "m2", "m3", "m4"]
    assert (found.reason, found.files_searched) == ("binary", 7)
    cut = await grep(search, workspace, limit=2)
    assert ([match.path for match in cut.matches], cut.reason) == (["large", "m0"], "limit")
    assert [note.split(". ")[0] for note in (*found.notes, *cut.notes)] == [
        "matches behind a NUL byte are not shown, in large, z"
    ] * 2


@pytest.mark.parametrize("hidden", [".env.[!e]*", ".env.\\prod", ".env.prod"])
async def test_whether_a_hidden_name_exists_is_told_by_no_count_and_no_long_line(
    search: Search, tmp_path: Path, hidden: str
) -> None:
    workspace = Workspace(id="w", root=str(tmp_path), hidden_paths=(hidden,))
    put(tmp_path, {"seen": "x"})
    globs = (None, ".env.prod", ".env.p*", "*.prod")
    without = [await grep(search, workspace, glob) for glob in globs]
    put(tmp_path, {".env.prod": "needle" + "x" * 6_000_000})
    assert [await grep(search, workspace, glob) for glob in globs] == without
