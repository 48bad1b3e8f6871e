"""Second names of files that decide what git runs: what is written under one is there under all."""

from __future__ import annotations

import itertools
import os
import shlex
import tracemalloc

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox.inventory import twins
from codespace.sandbox.inventory.scan import GitDirectory, Inventory

from .cage import Cage
from .test_git import EVIL, IDENTITY
from .test_planted import mark

GIT = f"git {' '.join(IDENTITY)}"


@pytest.fixture
def repository(cage: Cage) -> Cage:
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


@pytest.mark.parametrize("lies_outside", [False, True])
def test_a_second_name_of_a_linked_worktrees_own_files_is_no_commands(repository: Cage, lies_outside: bool) -> None:
    chosen = repository.having(git="commit")
    if lies_outside:
        tree = repository.base / "tree"
        assert repository.plainly(["git", "worktree", "add", "-q", str(tree)]).code == 0
        chosen = chosen.having(root=str(tree))
    own, twins = repository.root / ".git/worktrees/wt", repository.root / ".git/worktrees/other/twins"
    making = (
        f"cd {repository.root} && git clone -q --bare . .git/evil && "
        f"printf '%s' {shlex.quote(EVIL % mark(repository))} >>.git/evil/config && "
        f"sed -i s/bare.=.true/bare=false/ .git/evil/config"
    )
    assert repository.plainly(["sh", "-c", making]).code == 0
    names = ("commondir", "gitdir")
    linking = "; ".join(f"ln {own}/{name} {twins}/{name}" for name in names)
    adding = "git worktree add -q wt && git worktree add -q other"
    made = chosen.sh(f"{adding} && mkdir {twins} && {{ {linking}; }}")
    assert (made.code, made.planted) == (0, ("other/.git", "wt/.git")), made
    attack = "; ".join(f"( echo ../../evil >{twins}/{name} ) 2>/dev/null && echo wrote {name}" for name in names)
    assert chosen.sh(f"{attack}; true").out == ""
    assert chosen.sh(f"{GIT} -C wt commit -q --allow-empty -m second").code == 0
    repository.plainly(["git", "status"], cwd=str(chosen.root / "wt"))
    assert not mark(repository).exists()
    (twins / "commondir").write_text("../../evil\n")  # the control: this is what it is kept from
    repository.plainly(["git", "status"], cwd=str(chosen.root / "wt"))
    assert mark(repository).exists()


def test_names_beside_linked_worktrees_that_are_none_cost_little_and_keep_no_worktree_from_being_looked_at(
    repository: Cage,
) -> None:
    own = repository.folder(".git/worktrees")
    assert repository.plainly(["git", "worktree", "add", "-q", "wt"]).code == 0
    for number in range(5_000):
        os.close(os.open(own / f"file{number}", os.O_CREAT | os.O_WRONLY))
    for number in range(500):
        (own / f"folder{number}").mkdir()
    os.link(own / "wt/gitdir", repository.root / "twin")
    inventory = Inventory(git=(GitDirectory(".git", "directory"),))
    with Root.open(str(repository.root)) as root:
        tracemalloc.start()
        try:
            assert twins.names(root, inventory, git=True) == {".git/worktrees/wt/gitdir", "twin"}
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_worktrees_that_take_long_to_be_looked_at_for_second_names_are_refused_and_not_waited_for(
    repository: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        repository.folder(f".git/worktrees/{number}")
    inventory = Inventory(git=(GitDirectory(".git", "directory"),))

    class Clock:
        """It goes on by the hundredth part of the time for a look, each time that it is looked at."""

        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 100).__next__

    with Root.open(str(repository.root)) as root:
        assert twins.names(root, inventory, git=True) == set()
        monkeypatch.setattr(twins, "time", Clock)
        with pytest.raises(Refusal, match="the linked worktrees of the git repositories") as refused:
            twins.names(root, inventory, git=True)
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
