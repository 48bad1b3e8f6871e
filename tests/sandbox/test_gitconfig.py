"""What the configuration of a repository has git run, or read, in the workspace: no command may write it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import box, foreground
from codespace.sandbox.inventory import gitconfig
from codespace.sandbox.inventory.scan import GitDirectory
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
        foreground.run(prepared.equipment, prepared.plan)

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
    committing = inside.having(git="commit")
    run(committing, f"git add tools/fine; git {' '.join(IDENTITY)} commit -qm second")
    assert repository.plainly(["git", "-C", str(tree), "log", "--format=%s", "-1"]).out == "second\n"


@pytest.mark.parametrize("choice", CHOICES)
def test_a_repository_below_the_root_is_as_well_guarded(repository: Cage, choice: str) -> None:
    repository.put("deep/tools/hooks/pre-push", "#!/bin/sh\n", 0o755)
    repository.put("deep/.gitconfig", "[include]\npath = tools/more\n")
    repository.put("deep/tools/more", "[alias]\n")
    repository.put("deep/file")
    for words in (["init", "-q", "deep"], ["-C", "deep", "add", "file"], ["-C", "deep", "config", *CHOICES[choice]]):
        assert repository.plainly(["git", *words]).code == 0
    mark = repository.base / "home" / "ran"
    run(repository, f"cd deep; {attack(mark)}")
    assert repository.plainly(["git", "-C", "deep", "status"]).code == 0
    assert not mark.exists()
    run(repository.having(git="unprotected"), f"cd deep; {attack(mark)}")  # the control: it does run code
    repository.plainly(["git", "-C", "deep", "status"])
    assert mark.exists()


def test_a_submodule_and_a_worktree_go_by_the_configuration_in_the_repository_that_they_belong_to(
    repository: Cage,
) -> None:
    repository.put("tree/tools/hooks/pre-push", "mine\n")
    repository.put("module/tools/hooks/pre-push", "mine\n")
    repository.put("module/.git", "gitdir: ../.git/modules/module\n")
    repository.put(".git/modules/module/config", "[core]\nhooksPath = tools/hooks\n")
    repository.put("tree/.git", f"gitdir: {repository.root}/.git/worktrees/tree\n")
    repository.put(".git/worktrees/tree/commondir", "../..\n")
    assert repository.plainly(["git", "config", "core.hooksPath", "tools/hooks"]).code == 0
    run(repository, "for at in module tree; do echo evil >$at/tools/hooks/pre-push; echo fine >$at/tools/fine; done")
    for at in ("module", "tree"):
        assert (repository.root / at / "tools/hooks/pre-push").read_text() == "mine\n"
        assert (repository.root / at / "tools/fine").read_text() == "fine\n"


def test_in_the_mode_commit_what_is_included_from_the_git_directory_stays_read_only(repository: Cage) -> None:
    assert repository.plainly(["git", "config", "include.path", "more"]).code == 0
    committing = repository.having(git="commit")
    run(committing, "echo x >.git/more; echo x >.git/other")  # what is not there cannot be kept: all is read-only
    assert not (repository.root / ".git/more").exists()
    assert not (repository.root / ".git/other").exists()
    repository.put(".git/more", "")
    run(committing, "echo x >.git/more; echo x >.git/other")
    assert (repository.root / ".git/more").read_text() == ""
    assert (repository.root / ".git/other").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[include]\n\tpath = ../a\n[include] path=b ; comment\n", ("/a", "/.git/b")),
        ('[INCLUDE]\nPath = "../a b"\n[includeIf "gitdir:x"]path = ../c#d\n', ("/a b", "/c")),
        ('[core]\n# hooksPath = no\nhooksPath = "x\\\\y"/\\\n\\"z\n', ("/x?y/?z".replace("?z", '"z'),)),
        ("[core] hookspath = w[a]*\n[core]\nhooksPath = /etc\nhookspath = ../../out\nhooksPath\n", ("/w?a??",)),
        ("[core]\nhooksPath = ../out\n[remote]\npath = no\n", ("/out",)),  # from the git directory, if somebody pushes
        ("[include]\npath = ../self\n", ("/self", "/deeper")),
        (
            "[include]\npath\npath =\n[core]\nhooksPath = ; none\nhooksPath = ~\0/x\nhooksPath = ~nobody-here/y\n",
            ("/~nobody-here/y",),
        ),
        ("\ufeff[core]\nhooksPath = a\n", ("/a",)),
        ("[core]\neditor = true # C:\\\n\thooksPath = a\n[core]\nhooksPath = b ; \\", ("/a", "/b")),
        ('[core]\nhooksPath = "a # \\\nb "  # c\n', ("/a # b ",)),
        ("[core]\n; a comment \\\nhooksPath = a\\\nb\n[alias]\nx = y\\\\\n[core]\nhooksPath = c\\", ("/ab", "/c")),
    ],
)
def test_a_configuration_is_read_as_git_reads_it(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(text)
    (tmp_path / "self").write_text("[include]\npath = self\n[include]\npath = deeper\n")
    with Root.open(str(tmp_path)) as root:
        assert gitconfig.places(root) == expected
        assert gitconfig.places_of(root, [GitDirectory(".git", "directory")]) == expected


@pytest.mark.parametrize(
    "text", ["[a]" * 300_000, f"[a{' ' * 900_000}x", "[a]\nx=y\\\n" + "z\\\n" * 300_000, '[a "' + "\\" * 900_000]
)
def test_a_configuration_that_a_command_made_holds_nobody_up(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(f"{text}\n[core]\nhooksPath = x\n")
    with Root.open(str(tmp_path)) as root:
        began = time.process_time()
        gitconfig.places(root)
    assert time.process_time() - began < 20  # it takes half a second, and took minutes


def test_repositories_with_too_much_configuration_are_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SANDBOX_SCAN_SECONDS", 0.0)
    with Root.open(str(tmp_path)) as root, pytest.raises(Refusal) as refused:
        gitconfig.paths_of(root, [GitDirectory(f"{number}/.git", "directory") for number in range(1_000)])
    assert refused.value.code == "SANDBOX_UNAVAILABLE"


def test_configuration_that_includes_much_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one repository's, and each file that it includes may take a second."""
    (tmp_path / ".git").mkdir()
    for number in range(8):
        (tmp_path / f".git/{number}").write_text("")
    (tmp_path / ".git/config").write_text("[include]\n" + "".join(f"path = {number}\n" for number in range(8)))

    class Clock:
        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 8).__next__

    monkeypatch.setattr(gitconfig, "time", Clock)
    with Root.open(str(tmp_path)) as root, pytest.raises(Refusal) as refused:
        gitconfig._Search(root, gitconfig._NOBODY).said([f"{tmp_path}/.git"])
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
