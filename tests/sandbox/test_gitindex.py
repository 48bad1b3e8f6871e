"""What an index says, also one that git would never write."""

from __future__ import annotations

import itertools
import os
import struct
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox.inventory import git, gitindex, gitstamps
from codespace.sandbox.inventory.scan import GitDirectory, Inventory

FILE, LINK, TREE = 0o100644, 0o160000, 0o40000
BASE = b"\x11" * 20


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with Root.open(str(tmp_path)) as root:
        yield root


def entry(name: bytes, mode: int = FILE, *, size: int = 20, padding: bytes = b"\0", length: int | None = None) -> bytes:
    told = len(name) if length is None else length
    packed = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + b"\x11" * size + struct.pack(">H", told) + name
    return packed + padding * (8 - len(packed) % 8)


def extended(name: bytes) -> bytes:
    packed = (
        struct.pack(">10I", 0, 0, 0, 0, 0, 0, FILE, 0, 0, 0) + BASE + struct.pack(">HH", 0x4000 | len(name), 0) + name
    )
    return packed + b"\0" * (8 - len(packed) % 8)


def shortened(name: bytes, mode: int = FILE, *, kept: int = 0, stripped: int = 0) -> bytes:
    """An entry of version 4 whose name begins as the last one did, for `kept` bytes."""
    packed = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + BASE
    return packed + struct.pack(">HB", min(kept + len(name), 0xFFF), stripped) + name + b"\0"


def index(entries: Sequence[bytes], *, version: int = 2, behind: bytes = b"") -> bytes:
    return b"DIRC" + struct.pack(">II", version, len(entries)) + b"".join(entries) + behind + b"\0" * 20


def expected(root: Root, data: bytes, *, size: int = 20, checked: bool = True) -> list[str] | None:
    Path(root.path, "index").write_bytes(data)
    return gitindex.expected(root, ".", lambda: size, checked=checked)


ASTRAY = [
    b".git/hooks/post-checkout",
    b"deep/.GIT/config",
    b"sub/.git",
    b"../home/.profile",
    b"deep/../../x",
    b"deep/..",
    b"/etc/profile.d/x",
]


@pytest.mark.parametrize("name", ASTRAY)
def test_a_name_that_leads_into_a_git_directory_or_out_of_the_tree_is_in_no_index_of_gits(
    root: Root, name: bytes
) -> None:
    indexes = {
        "2": index([entry(b"fine"), entry(name), entry(b"more")]),
        "2, padded with anything": index([entry(b"fine"), entry(name, padding=b"x"), entry(b"more")]),
        "2, with a submodule": index([entry(b"sub", LINK), entry(name)]),
        "3": index([extended(name)], version=3),
        "4": index([shortened(name[:3]), shortened(name[3:], kept=3)], version=4),
        "sparse": index([entry(name + b"/", TREE)], version=3, behind=b"sdir\0\0\0\0"),
    }
    assert {kind: expected(root, data) for kind, data in indexes.items()} == dict.fromkeys(indexes)
    assert expected(root, index([entry(b"fine", size=32), entry(name, size=32)]), size=32) is None


@pytest.mark.parametrize(
    ("first", "name", "shared"), [(b"a/.gix/b", b"a/.git/b", 5), (b"a/.gitx", b"a/.git", 6), (b"a/..b/", b"a/../b", 4)]
)
def test_a_name_leads_astray_wherever_it_parts_from_the_last_one(
    root: Root, first: bytes, name: bytes, shared: int
) -> None:
    for kept in range(shared + 1):
        stripped = len(first) - kept
        astray = [shortened(first), shortened(name[kept:], kept=kept, stripped=stripped)]
        assert expected(root, index(astray, version=4)) is None, kept
        assert expected(root, index([shortened(first), shortened(b"x", kept=kept, stripped=stripped)], version=4)) == []


def test_names_that_only_look_so_are_fine(root: Root) -> None:
    names = [
        b".gitignore",
        b".github/x",
        b"repo.git/HEAD",
        b"a..",
        b"..a/b",
        b"a/...",
        b"x" * 0xFFF,
        b"a" * 300 + b"/b",
    ]
    assert expected(root, index([entry(name, length=min(len(name), 0xFFF)) for name in names])) == []


