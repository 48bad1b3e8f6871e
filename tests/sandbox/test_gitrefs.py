"""A branch or a remote that is called as something hidden is: git works, and nothing hidden is shown for it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespace.beneath import Entry, Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import plan
from codespace.sandbox.inventory import gitrefs, scan
from codespace.sandbox.system import Masks

from .cage import Cage
from .test_git import IDENTITY, commit
from .test_scan import clock

NAME = "ab" + "12" * 19


@pytest.fixture
def repository(cage: Cage) -> Cage:
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


@pytest.mark.parametrize("mode", ["read_only", "commit"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_git_works_where_a_branch_is_called_as_something_hidden(repository: Cage, mode: str, is_packed: bool) -> None:
    for words in (
        *([["gc", "-q"]] if is_packed else []),
        ["branch", "secret"],
        ["branch", "feature/secret"],
        ["update-ref", "refs/remotes/origin/secret", "HEAD"],
    ):
        assert repository.plainly(["git", *words]).code == 0
    repository.put("secret")
    chosen = repository.having(git=mode, hidden_paths=("secret",))
    done = chosen.sh("git log --all --oneline && git for-each-ref --format='%(refname)' && ! cat secret 2>&-")
    assert (done.code, done.err) == (0, "")
    assert done.out.split("first\n")[1].split() == [
        f"refs/{name}" for name in ("heads/feature/secret", "heads/main", "heads/secret", "remotes/origin/secret")
    ]
    for glob in ("/.git/refs/heads/secret", "**/heads/secret"):  # who names the place means it
        assert chosen.having(hidden_paths=("secret", glob)).sh("cat .git/refs/heads/secret").out == "", glob


def test_a_branch_that_is_called_as_something_hidden_takes_commits(repository: Cage) -> None:
    assert repository.plainly(["git", "checkout", "-q", "-b", "secret"]).code == 0
    chosen = repository.having(git="commit", hidden_paths=("secret",))
    for message in ("second", "third"):
        assert chosen.sh(commit(f"commit -q --allow-empty -m {message}")).code == 0
    assert chosen.sh("git log --oneline -g secret").out.count("\n") == 3


def test_what_is_hidden_is_not_shown_where_a_command_moves_it_among_branches(cage: Cage) -> None:
    cage.put("deep/secret", f"{NAME}\n")
    chosen = cage.having(hidden_paths=("secret",))
    making = "mkdir -p new/.git/refs new/.git/objects/pack && echo x >new/.git/HEAD && mv deep new/.git/refs/heads"
    assert chosen.sh(f"{making} && cat new/.git/refs/heads/secret").out == ""
    assert chosen.sh("cat new/.git/refs/heads/secret").out == ""
    assert (cage.root / "new/.git/refs/heads/secret").read_text() == f"{NAME}\n"  # the control
    other = cage.put("new/.git/objects/ab/" + NAME[2:])
    assert chosen.sh("cat new/.git/refs/heads/secret").out == f"{NAME}\n"  # and it was no other reason
    other.unlink()
    assert chosen.sh("cat new/.git/refs/heads/secret").out == ""


@pytest.mark.parametrize("name", ["secret", "heads"])
def test_branches_below_a_hidden_name_take_commits_too(repository: Cage, name: str) -> None:
    assert repository.plainly(["git", "checkout", "-q", "-b", "secret/x"]).code == 0
    chosen = repository.having(git="commit", hidden_paths=(name,))
    assert chosen.sh(commit("commit -q --allow-empty -m second")).code == 0
    assert chosen.sh("git log --all --oneline").out.count("\n") == 2


@pytest.mark.parametrize("hidden", ["/.git/refs/remotes/origin/secret/", "/.git/packed-refs", "**/origin/secret/x"])
def test_a_repository_with_branches_that_git_does_not_see_stays_read_only(repository: Cage, hidden: str) -> None:
    """The next `git gc` would remove for good what only they have; and a commit can start one."""
    making = f"commit=$(git {' '.join(IDENTITY)} commit-tree -m mine HEAD^{{tree}})"
    for script in (
        f"{making} && git update-ref refs/remotes/origin/secret/x $commit",
        "git pack-refs --all" if hidden.endswith("packed-refs") else "true",
        "find .git/objects -type f -exec touch -d '40 days ago' {} +",
    ):
        assert repository.plainly(["sh", "-c", script]).code == 0
    repository.having(git="commit", hidden_paths=(hidden,)).sh("git gc -q --prune=now")
    assert repository.plainly(["git", "log", "origin/secret/x"]).code == 0
    assert repository.having(git="commit").sh("git gc -q --prune=now").code == 0
    assert repository.plainly(["git", "log", "origin/secret/x"]).code == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_remote_of_a_hidden_name_with_a_branch_that_leads_to_another_takes_commits(
    repository: Cage, is_packed: bool
) -> None:
    name = "refs/remotes/private"
    for words in (
        ["update-ref", f"{name}/main", "HEAD"],
        ["symbolic-ref", f"{name}/HEAD", f"{name}/main"],
        *([["gc", "-q"]] if is_packed else []),
    ):
        assert repository.plainly(["git", *words]).code == 0
    assert (repository.root / f".git/{name}/main").exists() is not is_packed
    done = repository.having(git="commit", hidden_paths=("private",)).sh(commit("commit -q --allow-empty -m second"))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("ref: refs/heads/loose\n", True),
        ("ref: refs/heads/packed\n", True),
        ("ref: refs/heads/pack\n", False),
        ("ref: refs/heads\n", False),
        ("ref: refs/../outside\n", False),
        ("ref: refs/heads/loose", False),
        ("ref: refs/heads/loose\npassword\n", False),
        ("ref: refs/heads/loose\n\n", False),
        ("ref: password\n", False),
    ],
)
def test_only_a_branch_that_leads_to_one_of_its_repository_is_taken_for_one(
    tmp_path: Path, text: str, is_one: bool
) -> None:
    for place in ("refs/heads", "logs/refs"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "secret").write_text(text)
    (tmp_path / "refs/heads/loose").write_text(f"{NAME}\n")
    (tmp_path / "outside").touch()
    (tmp_path / "packed-refs").write_text(f"{NAME} refs/heads/packed\n")
    with Root.open(str(tmp_path)) as root:
        assert gitrefs.Branches(root).is_one("refs/heads/secret") is is_one
        assert not gitrefs.Branches(root).is_one("logs/refs/secret")


def test_some_hundred_branches_below_a_hidden_name_take_commits(repository: Cage) -> None:
    making = "for n in $(seq 150); do echo create refs/heads/secret/secret/$n HEAD; done | git update-ref --stdin"
    assert repository.plainly(["sh", "-c", making]).code == 0
    done = repository.having(git="commit", hidden_paths=("secret",)).sh(commit("commit -q --allow-empty -m second"))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("hidden", ["secrets", "/.git/refs/heads/other/secrets/"])
def test_a_hidden_directory_that_gc_left_empty_hinders_no_commit(repository: Cage, hidden: str) -> None:
    for words in (["branch", "other/secrets/x"], ["gc", "-q"]):
        assert repository.plainly(["git", *words]).code == 0
    left = repository.folder(".git/refs/heads/other/secrets")  # some versions remove it
    assert not any(left.iterdir())
    repository.put("file")
    chosen = repository.having(git="commit", hidden_paths=(hidden,))
    done = chosen.sh(commit())
    assert (done.code, done.err) == (0, "")
    if hidden == "secrets":
        done = chosen.sh(commit("checkout -q other/secrets/x && git commit -q --allow-empty -m third"))
        assert (done.code, done.err) == (0, "")


def test_an_empty_directory_of_a_hidden_name_is_hidden_where_no_repository_is(tmp_path: Path) -> None:
    (tmp_path / "refs/secret").mkdir(parents=True)
    with Root.open(str(tmp_path)) as root:
        assert scan.scan(root, hidden=("secret",), protected=()).hidden_directories == ("refs/secret",)


def hostile(place: Path, *, directories: int, files: int, packs: int) -> None:
    """Make a repository with directories of a hidden name, full of branches that only its last pack has."""
    index = b"\xfftOc" + struct.pack(">I256I", 2, *(first >= 0xAB for first in range(256)))
    pack = place / "objects/pack"
    pack.mkdir(parents=True)
    for number in range(packs):
        (pack / f"{number}.idx").write_bytes(index + bytes(20))
    if packs:
        last = [name for name in os.listdir(pack) if name.endswith(".idx")][-1]
        (pack / last).write_bytes(index + bytes.fromhex(NAME))
    for number in range(directories):
        below = place / "refs" / f"{number}.pem"
        below.mkdir(parents=True)
        for name in range(files):
            (below / str(name)).write_text(f"{NAME}\n")


def opened_by_a_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[scan.Inventory, list[str]]:
    opened: list[str] = []
    with Root.open(str(folder)) as root:
        act = root.open_entry

        def noted(entry: Entry) -> int:
            opened.append(entry.path)
            return act(entry)

        monkeypatch.setattr(root, "open_entry", noted)
        return scan.scan(root, hidden=("*.pem",), protected=()), opened


def test_branches_that_are_looked_for_in_many_packs_are_few_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that makes such a tree would have every later one wait."""
    hostile(tmp_path / "x", directories=20, files=63, packs=64)
    found, opened = opened_by_a_scan(tmp_path, monkeypatch)
    assert 0 < len(found.hidden_directories) < 20  # what is not looked at is hidden
    assert 63 * 64 < len(opened) < 8_000


