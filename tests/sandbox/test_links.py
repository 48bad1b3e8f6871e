"""Links that commands leave in a repository where git writes: found wherever they lie, in one bounded look."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.sandbox import plan
from codespace.sandbox.inventory import git, gitstamps, planted, scan

from .cage import ETC, Cage
from .test_git import IDENTITY, commit


class Clock:
    """It goes on by the hundredth part of the time for a look, each time that it is looked at."""

    def __init__(self) -> None:
        self.monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 100).__next__


@pytest.fixture
def repository(cage: Cage) -> Cage:
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


@pytest.mark.parametrize(
    "link",
    ["worktrees/objects/COMMIT_EDITMSG", "refs/objects/x", "annex/x/objects/y", "x/lfs/objects/y", "x/.git/objects/y"],
)
def test_a_link_below_a_directory_that_is_only_called_as_that_of_data_is_told(repository: Cage, link: str) -> None:
    assert repository.plainly(["git", "worktree", "add", "-q", "wt/objects"]).code == 0
    profile = repository.put(f"{repository.base}/home/.profile", "mine\n")
    chosen = repository.having(git="commit")
    assert chosen.sh(commit("-C wt/objects commit -q --allow-empty -m second")).code == 0
    done = chosen.sh(f"mkdir -p .git/{os.path.dirname(link)} && ln -sf {profile} .git/{link}")
    assert (done.code, done.planted) == (0, (f".git/{link}",)), done
    assert chosen.sh("echo x >.git/x").code != 0  # it is read-only from then on
    if link.startswith("worktrees"):  # the control: this is what it is told for
        repository.plainly(["git", "-C", "wt/objects", *IDENTITY, "commit", "-q", "--allow-empty", "-m", "evil"])
        assert profile.read_text() == "evil\n"


def test_data_is_not_looked_into_for_names(tmp_path: Path) -> None:
    data = ("objects", "lfs/objects", "annex/objects", "modules/sub/objects")
    for place in data:
        (tmp_path / ".git" / place / "ab").mkdir(parents=True)
        (tmp_path / ".git" / place / "ab" / "x").symlink_to("x")
    with Root.open(str(tmp_path)) as root:
        found = scan.scan(root, hidden=(), protected=())
    assert [one.path for one in found.git] == [".git"]


def test_all_repositories_together_have_one_time_to_be_looked_through_for_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        for name in ("objects", "refs", *(f"refs/{below}" for below in range(30))):
            (tmp_path / f"bare{number}" / name).mkdir(parents=True)
        (tmp_path / f"bare{number}" / "HEAD").touch()
    with Root.open(str(tmp_path)) as root:
        found = scan.scan(root, hidden=(), protected=())
        assert planted.see(root, found, (), commits=True).links == frozenset()
        monkeypatch.setattr(git, "time", Clock())
        monkeypatch.setattr(gitstamps, "time", Clock())
        links = planted.see(root, found, (), commits=True).links
    assert links == {f"bare{number}" for number in range(3, 10)}


def test_a_repository_that_takes_longer_to_look_through_for_what_a_run_did_is_told(
    repository: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind many directories, a link would not be seen."""
    monkeypatch.setattr(git, "time", Clock())
    monkeypatch.setattr(gitstamps, "time", Clock())
    assert repository.having(git="commit").sh("cd .git/objects && mkdir $(seq 100 220)").loud == (".git",)


def test_a_repository_that_was_not_looked_through_before_a_run_takes_no_commits(repository: Cage) -> None:
    """A second look may be quick enough where the first was not, but nothing could be compared with that."""
    workspace = repository.having(git="commit").workspace
    with Root.open(workspace.root) as root:
        inventory = scan.scan(root, hidden=(), protected=())
        kinds = []
        for links in ((), (".git",)):
            made = plan.make(
                workspace, root, inventory, command=["true"], cwd=".", env={}, etc=ETC.masks(), links=links
            )
            kinds += [mount.kind for mount in made.mounts if mount.path == f"{workspace.root}/.git"]
    assert kinds == ["writable", "read-only"]