@pytest.mark.parametrize("name", [b"../sub", b".git/sub"])
def test_a_submodule_is_expected_at_any_place_and_where_commands_write_indexes_at_none_that_leads_astray(
    root: Root, name: bytes
) -> None:
    """A checkout removes the file that is there, and what looks at a submodule runs what a repository there says."""
    assert expected(root, index([entry(b"sub", LINK)])) == ["sub"]
    data = index([entry(name, LINK)])
    assert expected(root, data, checked=False) == [os.fsdecode(name)]
    assert expected(root, data) is None


def test_what_is_not_as_long_as_it_says_is_not_as_git_writes_it(root: Root) -> None:
    assert expected(root, index([entry(b"file", length=3)])) is None
    assert [expected(root, index([entry(b"sub", LINK, length=length)])) for length in (2, 4)] == [None, None]


def test_an_index_that_can_be_read_in_two_ways_says_what_it_does_in_its_repository(root: Root) -> None:
    """Its first object name of SHA-256 is one of SHA-1, a length and a name."""
    first = struct.pack(">10I", 0, 0, 0, 0, 0, 0, FILE, 0, 0, 0) + BASE + struct.pack(">H", 9) + b"AAAAAAAAA\0"
    name = b"x" * 58 + struct.pack(">H", 300) + b"y" * 300
    first += struct.pack(">H", len(name)) + name
    first += b"\0" * (8 - len(first) % 8)
    data = index([first, entry(b"evil", LINK, size=32)])
    assert [expected(root, data, size=size, checked=False) for size in (20, 32)] == [[], ["evil"]]


@pytest.mark.parametrize("mode", [0o160001, 0o360000, 0o100666, 0])
def test_a_mode_that_git_writes_nowhere_is_not_as_git_writes_it(root: Root, mode: int) -> None:
    """Of some bits it takes a submodule for one."""
    for data in (index([entry(b"x", mode)]), index([entry(b"sub", LINK), entry(b"x", mode)])):
        assert expected(root, data) is None


def blocks(*pairs: tuple[int, int], cut: int = 0) -> bytes:
    """The part that says at which offset each thread begins to read, and how many entries it has."""
    told = struct.pack(">I", 1) + b"".join(struct.pack(">II", *pair) for pair in pairs)
    return b"IEOT" + struct.pack(">I", len(told) + cut) + told


def test_threads_that_read_an_index_find_what_one_finds(root: Root) -> None:
    names = [b"a", b"b", b"c"]
    plain = [entry(name) for name in names]
    second = 12 + len(plain[0])
    fine = [blocks((12, 3)), blocks((12, 1), (second, 2)), b"IEOT", b"IEOT\0\0\0\0\0\0\0\0"]
    assert [expected(root, index(plain, behind=part)) for part in fine] == [[]] * 4
    hidden = b"ZZZZ" + struct.pack(">I", 72) + entry(b".git/x")
    beyond = 12 + sum(map(len, plain)) + 8
    wrong = [
        hidden + blocks((12, 2), (beyond, 1)),
        blocks((12, 1), (second + 1, 2)),
        blocks((12, 1), (second, 1)),
        blocks((12, 2), (second, 1)),
        blocks((12, 1), (12, 2)),
        blocks((12, 1), (second, 2)) + blocks((12, 2), (second, 1)),
        blocks((12, 1), (second + 8, 2), cut=3),
        blocks((12, 3)) * 4 + hidden + blocks((12, 2), (beyond, 1)),
    ]
    for data in (plain, [entry(b"a", LINK), *plain[1:]]):
        assert [expected(root, index(data, behind=part)) for part in wrong] == [None] * len(wrong)
    first = shortened(b"x.git/a")
    for stripped, kept, answer in ((6, 1, None), (7, 0, [])):
        data = [first, shortened(b".git.x" if kept else b"y", kept=kept, stripped=stripped)]
        assert expected(root, index(data, version=4, behind=blocks((12, 1), (12 + len(first), 1)))) == answer


