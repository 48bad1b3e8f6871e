"""Attacks on what git runs by a way that leads through links, and on programs that its configuration names."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import box, foreground
from codespace.sandbox.inventory import gitconfig, gitways
from codespace.sandbox.inventory.gitaccount import Account
from codespace.sandbox.inventory.planted import Planted
from codespace.sandbox.plan import HOME

from .cage import PATH, Cage, accounts, bubblewraps, caged
from .test_git import EVIL, IDENTITY

HOOK = "post-index-change"


@pytest.fixture
def cage() -> Iterator[Cage]:
    """Lend an attacker; what is looked at here is the same for every account and with every bubblewrap."""
    with caged(accounts()[0], bubblewraps()[0]) as lent:
        yield lent


@pytest.fixture
def repository(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> Cage:
    monkeypatch.setenv("HOME", str(cage.base / "home"))  # the operator's, as `plainly` has it
    cage.put("file")
    cage.put("scripts/hooks/pre-push", "#!/bin/sh\n", 0o755)
    cage.put("scripts/more", "[alias]\n")
    cage.put("deep/file")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


def run(cage: Cage, script: str) -> list[Planted]:
    """Run a shell script as the daemon does, and return what that says it has planted."""

    def inside() -> list[Planted]:
        prepared = box.Sandbox(cage.bubblewrap).prepare(
            cage.workspace, command=["/bin/sh", "-c", script], cwd=".", env={"PATH": PATH, "HOME": HOME}, protected=()
        )
        foreground.run(prepared.equipment, prepared.plan)
        return prepared.planted()

    found: list[Planted] = cage.does(inside)
    return found


def link(cage: Cage, path: str, target: str) -> None:
    cage.folder(os.path.dirname(path))
    os.symlink(target, cage.root / path)
    os.chown(cage.root / path, cage.uid, cage.uid, follow_symlinks=False)


def configure(cage: Cage, *settings: tuple[str, str]) -> None:
    for key, value in settings:
        assert cage.plainly(["git", "config", key, value]).code == 0


def mark(cage: Cage) -> Path:
    return cage.base / "home" / "ran"


def write(path: str, content: str) -> str:
    """Return what puts an executable file at `path`, in the place of whatever is there."""
    return f"mkdir -p {os.path.dirname(path) or '.'}; printf '%s' {shlex.quote(content)} >{path}; chmod +x {path}; "


def hook(cage: Cage) -> str:
    return f"#!/bin/sh\ntouch {mark(cage)}\n"


def evil(cage: Cage) -> str:
    return EVIL % mark(cage)


def commits(cage: Cage) -> None:
    """Assert that a command can commit."""
    words = " ".join(IDENTITY)
    run(cage, f"git {words} commit -q --allow-empty -m second")
    assert cage.plainly(["git", "log", "--format=%s"]).out == "second\nfirst\n"


def check(cage: Cage, attack: str, host: Sequence[str] = ("status",)) -> None:
    """Try an attack as the product runs it, and without protection as the control; each time git runs on the host."""

    def ran(chosen: Cage) -> bool:
        run(chosen, f"exec 2>/dev/null; {attack} touch file")
        cage.plainly(["git", *IDENTITY, *(word.replace("TURN", chosen.workspace.git) for word in host)])
        return mark(cage).exists()

    assert not ran(cage)
    assert ran(cage.having(git="unprotected"))


@pytest.mark.parametrize(
    ("links", "spelled"),
    [
        ({"deep/tools": "../scripts"}, "deep/tools/hooks"),
        ({"deep/tools": "../scripts/hooks"}, "deep/tools"),
        ({"deep/a": "b", "deep/b": "{root}/deep/c", "deep/c": "../scripts"}, "./deep//a/hooks/"),
        ({"deep/tools": "../scripts/below"}, "deep/tools/../hooks"),
        ({"../home/way": "../root"}, "{base}/home/way/scripts/hooks"),
        ({"../home/way": "../root/deep", "deep/tools": "../scripts"}, "~/way/tools/hooks"),
        ({"deep/tools": "../scripts"}, "%(prefix)/..{root}/deep/tools/hooks"),
        ({"deep/out": "{base}/home/in", "../home/in": "{root}/scripts"}, "deep/out/hooks"),
    ],
)
def test_hooks_that_are_found_through_links_are_not_a_commands_to_write(
    repository: Cage, links: dict[str, str], spelled: str
) -> None:
    repository.folder("scripts/below")
    names = {"root": str(repository.root), "base": str(repository.base)}
    for path, target in links.items():
        link(repository, path, target.format(**names))
    configure(repository, ("core.hooksPath", spelled.format(**names)))
    check(repository, write(f"scripts/hooks/{HOOK}", hook(repository)))


@pytest.mark.parametrize("target", ["../scripts", "/nowhere", "tools", "{base}/home/outside"])
def test_a_link_on_the_way_to_hooks_cannot_be_replaced_wherever_it_leads(repository: Cage, target: str) -> None:
    secret = repository.base / "home" / "outside"
    (secret / "hooks").mkdir(parents=True)
    (secret / "hooks" / "secret").write_text("canary\n")
    link(repository, "deep/tools", target.format(base=repository.base))
    configure(repository, ("core.hooksPath", "deep/tools/hooks"))
    assert "canary" not in repository.sh(f"cat deep/tools/hooks/secret {secret}/hooks/secret").out
    planted = write(f"deep/tools/hooks/{HOOK}", hook(repository))
    check(repository, f"rm -f deep/tools || mv deep moved; {planted}")
    assert not (secret / "hooks" / HOOK).exists()


def test_where_a_link_on_the_way_lies_at_the_root_no_command_runs_and_the_refusal_names_it(repository: Cage) -> None:
    link(repository, "tools", "scripts")
    configure(repository, ("core.hooksPath", "tools/hooks"))
    with pytest.raises(
        Refusal, match=r"^SANDBOX_UNAVAILABLE: tools: a symbolic link .* Nothing was started"
    ) as refused:
        run(repository, "true")
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    run(repository.having(git="unprotected"), "echo x >ran")
    assert (repository.root / "ran").exists()


def test_a_link_that_a_run_makes_on_the_way_is_named_with_what_it_leads_to(repository: Cage) -> None:
    configure(repository, ("core.hooksPath", "tools/hooks"))
    planted = {one.path for one in run(repository, "ln -s scripts tools")}
    assert planted == {"tools", "scripts/hooks"}


@pytest.mark.parametrize(
    ("links", "attacked"),
    [
        ({".git/hooks/post-index-change": "../../scripts/hook"}, "scripts/hook"),
        ({".git/hooks": "../scripts/hooks"}, "scripts/hooks/post-index-change"),
        ({"tools/post-index-change": "../scripts/hook"}, "scripts/hook"),
        ({"../home/hooks/post-index-change": "{root}/scripts/hook"}, "scripts/hook"),
    ],
)
@pytest.mark.parametrize("mode", ["read_only", "commit"])
def test_what_hooks_lead_to_is_not_a_commands_to_write(
    repository: Cage, links: dict[str, str], attacked: str, mode: str
) -> None:
    repository.put("scripts/hook", "#!/bin/sh\n", 0o755)
    repository.plainly(["/bin/rm", "-rf", *(f"{path}" for path in links if path == ".git/hooks")])
    for path, target in links.items():
        link(repository, path, target.format(root=repository.root))
        if not path.startswith(".git"):
            configure(repository, ("core.hooksPath", os.path.dirname(f"{repository.root}/{path}")))
    check(repository.having(git=mode), write(attacked, hook(repository)))


def test_a_link_among_hooks_is_seen_though_there_was_none_at_the_look_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/hooks/pre-push").touch()
    os.utime(tmp_path / ".git/hooks", (0, 0))
    later = time.time_ns() + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)  # the directory has settled
    with Root.open(str(tmp_path)) as root:
        assert [gitconfig.places(root) for _ in range(2)] == [(), ()]
        (tmp_path / ".git/hooks/pre-push").unlink()
        (tmp_path / ".git/hooks/pre-push").symlink_to("../../check")
        assert gitconfig.places(root) == ("/.git/hooks", "/check")


def test_the_scripts_that_the_hooks_of_husky_run_are_not_a_commands_to_write(repository: Cage) -> None:
    runs = '#!/bin/sh\nexec "$(dirname "$(dirname "$0")")/$(basename "$0")"\n'
    repository.put(f"deep/.husky/_/{HOOK}", runs, 0o755)
    configure(repository, ("core.hooksPath", "deep/.husky/_"))
    check(repository, write(f"deep/.husky/{HOOK}", hook(repository)))


def test_where_the_root_itself_is_the_directory_of_hooks_each_is_protected_by_its_name(repository: Cage) -> None:
    repository.put("pre-push", "#!/bin/sh\n", 0o755)
    configure(repository, ("core.hooksPath", "."))
    planted = run(repository, "echo evil >pre-push; echo fine >fine; echo x >post-merge")
    assert (repository.root / "pre-push").read_text() == "#!/bin/sh\n"
    assert (repository.root / "fine").exists()
    assert [one.path for one in planted] == ["post-merge"]


def test_hooks_are_found_from_the_top_that_the_configuration_names(repository: Cage) -> None:
    repository.put("deep/tools/pre-push", "#!/bin/sh\n", 0o755)
    configure(repository, ("core.hooksPath", "tools"), ("core.worktree", "../deep"))
    attack = write(f"deep/tools/{HOOK}", hook(repository)) + "cp file deep/file; "
    check(repository, attack, ["-C", "deep", "status"])


@pytest.mark.parametrize(
    ("links", "spelled"),
    [
        ({"deep/more": "../scripts/more"}, "../deep/more"),
        ({"deep/a": "../scripts"}, "{root}/deep/a/more"),
        ({"../home/way": "../root"}, "~/way/scripts/more"),
    ],
)
@pytest.mark.parametrize("key", ["include.path", "includeIf.onbranch:**.path"])
def test_configuration_that_is_included_through_links_is_not_a_commands_to_write(
    repository: Cage, links: dict[str, str], spelled: str, key: str
) -> None:
    for path, target in links.items():
        link(repository, path, target)
    configure(repository, (key, spelled.format(root=repository.root)))
    check(repository, write("scripts/more", evil(repository)))


def test_a_link_on_the_way_to_included_configuration_cannot_be_replaced(repository: Cage) -> None:
    link(repository, "deep/a", "../scripts")
    configure(repository, ("include.path", "../deep/a/more"))
    check(repository, f"rm -f deep/a || mv deep moved; {write('deep/a/more', evil(repository))}")


def test_configuration_outside_that_the_operators_own_includes_is_read_as_git_reads_it(repository: Cage) -> None:
    outside = repository.base / "home" / "work.gitconfig"
    outside.write_text("[include]\npath = nested\n[core]\n")
    (repository.base / "home" / "nested").write_text("[core]\nhooksPath = deep/hooks\n")
    configure(repository, ("include.path", "~/work.gitconfig"))
    repository.put("deep/hooks/pre-push", "#!/bin/sh\n", 0o755)
    check(repository, write(f"deep/hooks/{HOOK}", hook(repository)))


def test_a_configuration_that_is_a_link_into_the_tree_is_not_a_commands_to_write(repository: Cage) -> None:
    repository.plainly(["/bin/mv", ".git/config", "scripts/config"])
    link(repository, ".git/config", "../scripts/config")
    check(repository, f"cat >>scripts/config <<'END'\n{evil(repository)}END\n")


@pytest.mark.parametrize("place", [".gitconfig", ".config/git/config"])
@pytest.mark.parametrize(
    ("text", "attacked"),
    [
        ("[core]\nhooksPath = scripts/hooks\n", f"scripts/hooks/{HOOK}"),
        ("[core]\nhooksPath = {root}/scripts/hooks\n", f"scripts/hooks/{HOOK}"),
        ("[core]\nhooksPath = deep/tools/hooks\n", f"scripts/hooks/{HOOK}"),
        ('[includeIf "gitdir:{root}/"]\npath = {root}/scripts/more\n', "scripts/more"),
        ("[include]\npath = {up}/root/scripts/more\n", "scripts/more"),
    ],
)
def test_what_the_accounts_own_configuration_names_is_not_a_commands_to_write(
    repository: Cage, place: str, text: str, attacked: str
) -> None:
    link(repository, "deep/tools", "../scripts")
    repository.put(f"../home/{place}", text.format(root=repository.root, up="/".join([".."] * (place.count("/") + 1))))
    check(repository, write(attacked, evil(repository) if attacked.endswith("more") else hook(repository)))


def test_the_accounts_hooks_are_those_of_every_repository_below_the_root(repository: Cage) -> None:
    repository.put("../home/.gitconfig", "[core]\nhooksPath = tools/hooks\n")
    repository.put("deep/tools/hooks/pre-push", "#!/bin/sh\n", 0o755)
    for words in (["init", "-q", "deep"], ["-C", "deep", "add", "file"]):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    attack = write(f"deep/tools/hooks/{HOOK}", hook(repository)) + "touch deep/file; "
    check(repository, attack, ["-C", "deep", "status"])


def test_hooks_that_the_account_has_copied_into_each_new_repository_are_not_a_commands_to_write(
    repository: Cage,
) -> None:
    repository.put("../home/.gitconfig", "[init]\ntemplateDir = ~/../root/scripts\n")
    check(repository, write("scripts/hooks/post-checkout", hook(repository)), ["clone", "-q", ".", "../home/TURN"])


@pytest.mark.parametrize("missing", [False, True])
def test_an_accounts_configuration_that_lies_in_the_workspace_is_not_a_commands_to_write(
    repository: Cage, missing: bool
) -> None:
    if not missing:
        repository.put("dots/gitconfig", "[alias]\n")
    link(repository, "../home/.gitconfig", "../root/dots/gitconfig")
    if missing:
        planted = run(repository, write("dots/gitconfig", evil(repository)))
        assert [one.path for one in planted] == ["dots/gitconfig"]  # what is not there cannot be mounted on
    else:
        check(repository, write("dots/gitconfig", evil(repository)))


@pytest.mark.parametrize(
    ("settings", "attacked", "host"),
    [
        ({"core.fsmonitor": "scripts/program"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "{root}/scripts/program"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "deep/tools/program"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "sh scripts/program"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "nice -n 5 timeout 50 scripts/program"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "sh -c 'A=1 exec ./scripts/program'"}, "scripts/program", ["status"]),
        ({"core.fsmonitor": '"$(git rev-parse --show-toplevel)/scripts/program"'}, "scripts/program", ["status"]),
        ({"core.fsmonitor": "f() {{ true && $PWD/scripts/program; }}; f"}, "scripts/program", ["status"]),
        ({"filter.x.clean": "scripts/program %f"}, "scripts/program", ["diff"]),
        ({"filter.x.process": "/usr/bin/env sh scripts/program"}, "scripts/program", ["diff"]),
        ({"diff.x.textconv": "scripts/program"}, "scripts/program", ["-c", "core.pager=cat", "diff"]),
        ({"diff.external": "scripts/program"}, "scripts/program", ["diff"]),
        ({"alias.ours": "!scripts/program"}, "scripts/program", ["ours"]),
        ({"gpg.program": "{root}/scripts/program", "commit.gpgSign": "true"}, "scripts/program", ["commit", "-amx"]),
        ({"core.editor": "bash -x program"}, "program", ["commit", "-a"]),
        ({"core.sshCommand": "scripts/program"}, "scripts/program", ["fetch", "ssh://nowhere.invalid/x"]),
    ],
)
def test_a_program_that_the_configuration_names_is_not_a_commands_to_write(
    repository: Cage, settings: dict[str, str], attacked: str, host: list[str]
) -> None:
    repository.put(".gitattributes", "file filter=x diff=x\n")
    repository.put(attacked, '#!/bin/sh\nexec cat "$@"\n', 0o755)
    link(repository, "deep/tools", "../scripts")
    configure(repository, *((key, value.format(root=repository.root)) for key, value in settings.items()))
    cage = repository.having(git="read_only")
    check(cage, "".join(write(name, hook(cage)) for name in (attacked, "deep/tools/program")) + "echo x >>file; ", host)


def test_a_program_that_is_the_address_of_a_remote_is_not_a_commands_to_write(repository: Cage) -> None:
    repository.put("scripts/program", "#!/bin/sh\nexit 1\n", 0o755)  # it would be asked for what it has
    configure(repository, ("protocol.ext.allow", "always"), ("remote.x.url", "ext::scripts/program %S"))
    check(repository, write("scripts/program", hook(repository)), ["fetch", "x"])


def test_the_git_directory_that_a_gitfile_names_through_a_link_cannot_be_exchanged(repository: Cage) -> None:
    repository.plainly(["/bin/cp", "-r", ".git", "scripts/store"])
    link(repository, "deep/way", "../scripts")
    repository.put("deep/tree/.git", "gitdir: ../way/store\n")
    attack = (
        "rm deep/way || mv deep moved; mkdir -p deep/way; cp -r scripts/store deep/way/store; "
        f"cat >>deep/way/store/config <<'END'\n{evil(repository)}END\n"
    )
    check(repository, attack, ["-C", "deep/tree", "status"])


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("included", ["more", "../../shared"])
def test_in_the_mode_commit_what_a_linked_worktree_includes_stays_read_only(
    repository: Cage, inside: bool, included: str
) -> None:
    tree = (repository.root / "deep" if inside else repository.base / "home") / "tree"
    for words in (["worktree", "add", "-q", str(tree)], ["config", "extensions.worktreeConfig", "true"]):
        assert repository.plainly(["git", *words]).code == 0
    own = ".git/worktrees/tree"
    repository.put(f"{own}/config.worktree", f"[include]\npath = {included}\n")
    repository.put(f"{own}/{included}", "[alias]\n")
    committing = repository.having(git="commit")
    check(committing, write(f"{own}/{included}", evil(repository)), ["-C", str(tree), "status"])
    commits(committing)


def test_in_the_mode_commit_a_missing_hook_that_the_configuration_names_hinders_no_commit(repository: Cage) -> None:
    configure(repository, ("core.fsmonitor", ".git/hooks/missing"))
    commits(repository.having(git="commit"))


def test_in_the_mode_commit_a_link_among_hooks_hinders_no_commit_and_nothing_is_said_of_it(repository: Cage) -> None:
    link(repository, ".git/hooks/pre-push", "../../scripts/more")
    committing = repository.having(git="commit")
    assert run(committing, "true") == []
    commits(committing)


def test_a_worktrees_own_configuration_outside_of_the_root_names_its_hooks_too(repository: Cage) -> None:
    tree = repository.base / "tree"
    for words in (
        ["worktree", "add", "-q", str(tree)],
        ["config", "extensions.worktreeConfig", "true"],
        ["-C", str(tree), "config", "--worktree", "core.hooksPath", "tools/hooks"],
    ):
        assert repository.plainly(["git", *words]).code == 0
    inside = repository.having(root=str(tree))
    inside.put("tools/hooks/pre-push", "#!/bin/sh\n", 0o755)
    check(inside, write(f"tools/hooks/{HOOK}", hook(repository)))


def test_a_git_directory_outside_of_the_root_is_read_where_the_roots_own_gitfile_names_it(repository: Cage) -> None:
    store = repository.base / "home" / "store"  # as that of a submodule is
    assert repository.plainly(["git", "init", "-q", "--separate-git-dir", str(store)]).code == 0
    configure(repository, ("core.hooksPath", "scripts/hooks"))
    check(repository, write(f"scripts/hooks/{HOOK}", hook(repository)))


@pytest.mark.parametrize("mode", ["read_only", "commit"])
@pytest.mark.parametrize(("spelled", "ends"), [("tools/hooks", ".git/tools/hooks"), ("../scripts/hooks",) * 2])
def test_hooks_that_run_when_somebody_pushes_into_the_repository_are_found_from_the_git_directory(
    repository: Cage, mode: str, spelled: str, ends: str
) -> None:
    configure(repository, ("core.hooksPath", spelled))
    clone = str(repository.base / "home" / "clone")
    assert repository.plainly(["git", "clone", "-q", str(repository.root), clone]).code == 0
    assert repository.plainly(["git", *IDENTITY, "-C", clone, "commit", "--allow-empty", "-qm", "2"]).code == 0
    ends = ends.removeprefix("../")
    attack = write(f"{ends}/pre-receive", hook(repository))
    push = ["-C", clone, "push", "-qf", "origin", "HEAD:refs/heads/TURN"]
    check(repository.having(git=mode), attack, push)


def test_in_the_mode_commit_an_empty_directory_stands_where_hooks_of_a_push_would_be_looked_for(
    repository: Cage,
) -> None:
    configure(repository, ("core.hooksPath", "tools/hooks"))
    commits(repository.having(git="commit"))
    assert list((repository.root / ".git/tools").rglob("*")) == [repository.root / ".git/tools/hooks"]


def test_links_that_git_itself_could_not_follow_hold_nobody_up(repository: Cage) -> None:
    for number in range(100):
        link(repository, f"deep/{number}", "./" * 1_000 + str(number + 1))
    configure(repository, ("core.hooksPath", "deep/0/hooks"), ("include.path", "../" * 1_000 + "etc"))
    run(repository, "rm deep/0; echo x >scripts/fine")
    assert (repository.root / "deep/0").is_symlink()
    assert (repository.root / "scripts/fine").exists()


def test_a_hidden_path_below_a_protected_directory_does_not_make_its_links_a_reason_to_refuse(repository: Cage) -> None:
    link(repository, "scripts/hooks/pre-merge", "pre-push")
    configure(repository, ("core.hooksPath", "scripts/hooks"))
    run(repository.having(hidden_paths=("*.pem",)), "echo x >scripts/fine; echo evil >scripts/hooks/pre-push")
    assert (repository.root / "scripts/fine").exists()
    assert (repository.root / "scripts/hooks/pre-push").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("kind", ["directory", "worktree"])
def test_hooks_that_a_repository_above_the_root_names_in_it_are_not_a_commands_to_write(
    repository: Cage, kind: str
) -> None:
    repository.put("app/hooks/pre-push", "#!/bin/sh\n", 0o755)
    configure(repository, ("core.hooksPath", "app/hooks"))
    for words in (["add", "app"], ["commit", "-qm", "more"], ["worktree", "add", "-q", str(repository.base / "tree")]):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    top = repository.root if kind == "directory" else repository.base / "tree"
    below = repository.having(root=str(top / "app"))
    attack = write(f"hooks/{HOOK}", hook(repository)) + "touch hooks/pre-push"
    for chosen, expected in ((below, False), (below.having(git="unprotected"), True)):
        run(chosen, attack)
        repository.plainly(["git", "status"], cwd=str(top))
        assert mark(repository).exists() is expected
    with Root.open(below.workspace.root) as root:
        assert "/hooks" in gitconfig.places_beyond(root, None, Account())  # what patches go by


@pytest.mark.parametrize("kind", ["directory", "worktree"])
def test_no_repository_can_be_put_where_one_above_the_root_expects_a_submodule(repository: Cage, kind: str) -> None:
    repository.put("app/file")
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    for words in (
        ["add", "app"],
        ["update-index", "--add", "--cacheinfo", f"160000,{head},app/sub"],
        ["update-index", "--add", "--cacheinfo", f"160000,{head},app/missing"],
        ["commit", "-qm", "more"],
        ["worktree", "add", "-q", str(repository.base / "tree")],
    ):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0, words
    top = repository.root if kind == "directory" else repository.base / "tree"
    below = repository.having(root=str(top / "app"))
    below.folder("sub")
    if kind == "worktree":
        (top / "app/missing").rmdir()  # which git made with the tree
    words = " ".join(IDENTITY)
    attack = (
        f"cd sub && git init -q && git {words} commit -q --allow-empty -m x && printf %s {shlex.quote(evil(below))} "
        ">>.git/config"
    )
    assert run(below, attack) == []
    assert run(below, "git init -q missing") == [Planted("missing/.git", loud=True)]
    repository.plainly(["git", "status"], cwd=str(top))
    assert not mark(below).exists()
    run(below.having(git="unprotected"), attack)
    repository.plainly(["git", "status"], cwd=str(top))
    assert mark(below).exists()


@pytest.mark.parametrize("way", ["/proc/self/cwd/x", "/proc/self/cwd/../../../etc", "/dev/fd/3", "up/self/root"])
def test_a_way_through_what_the_kernel_makes_for_each_process_is_anybodys(tmp_path: Path, way: str) -> None:
    (tmp_path / "up").symlink_to("/proc")
    (tmp_path / "cpu").symlink_to("/proc/../etc")
    with Root.open(str(tmp_path)) as root:
        assert gitways.follow(root, str(tmp_path / way)).is_anybodys
        assert gitways.follow(root, str(tmp_path / "cpu")).outside == "/etc"
        assert not gitways.follow(root, str(tmp_path / "cpu")).is_anybodys


def test_a_way_through_many_names_of_where_it_is_leads_where_the_kernel_goes(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/t").write_text("the end")
    os.symlink("./" * 1_900 + "build/t", tmp_path / "m2")
    os.symlink("./" * 1_900 + "m2", tmp_path / "m1")
    os.symlink(".///" * 900 + "m1", tmp_path / "start")
    assert (tmp_path / "start").read_text() == "the end"
    with Root.open(str(tmp_path)) as root:
        assert gitways.follow(root, f"{tmp_path}/start").end == "build/t"


def test_a_way_that_is_given_up_may_lead_anywhere(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "t").write_text("the end")
    for number in range(8):
        os.symlink("d/../" * 790 + f"m{number + 1}", tmp_path / f"m{number}")
    os.symlink("t", tmp_path / "m8")
    assert (tmp_path / "m0").read_text() == "the end"
    with Root.open(str(tmp_path)) as root:
        way = gitways.follow(root, f"{tmp_path}/m0")
        assert (way.end, way.is_endless, way.is_anybodys) == (None, True, True)
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git/config").write_text("[core]\nhooksPath = m0\n")
        with pytest.raises(Refusal):
            gitconfig.places(root)