def test_branches_that_are_looked_for_among_many_packed_ones_are_few_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them can be looked for in a long file, which lies in every directory above it."""
    place = tmp_path.joinpath(*["refs"] * 50)
    place.mkdir(parents=True)
    for above in (place, *itertools.islice(place.parents, 49)):
        (above / "packed-refs").touch()
    for number in range(100):
        (place / f"{number}.pem").write_text("ref: refs/heads/x\n")
    found, opened = opened_by_a_scan(tmp_path, monkeypatch)
    assert len(found.hidden_files) == 100
    assert 100 < sum(path.endswith("packed-refs") for path in opened) < 400


@pytest.mark.parametrize(("files", "packs"), [(63, 0), (1, 50)])
def test_a_look_at_branches_ends_at_the_deadline_of_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, packs: int
) -> None:
    hostile(tmp_path / "x", directories=1, files=files, packs=packs)
    if not packs:
        (tmp_path / "x/objects" / NAME[:2]).mkdir()
        (tmp_path / "x/objects" / NAME[:2] / NAME[2:]).touch()
    ticks = itertools.count()

    class Clock:
        monotonic = staticmethod(lambda: next(ticks) * 0.2)
        time_ns = staticmethod(time.time_ns)

    with Root.open(str(tmp_path)) as root:
        assert scan.scan(root, hidden=("*.pem",), protected=()) == scan.scan(root, hidden=(), protected=())
        monkeypatch.setattr(scan, "time", Clock)
        scan.scan(root, hidden=(), protected=())  # else it would prove nothing
        ticks = itertools.count()
        with pytest.raises(Refusal, match="Nothing was started") as refused:
            scan.scan(root, hidden=("*.pem",), protected=())
    assert refused.value.code == "SANDBOX_UNAVAILABLE"


def test_a_directory_with_too_many_branches_leaves_others_to_be_looked_at(tmp_path: Path) -> None:
    hostile(tmp_path / "x", directories=1, files=500, packs=1)
    hostile(tmp_path / "y", directories=1, files=150, packs=1)
    for number in range(500):
        (tmp_path / f"x/refs/1.pem/{number}").mkdir(parents=True)
    with Root.open(str(tmp_path)) as root:
        found = scan.scan(root, hidden=("*.pem",), protected=())
    assert found.hidden_directories == ("x/refs/0.pem", "x/refs/1.pem")


class Counted(tuple[str, ...]):
    """Paths that know how often somebody went through them."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        Counted.times += 1
        return super().__iter__()