def test_of_the_indexes_that_one_was_split_from_each_is_read_once_and_none_is_kept(root: Root) -> None:
    with open(Path(root.path, f"sharedindex.{BASE.hex()}"), "wb") as shared:
        shared.truncate(20_000_000)
    part = b"link" + struct.pack(">I", 20) + BASE
    tracemalloc.start()
    try:
        assert expected(root, index([], behind=part * 50)) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_an_index_that_was_split_from_many_is_not_as_git_writes_it(root: Root) -> None:
    parts = []
    for number in range(5):
        name = bytes([number]) * 20
        Path(root.path, f"sharedindex.{name.hex()}").write_bytes(index([]))
        parts.append(b"link" + struct.pack(">I", 20) + name)
    assert expected(root, index([], behind=b"".join(parts))) is None
    assert expected(root, index([], behind=b"".join(parts[:4]))) == []
    assert expected(root, index([], behind=parts[0] * 2_000)) is None


def test_a_submodule_of_the_index_that_one_was_split_from_is_found(root: Root) -> None:
    Path(root.path, f"sharedindex.{BASE.hex()}").write_bytes(index([entry(b"sub", LINK)]))
    assert expected(root, index([], behind=b"link" + struct.pack(">I", 20) + BASE)) == ["sub"]


@pytest.mark.parametrize("length", [44, 67_108_864])
def test_what_an_index_was_split_from_is_read_also_where_the_part_that_says_so_goes_on_behind_the_end(
    root: Root, length: int
) -> None:
    """git does not look where it ends, and the name of the other is where the sum of the whole has to be."""
    Path(root.path, f"sharedindex.{BASE.hex()}").write_bytes(index([entry(b".git/hooks/post-checkout")]))
    data = b"DIRC" + struct.pack(">II", 2, 0) + b"link" + struct.pack(">I", length) + BASE
    assert expected(root, data) is None


def test_a_submodule_that_takes_the_place_of_a_file_in_the_index_that_one_was_split_from_is_not_looked_through(
    root: Root,
) -> None:
    """It has no name of its own."""
    Path(root.path, f"sharedindex.{BASE.hex()}").write_bytes(index([entry(b"evil")]))
    part = b"link" + struct.pack(">I", 20) + BASE
    assert expected(root, index([entry(b"")], behind=part)) == []
    assert expected(root, index([entry(b"", LINK)], behind=part)) is None


def test_names_that_grow_without_an_end_are_not_read(root: Root) -> None:
    grown = [shortened(b"a", LINK, kept=number) for number in range(20_000)]
    tracemalloc.start()
    try:
        assert expected(root, index(grown, version=4)) is None
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [b"\xff" * 12 + b"q", b"\x80" * 4 + b"\0", b"\x02"])
def test_a_name_that_shares_more_than_the_last_one_has_is_not_read(root: Root, number: bytes) -> None:
    """Of a number that does not fit 64 bits git takes no byte, so that the name and all behind it are others to it."""
    packed = struct.pack(">10I", 0, 0, 0, 0, 0, 0, FILE, 0, 0, 0) + BASE
    data = index([shortened(b"a"), packed + struct.pack(">H", 4) + number + b"name\0"], version=4)
    assert expected(root, data) is None


def test_a_number_without_an_end_is_given_up_at_its_beginning(root: Root) -> None:
    """One of a megabyte would be worked at for minutes."""
    packed = struct.pack(">10I", 0, 0, 0, 0, 0, 0, LINK, 0, 0, 0) + BASE + struct.pack(">H", 1)
    began = time.process_time()
    data = index([packed + b"\xff" * 100_000 + b"\0x\0"], version=4)
    assert expected(root, data, checked=False) is None
    assert time.process_time() - began < 1


def test_many_long_names_in_few_bytes_cost_no_more_than_those(root: Root) -> None:
    long = b"a/" * 2_040
    names = [shortened(long + b"00000000"), *[shortened(b"%08d" % at, kept=4_080, stripped=8) for at in range(20_000)]]
    began = time.process_time()
    assert expected(root, index(names, version=4)) == []
    assert time.process_time() - began < 1  # a second for each thousand otherwise


