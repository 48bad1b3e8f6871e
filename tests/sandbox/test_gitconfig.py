"""What the configuration of a repository has git run, or read, in the workspace: no command may write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespace.beneath import Root
from codespace.sandbox import box, gitconfig, spawn
from codespace.sandbox.plan import HOME

from .cage import PATH, Cage
from .test_git import EVIL, IDENTITY

CHOICES = {
    "more configuration": ("include.path", "../.gitconfig"),
    "more configuration on a condition": ("includeIf.onbranch:**.path", "../.gitconfig"),
    "hooks": ("core.hooksPath", "tools/hooks"),
}


@pytest.fixture
def repository(cage: Cage) -> Cage:
    cage.put("file")
    cage.put(".gitconfig", "[include]\npath = tools/more\n")
    cage.put("tools/more", "[alias]\n")
    cage.put("tools/hooks/pre-push", "#!/bin/sh\n", 0o755)
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


def run(cage: Cage, script: str) -> None:
    """Run a shell script as the daemon does."""

    def inside() -> None:
        prepared = box.Sandbox(cage.bubblewrap).prepare(
            cage.workspace,
            command=["/bin/sh", "-c", script],
            cwd=".",
            env={"PATH": PATH, "HOME": HOME},
            protected=(),
        )
        spawn.run(prepared.equipment, prepared.plan)

    cage.does(inside)


def attack(mark: Path) -> str:
    evil = EVIL % mark
    hook = f"#!/bin/sh\ntouch {mark}\n"
    return f"""
        for file in .gitconfig tools/more; do printf '%s' '{evil}' >$file; done
        cd tools/hooks && printf '%s' '{hook}' >post-index-change && chmod +x post-index-change
        cd ../.. && mv tools moved && mv moved tools; touch file
    """


@pytest.mark.parametrize("choice", CHOICES)
def test_what_git_reads_and_runs_by_the_operators_choice_is_not_a_commands_to_write(
    repository: Cage, choice: str
) -> None:
    assert repository.plainly(["git", "config", *CHOICES[choice]]).code == 0
    mark = repository.base / "home" / "ran"
    run(repository, attack(mark))
    assert repository.plainly(["git", "status"]).code == 0
    assert not mark.exists()
    run(repository.having(git="unprotected"), attack(mark))  # the control: it does run code
    repository.plainly(["git", "status"])
    assert mark.exists()


def test_a_worktree_goes_by_the_configuration_of_its_repository(repository: Cage) -> None:
    tree = repository.base / "tree"
    for words in (["config", "core.hooksPath", "tools/hooks"], ["worktree", "add", "-q", str(tree)]):
        assert repository.plainly(["git", *words]).code == 0
    inside = repository.having(root=str(tree))
    inside.put("tools/hooks/pre-push", "mine\n")
    run(inside, "echo evil >tools/hooks/pre-push; echo fine >tools/fine")
    assert (tree / "tools/hooks/pre-push").read_text() == "mine\n"
    assert (tree / "tools/fine").read_text() == "fine\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[include]\n\tpath = ../a\n[include] path=b ; comment\n", ("/a", "/.git/b")),
        ('[INCLUDE]\nPath = "../a b"\n[includeIf "gitdir:x"]path = ../c#d\n', ("/a b", "/c")),
        ('[core]\n# hooksPath = no\nhooksPath = "x\\\\y"/\\\n\\"z\n', ("/x?y/?z".replace("?z", '"z'),)),
        ("[core] hookspath = w[a]*\n[core]\nhooksPath = /etc\nhookspath = ../out\nhooksPath\n", ("/w?a??",)),
        ("[core]\nhooksPath = .\n[remote]\npath = no\n", ()),
        ("[include]\npath = ../self\n", ("/self", "/deeper")),
    ],
)
def test_a_configuration_is_read_as_git_reads_it(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(text)
    (tmp_path / "self").write_text("[include]\npath = self\n[include]\npath = deeper\n")
    with Root.open(str(tmp_path)) as root:
        assert gitconfig.places(root) == expected
