"""The look at a root before and after a run, beside a slower one that takes every path by itself."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespace.beneath import Entry, Hidden, Root
from codespace.sandbox import scan

NAMES = st.sampled_from(
    [
        *(
            "a",
            "A",
            "b.pem",
            "B.PEM",
            ".git",
            ".Git",
            "GIT~1",
            ".git. ",
            "\u200c.git",
            ".gıt",
            "HEAD",
            "objects",
            "refs",
        ),
        *("commondir", ".mcp.json", ".MCP.json", "secrets", "x", ".env", "tasks.json", "qx", "1x", "new\nline"),
    ]
)
GLOBS = st.sampled_from(
    (
        "*.pem",
        ".env",
        "/secrets/",
        "a/**",
        "**/x",
        "a/*/tasks.json",
        "[!A-Z]x",
        "/.mcp.json",
        "B*",
        "secrets",
        "/a/b.pem",
    )
)
KINDS = st.sampled_from(("file", "file", "file", "directory", "directory", "link", "special"))
TREES = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), KINDS), max_size=12)


def grow(root: Path, tree: list[tuple[list[str], str]]) -> None:
    for names, kind in tree:
        path = root.joinpath(*names)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "directory":
                path.mkdir()
            elif kind == "link":
                path.symlink_to("a")
            elif kind == "special":
                os.mkfifo(path)
            else:
                path.touch(exist_ok=False)
        except OSError:
            continue  # something is there, or a link leads round


def slowly(root: Root, hidden: tuple[str, ...], protected: tuple[str, ...]) -> dict[str, set[str]]:
    """Return what is to be found, each path asked about by all globs."""
    hides, protects = Hidden(hidden), Hidden(protected)
    found: dict[str, set[str]] = {
        name: set() for name in ("git", "protected", "links", "hidden_files", "hidden_directories", "sockets")
    }

    def leave_out(entry: Entry) -> bool:
        name = entry.path.rpartition("/")[2]
        if entry.kind == "special":
            found["sockets"].add(entry.path)
        if hides.covers(entry.path):
            if entry.kind != "link":
                found["hidden_directories" if entry.kind == "directory" else "hidden_files"].add(entry.path)
            return True
        if scan.is_git_name(name):
            if entry.kind != "special":
                found["links" if entry.kind == "link" else "git"].add(entry.path)
            return True
        if protects.covers_folded(entry.path):
            found["links" if entry.kind == "link" else "protected"].add(entry.path)
            return not hides
        return False

    for _ in root.walk(skip=leave_out):
        pass
    return found


@given(tree=TREES, hidden=st.lists(GLOBS, max_size=3), protected=st.lists(GLOBS, max_size=3))
@settings(max_examples=150, deadline=None)
def test_the_quick_look_finds_what_asking_about_every_path_finds(
    tree: list[tuple[list[str], str]], hidden: list[str], protected: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        grow(Path(folder), tree)
        with Root.open(folder) as root:
            quick = scan.scan(root, hidden=hidden, protected=protected)
            slow = slowly(root, tuple(hidden), tuple(protected))
    assert {one.path for one in quick.git if one.kind != "bare"} == slow["git"]
    for name in ("protected", "links", "hidden_files", "hidden_directories", "sockets"):
        assert set(getattr(quick, name)) == slow[name], name


def test_a_socket_and_a_bare_repository_deep_below_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "some" / "where" / "deep"
    (below / "objects").mkdir(parents=True)
    (below / "refs").mkdir()
    (below / "HEAD").write_text("ref: refs/heads/main\n")
    with socket.socket(socket.AF_UNIX) as host, Root.open(str(tmp_path)) as root:
        monkeypatch.chdir(below)  # a socket's path has an end that tmp_path may be over
        host.bind("plain")
        found = scan.scan(root, hidden=(), protected=())
    assert found.sockets == ("some/where/deep/plain",)
    assert [(one.path, one.kind) for one in found.git] == [("some/where/deep", "bare")]