@pytest.mark.parametrize("mode", [LINK, TREE])
def test_an_index_of_more_submodules_than_any_repository_has_is_not_read_to_its_end(root: Root, mode: int) -> None:
    """Nor is what they are called kept: long names that begin as the last one take few bytes of it."""
    few = [shortened(b"%08d" % at, mode, stripped=8 if at else 0) for at in range(25_000)]
    assert len(expected(root, index(few, version=4, behind=b"sdir\0\0\0\0"), checked=False) or ()) == 25_000
    many = [shortened(b"n" * 4_080 + b"00000000", mode)]
    many += [shortened(b"%08d" % at, mode, kept=4_080, stripped=8) for at in range(20_000)]
    tracemalloc.start()
    try:
        assert expected(root, index(many, version=4, behind=b"sdir\0\0\0\0"), checked=False) is None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_what_a_sparse_index_leaves_out_is_compared_with_each_repository_once(root: Root) -> None:
    (Path(root.path) / "x/.git").mkdir(parents=True)
    names = [b"%08d/" % at for at in range(20_000)]
    sparse = [shortened(name, TREE, stripped=9 if at else 0) for at, name in enumerate(names)]
    Path(root.path, "x/.git/index").write_bytes(index(sparse, version=4, behind=b"sdir\0\0\0\0"))
    below = tuple(GitDirectory(f"x/{at:08}/deep/.git", "gitfile") for at in (7, 20_000))
    others = (GitDirectory(f"y/{at}/.git", "link") for at in range(3_000))
    began = time.process_time()
    found = git.submodules(root, Inventory(git=(GitDirectory("x/.git", "directory"), *below, *others)))
    assert found.entered == {"x/00000007/deep/.git"}
    assert time.process_time() - began < 3


def test_places_that_take_long_to_be_looked_at_are_refused_and_not_waited_for(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(root.path) / ".git").mkdir()
    names = [shortened(b"%08d" % at, LINK, stripped=8 if at else 0) for at in range(20_000)]
    Path(root.path, ".git/index").write_bytes(index(names, version=4))
    inventory = Inventory(git=(GitDirectory(".git", "directory"),))
    assert len(git.submodules(root, inventory).places) == 20_000

    for steps in (10, 30):  # while it is read, and while it is looked where they are

        class Clock:
            monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / steps).__next__

        monkeypatch.setattr(gitstamps, "time", Clock)
        monkeypatch.setattr(git, "time", Clock)
        with pytest.raises(Refusal, match="the indexes of the git repositories"):
            git.submodules(root, inventory)


def test_submodules_of_all_repositories_together_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    repositories = tuple(GitDirectory(f"{number}/.git", "directory") for number in range(8))
    for repository in repositories:
        Path(root.path, repository.path).mkdir(parents=True)
        Path(root.path, repository.path, "index").write_bytes(index([entry(b"sub", LINK)]))
    monkeypatch.setattr(git, "_PLACES_BYTES", 40)
    assert len(git.submodules(root, Inventory(git=repositories)).places) == 8
    monkeypatch.setattr(git, "_PLACES_BYTES", 39)
    with pytest.raises(Refusal, match="more submodules than can be looked at") as refused:
        git.submodules(root, Inventory(git=repositories))
    assert refused.value.code == "SANDBOX_UNAVAILABLE"


def test_indexes_that_take_long_are_refused_and_not_waited_for(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    repositories = tuple(GitDirectory(f"{number}/.git", "directory") for number in range(8))
    for repository in repositories:
        Path(root.path, repository.path).mkdir(parents=True)
        Path(root.path, repository.path, "index").write_bytes(index([entry(b"sub", LINK)]))
    assert len(git.submodules(root, Inventory(git=repositories)).places) == 8

    class Clock:
        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 4).__next__

    monkeypatch.setattr(gitstamps, "time", Clock)
    monkeypatch.setattr(git, "time", Clock)
    with pytest.raises(Refusal) as refused:
        git.submodules(root, Inventory(git=repositories))
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
