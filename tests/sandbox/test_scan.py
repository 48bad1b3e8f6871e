"""The look at a root before and after a run, beside a slower one that takes every path by itself."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespace.beneath import Entry, Hidden, Root, kernel
from codespace.errors import Refusal
from codespace.sandbox.inventory import scan

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
        "/.git/",
        "/.git/x",
        "**/.git/HEAD",
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
        above, _, name = entry.path.rpartition("/")
        if entry.kind == "special":
            found["sockets"].add(entry.path)
        if hides.covers(entry.path):
            if entry.kind != "link":
                found["hidden_directories" if entry.kind == "directory" else "hidden_files"].add(entry.path)
            return True
        is_of_git, depth = any(map(scan.is_git_name, above.split("/"))), entry.path.count("/")
        if is_of_git and entry.kind == "link":
            found["git"].add(entry.path)
            return True
        if scan.is_git_name(name) and not is_of_git and entry.kind != "special":
            found["links" if entry.kind == "link" else "git"].add(entry.path)
        # In a directory that is protected nobody can change anything.
        if protects.covers_folded(entry.path) and not (above and protects.covers_folded(above)):
            found["links" if entry.kind == "link" else "protected"].add(entry.path)
        return is_of_git and name == "objects" and [*map(scan.is_git_name, above.split("/"))].index(True) == depth - 1

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


# --- what is not listed again ---

LATER = 10_000_000_000
"""Nanoseconds behind now; by then every directory of a test has settled."""

CHANGES = st.lists(st.tuples(st.sampled_from(("add", "remove", "move", "link")), NAMES, NAMES), min_size=1, max_size=6)


def let_the_clock_tick(folder: Path) -> None:
    """Return once a change gets another time than all before: some milliseconds, on kernels with a coarse clock."""
    probe = folder / "probe"
    probe.touch()
    begun = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == begun:
        probe.chmod(0o600)
    probe.unlink()


def change(root: Path, changes: list[tuple[str, str, str]]) -> None:
    """Do what a command in the sandbox could do to the tree, somewhere in it."""
    for what, name, other in changes:
        places = [root, *(path for path in sorted(root.rglob("*")) if path.is_dir() and not path.is_symlink())]
        place = places[len(name + other) % len(places)]
        try:
            if what == "add":
                grow(place, [([name, other], "file")])
            elif what == "move":
                (place / name).rename(root / other)
            elif what == "link":
                (place / name).rename(root.parent / "away")
                (place / name).symlink_to(root.parent / "away")
            elif (place / name).is_dir() and not (place / name).is_symlink():
                shutil.rmtree(place / name)
            else:
                (place / name).unlink()
        except OSError:
            continue  # it is not there, or something is where it would go


@given(tree=TREES, changes=CHANGES, hidden=st.lists(GLOBS, max_size=2), protected=st.lists(GLOBS, max_size=2))
@settings(max_examples=150, deadline=None)
def test_a_look_that_remembers_finds_what_one_without_finds(
    tree: list[tuple[list[str], str]], changes: list[tuple[str, str, str]], hidden: list[str], protected: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        place = Path(folder, "root")
        place.mkdir()
        grow(place, tree)
        patched.setattr(scan, "time", clock())
        memory = scan.Memory()
        with Root.open(str(place)) as root:
            first = scan.scan(root, hidden=hidden, protected=protected, memory=memory)
            assert memory.recall()  # it would prove nothing
            assert scan.scan(root, hidden=hidden, protected=protected, memory=memory) == first
            let_the_clock_tick(Path(folder))
            change(place, changes)
            remembering = scan.scan(root, hidden=hidden, protected=protected, memory=memory)
            assert remembering == scan.scan(root, hidden=hidden, protected=protected)


def clock(now: Callable[[], int] = lambda: time.time_ns() + LATER) -> object:
    class Clock:
        monotonic: Callable[[], float] = staticmethod(time.monotonic)
        time_ns: Callable[[], int] = staticmethod(now)

    return Clock


def test_only_what_has_settled_is_remembered_and_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / ".git").touch()
    made = (tmp_path / "a" / "b").stat().st_ctime_ns
    memory = scan.Memory()
    listed: list[str] = []
    with Root.open(str(tmp_path)) as root:
        monkeypatch.setattr(root, "open_listing", noting(root.open_listing, listed))
        monkeypatch.setattr(scan, "time", clock(lambda: made))  # a look that comes at once, however slow the machine
        fresh = scan.scan(root, hidden=(), protected=(), memory=memory)
        assert memory.recall() == {}
        monkeypatch.setattr(scan, "time", clock())
        for _ in range(2):
            assert scan.scan(root, hidden=(), protected=(), memory=memory) == fresh
        assert sorted(listed) == sorted([".", "a", "a/b"] * 2)


def noting(act: Callable[[str], int], seen: list[str]) -> Callable[[str], int]:
    def noted(path: str) -> int:
        seen.append(path)
        return act(path)

    return noted


def test_a_filesystem_that_may_change_behind_the_kernel_is_always_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = scan.Memory()
    monkeypatch.setattr(scan, "time", clock())
    with Root.open(str(tmp_path)) as root:
        assert root.tells_changes(), "the tests want a local filesystem below the temporary folder"
        monkeypatch.setattr(root, "tells_changes", lambda: False)
        scan.scan(root, hidden=(), protected=(), memory=memory)
    assert memory.recall() == {}
    with Root.open("/proc/self") as proc:
        assert not proc.tells_changes()


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"d{number}").mkdir()
    memory = scan.Memory()
    monkeypatch.setattr(scan, "time", clock())
    monkeypatch.setattr(scan.limits, "SANDBOX_KEPT_ENTRIES", 30)
    with Root.open(str(tmp_path)) as root:
        scan.scan(root, hidden=(), protected=(), memory=memory)
    assert 0 < len(memory.recall()) < 21


def test_what_is_remembered_is_bounded_in_bytes_and_one_full_directory_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / "full" / ("d" * 200 + str(number))).mkdir(parents=True)
        (tmp_path / f"d{number}").mkdir()
    memory = scan.Memory()
    monkeypatch.setattr(scan, "time", clock())
    monkeypatch.setattr(scan.limits, "SANDBOX_KEPT_BYTES", 4000)
    with Root.open(str(tmp_path)) as root:
        scan.scan(root, hidden=(), protected=(), memory=memory)
    assert {"d0", "d19"} <= memory.recall().keys()
    assert "full" not in memory.recall()
    assert sum(map(sys.getsizeof, memory.recall())) < 4000


@pytest.mark.parametrize(("limit", "name"), [("FOUND", "%s.git"), ("LEFT", "plain%s")])
def test_names_that_fill_the_memory_are_refused_by_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, name: str
) -> None:
    for number in range(100):
        (tmp_path / "some" / str(number) / (name % "")).mkdir(parents=True)
        (tmp_path / "some" / "where" / (name % number)).mkdir(parents=True)
    monkeypatch.setattr(scan.limits, f"SANDBOX_{limit}_BYTES", 5000)
    with Root.open(str(tmp_path)) as root, pytest.raises(Refusal, match=r"long paths .* in some") as caught:
        scan.scan(root, hidden=(), protected=())
    assert caught.value.code == "SANDBOX_UNAVAILABLE"


def test_of_sockets_and_what_is_hidden_no_more_is_kept_than_can_be_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan.limits, "SANDBOX_BINDS", 3)
    for number in range(9):
        os.mkfifo(tmp_path / f"fifo{number}")
        (tmp_path / f"{number}.pem").touch()
        (tmp_path / f"{number}.d").mkdir()
    with Root.open(str(tmp_path)) as root:
        found = scan.scan(root, hidden=("*.pem", "*.d/"), protected=())
    assert (len(found.sockets), len(found.hidden_files), len(found.hidden_directories)) == (4, 4, 4)


def test_names_that_depend_on_a_key_are_listed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key an encrypted directory shows other names than without, and its times tell nothing of it."""
    (tmp_path / "lib").mkdir()
    asked: list[int] = []

    def flags(descriptor: int, request: int, buffer: bytearray) -> int:
        asked.append(request)
        is_lib = os.fstat(descriptor).st_ino == (tmp_path / "lib").stat().st_ino
        buffer[:4] = (0x800 if is_lib else 0).to_bytes(4, sys.byteorder)  # FS_ENCRYPT_FL
        return 0

    memory = scan.Memory()
    monkeypatch.setattr(scan, "time", clock())
    monkeypatch.setattr(kernel.fcntl, "ioctl", flags)
    with Root.open(str(tmp_path)) as root:
        scan.scan(root, hidden=(), protected=(), memory=memory)
    assert len(asked) == 2
    assert set(memory.recall()) == {"."}


@pytest.mark.parametrize(("number", "encrypted"), [(errno.ENOTTY, False), (errno.EIO, True), (errno.EPERM, True)])
def test_flags_that_cannot_be_read_count_as_encrypted_unless_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, encrypted: bool
) -> None:
    def refuse(descriptor: int, request: int, buffer: bytearray) -> int:
        raise OSError(number, os.strerror(number))

    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert not kernel.is_encrypted(descriptor)
        monkeypatch.setattr(kernel.fcntl, "ioctl", refuse)
        assert kernel.is_encrypted(descriptor) is encrypted
    finally:
        os.close(descriptor)
