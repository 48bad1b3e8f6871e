"""Second names of files that decide what git runs: what is written under one is there under all."""

from __future__ import annotations

import shlex

import pytest

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