def test_hidden_paths_are_not_gone_through_for_every_repository(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".git").write_text("gitdir: ../nowhere\n")
        (tmp_path / str(number) / ".env").touch()
    with Root.open(str(tmp_path)) as root:
        inventory = scan.scan(root, hidden=(".env",), protected=())
        assert (len(inventory.git), len(inventory.hidden_files)) == (60, 60)
        made = plan.make(
            Workspace(id="w", root=str(tmp_path), profile="workspace-write", git="commit"),
            root,
            dataclasses.replace(inventory, hidden_files=Counted(inventory.hidden_files)),
            command=["true"],
            cwd=".",
            env={},
            etc=Masks(),
        )
    assert len(made.mounts) > 120
    assert 0 < Counted.times < 10


@pytest.mark.parametrize("beside", ["password", "link", "fifo", "many"])
def test_a_directory_of_a_hidden_name_that_holds_anything_else_than_branches_is_none_of_them(
    tmp_path: Path, beside: str
) -> None:
    place = tmp_path / ".git/refs/heads/secret/below"
    for directory in (place, tmp_path / ".git/objects/pack", tmp_path / ".git/objects" / NAME[:2]):
        directory.mkdir(parents=True)
    (tmp_path / ".git/objects" / NAME[:2] / NAME[2:]).touch()
    with Root.open(str(tmp_path)) as root:
        (place / "x").write_text(f"{NAME}\n")
        assert scan.scan(root, hidden=("secret",), protected=()) == scan.scan(root, hidden=(), protected=())
        if beside == "link":
            (place / "y").symlink_to("x")
        elif beside == "fifo":
            os.mkfifo(place / "y")
        elif beside == "many":
            for number in range(401):
                (place / str(number)).write_text(f"{NAME}\n")
        else:
            (place / "x").unlink()
            (place / "y").write_text("password\n")
        assert scan.scan(root, hidden=("secret",), protected=()).hidden_directories == (".git/refs/heads/secret",)


LINE = f"{'0' * 40} {NAME} A U Thor <x@example.invalid> 1700000000 +0000"


@pytest.mark.parametrize(
    ("text", "is_log"),
    [
        (f"{LINE}\n", True),
        (f"{LINE}\tcommit: first\n{LINE}\tany\tthing\n", True),
        (f"{LINE}\tcommit: first\npassword\n", False),
        (f"password\n{LINE}\tcommit: first\n", False),
        (f"{LINE}\tcommit: first\n\n", False),
        (f"{LINE}\tcommit: first\n\n{LINE}\n", False),
        (f"{LINE}\tcommit: first", False),
        (f"{LINE}\n".replace(NAME, NAME[::-1]), False),
        (f"{LINE}\n" * 3_000, False),
        (f"{NAME}\n", False),
        ("", False),
    ],
)
def test_only_a_log_of_objects_is_taken_for_a_branchs(tmp_path: Path, text: str, is_log: bool) -> None:
    for place in ("logs/refs/heads", "objects/pack", f"objects/{NAME[:2]}"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "objects" / NAME[:2] / NAME[2:]).touch()
    (tmp_path / "logs/refs/heads/secret").write_text(text)
    with Root.open(str(tmp_path)) as root:
        assert gitrefs.Branches(root).is_one("logs/refs/heads/secret") is is_log


@pytest.mark.parametrize("bytes_of_names", [20, 32])
@pytest.mark.parametrize("at", range(6))
def test_an_object_is_found_in_the_index_of_a_pack_wherever_it_stands(
    tmp_path: Path, bytes_of_names: int, at: int
) -> None:
    firsts = (b"\x00\x00", b"\x00\x01", b"\x7f\x00", b"\xab\x00", b"\xff\x00", b"\xff\xff")
    names = [first.ljust(bytes_of_names, b"\x05") for first in firsts]
    counts = [sum(name[0] <= first for name in names) for first in range(256)]
    (tmp_path / "objects/pack").mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    index = b"\xfftOc" + struct.pack(">I256I", 2, *counts) + b"".join(names)
    (tmp_path / "objects/pack/pack-x.idx").write_bytes(index)
    with Root.open(str(tmp_path)) as root:
        answers = []
        for name in (names[at], names[at][:-1] + b"\x06", names[at][:-1] + b"\x04"):
            (tmp_path / "refs/secret").write_text(f"{name.hex()}\n")
            answers.append(gitrefs.Branches(root).is_one("refs/secret"))
    assert answers == [True, False, False]


@pytest.mark.parametrize(
    "text", ["", f"{NAME}", f"{NAME}\n\n", f"{NAME}\nmore", f"more\n{NAME}\n", f"{NAME.upper()}\n"]
)
def test_a_file_that_holds_more_than_the_name_of_an_object_is_none_of_a_branch(tmp_path: Path, text: str) -> None:
    (tmp_path / "objects" / NAME[:2]).mkdir(parents=True)
    (tmp_path / "objects" / NAME[:2] / NAME[2:]).touch()
    (tmp_path / "refs").mkdir()
    with Root.open(str(tmp_path)) as root:
        for said, answer in ((f"{NAME}\n", True), (text, False)):
            (tmp_path / "refs/secret").write_text(said)
            assert gitrefs.Branches(root).is_one("refs/secret") is answer
            (tmp_path / "secret").write_text(said)
            assert not gitrefs.Branches(root).is_one("secret")


def test_a_file_that_was_a_branch_is_hidden_once_it_holds_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is as it was, so that a scan that remembers does not list it again."""
    place = tmp_path / ".git" / "refs" / "secret"
    place.parent.mkdir(parents=True)
    place.touch()
    (tmp_path / ".git/objects" / NAME[:2]).mkdir(parents=True)
    (tmp_path / ".git/objects" / NAME[:2] / NAME[2:]).touch()
    memory = scan.Memory()
    monkeypatch.setattr(scan, "time", clock())
    with Root.open(str(tmp_path)) as root:
        found = []
        for said in (f"{NAME}\n", "password\n"):
            with place.open("r+") as file:
                file.write(said)
                file.truncate()
            found.append(scan.scan(root, hidden=("secret",), protected=(), memory=memory).hidden_files)
            assert ".git/refs" in memory.recall()  # it would prove nothing
    assert found == [(), (".git/refs/secret",)]
