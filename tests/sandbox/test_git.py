"""Attacks through what git runs by itself on the host (SANDBOX 5: 25, 26; SANDBOX 1: 6)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from codespace.sandbox.inventory import git

from .cage import Cage

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "init.defaultBranch=main")
EVIL = '[core]\n\tfsmonitor = "touch %s; false"\n'
PROTECTED = ("/.mcp.json", "/.vscode/tasks.json", "/.claude/")


@pytest.fixture
def repository(cage: Cage) -> Cage:
    cage.put("file", "one\n")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        done = cage.plainly(["git", *IDENTITY, *words])
        assert done.code == 0, done
    return cage


def commit(words: str = "add file && git commit -qm second") -> str:
    return f"git config --global user.name x; git config --global user.email x@example.invalid; git {words}"


def test_git_reads_and_nothing_of_its_directory_can_be_changed(repository: Cage) -> None:
    reading = repository.sh(
        "echo two >>file; git status --short; git log --oneline; git diff --stat; git show HEAD:file"
    )
    assert " M file" in reading.out
    assert "first" in reading.out
    assert "one\n" in reading.out
    before = {path: path.read_bytes() for path in (repository.root / ".git").rglob("*") if path.is_file()}
    attack = """
    for path in hooks/post-checkout config commondir config.worktree HEAD info/attributes objects/info/alternates
    do if ( echo evil >.git/$path ) 2>/dev/null; then echo "wrote $path"; fi; done
    git config core.fsmonitor evil && echo configured; mv .git other && echo moved; rm -rf .git && echo removed
    mount -o remount,rw .git && echo remounted; chmod -R 777 .git && echo chmodded; ln .git/config linked && echo linked
    """
    assert repository.sh(attack).out == ""
    assert {path: path.read_bytes() for path in (repository.root / ".git").rglob("*") if path.is_file()} == before
    assert "wrote hooks/post-checkout" in repository.having(git="unprotected").sh(attack).out


def test_a_commit_fails_by_default_and_works_where_the_operator_says_commit(repository: Cage) -> None:
    repository.put("file", "two\n")
    assert repository.sh(commit()).code != 0
    committing = repository.having(git="commit")
    result = committing.sh(commit())
    assert result.code == 0, result
    assert "second" in repository.plainly(["git", "log", "--oneline"]).out
    assert repository.plainly(["git", "fsck"]).code == 0


def test_in_the_mode_commit_what_decides_about_programs_stays_read_only(repository: Cage) -> None:
    attack = """
    for path in hooks/post-checkout config commondir
    do if ( echo evil >.git/$path ) 2>/dev/null; then echo "wrote $path"; fi; done
    git config core.fsmonitor evil && echo configured; mv .git other && echo moved
    mv .git/config .git/gone && echo config moved; mv .git/hooks .git/gone && echo hooks moved
    rm -f .git/commondir && echo removed
    """
    assert repository.having(git="commit").sh(attack).out == ""
    assert "fsmonitor" not in (repository.root / ".git/config").read_text()
    assert (repository.root / ".git/commondir").read_bytes() == git.GUARD


def running(cage: Cage, attack: str, *then: str, cwd: Path | None = None) -> str:
    """Try an attack in the mode `commit`, then git on the host; return what the attack's own words were, and `ran`."""
    mark = cage.base / "home" / "ran"
    cage.put("evil", EVIL % mark)
    said = cage.having(git="commit").sh(attack).out
    cage.plainly(["git", *IDENTITY, "-c", "protocol.file.allow=always", *then], cwd=str(cwd or cage.root))
    return said + ("ran" if mark.exists() else "")


def test_a_configuration_of_the_working_tree_cannot_be_made_where_there_is_none(repository: Cage) -> None:
    assert repository.plainly(["git", "config", "extensions.worktreeConfig", "true"]).code == 0
    assert running(repository, "cp evil .git/config.worktree && echo put", "status") == ""
    assert repository.having(git="commit").sh(commit("commit -q --allow-empty -m second")).code == 0


def test_a_submodule_that_was_never_cloned_cannot_be_put_in_place(repository: Cage) -> None:
    source = repository.base / "home" / "source"
    adding = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source), "sub"]
    for words in (["init", "-q", str(source)], ["-C", str(source), "commit", "-q", "--allow-empty", "-m", "x"], adding):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    repository.plainly(["git", "submodule", "deinit", "-f", "sub"])
    repository.plainly(["/bin/rm", "-rf", ".git/modules"])
    attack = (
        "git init -q --bare .git/modules/sub && printf '[core]\nbare = false\nworktree = ../../../sub\n' "
        ">>.git/modules/sub/config && cat evil >>.git/modules/sub/config && echo put"
    )
    assert running(repository, attack, "submodule", "update", "--init") == ""
    assert (repository.root / "sub" / ".git").exists()


@pytest.mark.parametrize(("place", "start"), [("remotes", "URL: "), ("branches", "")])
def test_a_push_without_a_remote_cannot_be_led_into_a_repository_with_hooks(
    repository: Cage, place: str, start: str
) -> None:
    mark = repository.base / "home" / "ran"
    attack = f"""
    git init -q --bare .git/own && printf '#!/bin/sh\ntouch {mark}\n' >.git/own/hooks/update &&
    chmod +x .git/own/hooks/update && mkdir -p .git/{place} &&
    echo "{start}$PWD/.git/own" >.git/{place}/origin && echo put
    """
    push = ("push", "origin", "HEAD:refs/heads/x")
    assert running(repository, attack, *push) == ""
    up = str(repository.base / "up")
    for words in (
        ["clone", "-q", "--bare", ".", up],
        ["remote", "add", "origin", up],
        push,
        ["remote", "rm", "origin"],
    ):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0, words
    assert repository.having(git="unprotected").sh(attack).out == "put\n"  # the control
    repository.plainly(["git", *IDENTITY, *push])
    assert mark.exists()


@pytest.mark.parametrize("in_worktree", [False, True])
def test_a_command_leaves_no_server_where_the_hosts_instaweb_looks_for_one(repository: Cage, in_worktree: bool) -> None:
    tree = repository.root / "tree" if in_worktree else repository.root
    place = ".git/worktrees/tree/gitweb" if in_worktree else ".git/gitweb"
    if in_worktree:
        assert repository.plainly(["git", *IDENTITY, "worktree", "add", "-q", "tree"]).code == 0
    mark = repository.base / "home" / "ran"
    attack = f"""
    mkdir -p {place}; printf '#!/bin/sh\ntouch {mark}\n' >{place}/nothttpd && chmod +x {place}/nothttpd && echo put
    """
    assert repository.having(git="commit").sh(attack).out == ""
    start = ["git", "instaweb", "--httpd", "nothttpd", "--browser", "true"]
    repository.plainly(start, cwd=str(tree))
    assert not mark.exists()
    assert repository.having(git="unprotected").sh(attack).out == "put\n"  # the control
    repository.plainly(start, cwd=str(tree))
    assert mark.exists()
    if in_worktree:
        assert repository.plainly(["git", "worktree", "remove", "--force", "tree"]).code == 0


@pytest.mark.parametrize(
    "link", ["COMMIT_EDITMSG", "logs/HEAD", "logs/refs/heads/objects/x", "worktrees/x/HEAD", "annex/smudge.log"]
)
def test_a_link_that_a_command_leaves_in_a_git_directory_is_named_and_no_command_commits_there_any_more(
    repository: Cage, link: str
) -> None:
    """The next git writes through it, wherever it leads: for a command nothing is there."""
    profile = repository.put(f"{repository.base}/home/.profile", "mine\n")
    committing = repository.having(git="commit")
    attack = f"mkdir -p .git/{os.path.dirname(link)}; ln -sf {profile} .git/{link}"
    assert committing.sh(commit("commit -q --allow-empty -m second")).planted == ()
    assert committing.sh(attack).planted == (f".git/{link}",)
    assert committing.sh(commit("commit -q --allow-empty -m third")).code != 0
    if link == "COMMIT_EDITMSG":  # the control: this is what it is named for
        repository.plainly(["git", *IDENTITY, "commit", "-q", "--allow-empty", "-m", "evil"])
        assert profile.read_text() == "evil\n"
    (repository.root / ".git" / link).unlink()
    assert committing.sh(commit("commit -q --allow-empty -m third")).code == 0


def test_the_worktrees_of_others_cannot_be_led_to_another_repository(repository: Cage) -> None:
    tree = repository.base / "home" / "tree"
    for words in (["worktree", "add", "-q", str(tree)], ["config", "extensions.worktreeConfig", "true"]):
        assert repository.plainly(["git", *words]).code == 0
    own = ".git/worktrees/tree"
    attack = f"""
    git init -q other && cat evil >>other/.git/config && git -C other -c user.name=x -c user.email=x@x.invalid \
        commit -q --allow-empty -m x
    for file in commondir gitdir config.worktree modules/x
    do if ( echo $PWD/other/.git >{own}/$file ) 2>/dev/null; then echo wrote $file; fi; done
    cp evil {own}/config.worktree 2>/dev/null && echo copied
    mv {own} .git/away 2>/dev/null && echo moved; mv .git/worktrees .git/away 2>/dev/null && echo all moved
    """
    assert running(repository, attack, "status", cwd=tree) == ""
    assert repository.having(git="commit").sh(commit("commit -q --allow-empty -m second")).code == 0
    assert repository.plainly(["git", "worktree", "remove", str(tree)]).code == 0


def test_a_worktree_in_the_workspace_takes_commits_and_stays_where_it_belongs(repository: Cage) -> None:
    for words in (["worktree", "add", "-q", "deep/tree"], ["config", "extensions.worktreeConfig", "true"]):
        assert repository.plainly(["git", *words]).code == 0
    own = ".git/worktrees/tree"
    attack = f"""
    for file in commondir gitdir config.worktree modules/x
    do if ( echo $PWD/other/.git >{own}/$file ) 2>/dev/null; then echo wrote $file; fi; done
    perl -e 'rename $ARGV[0], $ARGV[1] and print "moved"' {own} .git/away
    """
    assert running(repository, attack, "status", cwd=repository.root / "deep/tree") == ""
    result = repository.having(git="commit").sh(commit("-C deep/tree commit -q --allow-empty -m second"))
    assert result.code == 0, result
    assert "second" in repository.plainly(["git", "-C", "deep/tree", "log", "--oneline"]).out
    assert repository.plainly(["git", "worktree", "remove", "deep/tree"]).code == 0


def test_submodules_can_be_cloned_into_a_worktree_that_commands_committed_in(repository: Cage) -> None:
    source = repository.base / "home" / "source"
    adding = ["-c", "protocol.file.allow=always", "submodule", "--quiet"]
    for words in (
        ["init", "-q", str(source)],
        ["-C", str(source), "commit", "-q", "--allow-empty", "-m", "x"],
        [*adding, "add", str(source), "lib"],
        ["commit", "-qm", "second"],
        ["worktree", "add", "-q", "tree"],
    ):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    result = repository.having(git="commit").sh(
        commit("-C tree commit -q --allow-empty -m third") + "; mkdir .git/worktrees/tree/modules/lib || echo closed"
    )
    assert result.out == "closed\n"
    updated = repository.plainly(["git", "-C", "tree", *adding, "update", "--init"])
    assert updated.code == 0, updated
    assert (repository.root / "tree/lib/.git").exists()


def test_a_worktrees_repository_outside_opens_no_more_than_a_commit_needs(cage: Cage) -> None:
    home, other = cage.base / "home" / "project", cage.base / "home" / "other"
    for words in (["init", "-q", str(home)], ["-C", str(home), "commit", "-q", "--allow-empty", "-m", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    tree = cage.base / "tree"
    for place in (tree, other):
        assert cage.plainly(["git", "-C", str(home), "worktree", "add", "-q", str(place)]).code == 0
    inside = cage.having(root=str(tree), git="commit")
    attack = f"""
    cd {home}/.git
    for file in config.worktree modules/x worktrees/*/config.worktree worktrees/*/modules/x worktrees/*/commondir \
        worktrees/other/HEAD
    do if ( echo $PWD/other/.git >$file ) 2>/dev/null; then echo wrote $file; fi; done
    """
    assert inside.sh(attack).out == ""
    assert inside.sh(commit("commit -q --allow-empty -m second")).code == 0
    (home / ".git/hooks").rename(home / ".git/gone")
    assert inside.sh(f"mkdir {home}/.git/hooks || echo x >{home}/.git/HEAD").code != 0
    assert inside.sh("git log --oneline").out.count("\n") == 2


@pytest.mark.parametrize("inside", [True, False])
def test_a_worktree_that_is_found_by_a_relative_path_takes_commits_too(repository: Cage, inside: bool) -> None:
    tree = (repository.root if inside else repository.base) / "tree"
    assert repository.plainly(["git", "worktree", "add", "-q", str(tree)]).code == 0
    own = repository.root / ".git/worktrees/tree"
    (own / "gitdir").write_text(f"{os.path.relpath(tree / '.git', own)}\n")  # as worktree.useRelativePaths has it
    (tree / ".git").write_text(f"gitdir: {os.path.relpath(own, tree)}\n")
    committing = repository.having(git="commit", root=str(repository.root if inside else tree))
    result = committing.sh(commit(f"-C {tree} commit -q --allow-empty -m second"))
    assert result.code == 0, result
    assert "second" in repository.plainly(["git", "-C", str(tree), "log", "--oneline"]).out


def test_a_repository_whose_tree_lies_elsewhere_stays_read_only_in_the_mode_commit(repository: Cage) -> None:
    """Where there is a `commondir` git takes no tree from the configuration: the next `git add` would take another."""
    assert repository.plainly(["git", "config", "core.worktree", "../deep"]).code == 0
    repository.put("deep/file", "one\n")
    assert repository.having(git="commit").sh("echo x >.git/HEAD").code != 0
    assert repository.plainly(["git", "status", "--short"]).out == ""
    (repository.root / ".git/commondir").write_bytes(git.GUARD)  # the control
    assert repository.plainly(["git", "status", "--short"]).out == "?? deep/\n"


def test_a_repository_without_hooks_stays_read_only_in_the_mode_commit(repository: Cage) -> None:
    repository.plainly(["/bin/rm", "-rf", ".git/hooks"])
    assert repository.having(git="commit").sh("mkdir .git/hooks || echo x >.git/HEAD").code != 0
    assert not (repository.root / ".git/hooks").exists()


def test_nested_repositories_and_gitfiles_are_protected_and_cannot_be_moved_away(repository: Cage) -> None:
    for name in ("a/b/nested", "CASE/.GIT"):
        repository.put(f"{name}/.git/config" if "GIT" not in name else f"{name}/config", "mine\n")
    repository.put("wt/.git", "gitdir: /nowhere\n")
    attack = """
    for path in a/b/nested/.git/config CASE/.GIT/config wt/.git
    do if ( echo evil >$path ) 2>/dev/null; then echo "wrote $path"; fi; done
    for path in a a/b a/b/nested a/b/nested/.git CASE wt wt/.git
    do mv $path moved 2>/dev/null && echo "moved $path"; done
    rm -rf a wt CASE 2>/dev/null; cat a/b/nested/.git/config CASE/.GIT/config wt/.git
    """
    assert repository.sh(attack).out == "mine\nmine\ngitdir: /nowhere\n"
    assert "moved a" in repository.having(git="unprotected").sh(attack).out


def test_a_bare_repository_is_known_by_what_is_in_it(repository: Cage) -> None:
    assert repository.plainly(["git", *IDENTITY, "init", "-q", "--bare", "stores/bare"]).code == 0
    result = repository.sh(
        "echo evil >>stores/bare/config; echo x >stores/bare/hooks/update; mv stores s; echo ok >stores/file"
    )
    assert "evil" not in (repository.root / "stores/bare/config").read_text()
    assert (repository.root / "stores/file").exists(), result
    assert not (repository.root / "s").exists()


def test_the_repository_of_a_worktree_is_readable_and_read_only(cage: Cage) -> None:
    home = cage.base / "home" / "project"
    for words in (["init", "-q", str(home)], ["-C", str(home), "commit", "-q", "--allow-empty", "-m", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    tree = cage.base / "tree"
    assert cage.plainly(["git", "-C", str(home), "worktree", "add", "-q", str(tree)]).code == 0
    inside = cage.having(root=str(tree))
    result = inside.sh(f"git log --oneline; git status --short; echo x >>{home}/.git/config; cat {home}/.git/../secret")
    assert "first" in result.out, result
    assert cage.plainly(["git", "-C", str(home), "status"]).code == 0
    assert not (home / ".git/config").read_text().endswith("x\n")
    committing = inside.having(git="commit")
    assert committing.sh(commit("commit -q --allow-empty -m second") + f"; echo evil >>{home}/.git/config").code != 0
    assert "second" in cage.plainly(["git", "-C", str(tree), "log", "--oneline"]).out
    assert "evil" not in (home / ".git/config").read_text()


def test_a_gitfile_that_a_command_could_have_written_opens_no_directory(cage: Cage) -> None:
    target = cage.base / "home" / "private"
    (target / "worktrees" / "w").mkdir(parents=True)
    (target / "secret").write_text("canary\n")
    (target / "worktrees/w/commondir").write_text("../..\n")
    (target / "worktrees/w/gitdir").write_text("/somewhere/else/.git\n")
    subprocess.run(["/bin/chown", "-R", str(cage.uid), str(target)], check=True)
    cage.put(".git", f"gitdir: {target}/worktrees/w\n")
    assert "canary" not in cage.sh(f"cat {target}/secret").out
    (target / "worktrees/w/gitdir").write_text(f"{cage.root}/.git\n")  # only who owns that place can say so
    assert "canary" in cage.sh(f"cat {target}/secret").out


@pytest.mark.parametrize("common", ["{base}", "../..", "{base}/home"])
@pytest.mark.parametrize("mode", ["read_only", "commit"])
def test_a_gitfile_and_all_that_it_names_written_by_a_command_open_no_directory(
    cage: Cage, mode: str, common: str
) -> None:
    common = common.format(base=cage.base)
    planting = (
        "mkdir evil; echo gitdir: $PWD/evil >.git; echo $PWD/.git >evil/gitdir; printf '%s\\n' {} >evil/commondir"
    )
    assert cage.sh(planting.format(common)).planted == (".git",)
    secret = cage.base / "home" / ".netrc"
    result = cage.having(git=mode).sh(f"cat {secret}; echo evil >{secret}")
    assert "canary" not in result.out
    assert secret.read_text() == "canary-secret\n"


def test_a_place_outside_that_names_the_root_opens_its_own_repository_and_nothing_else(cage: Cage) -> None:
    """Such as another workspace, where commands can write too."""
    other = cage.base / "other"
    (other / "repository" / "worktrees" / "w").mkdir(parents=True)
    (other / "repository" / "worktrees" / "w" / "gitdir").write_text(f"{cage.root}/.git\n")
    subprocess.run(["/bin/chown", "-R", str(cage.uid), str(other)], check=True)
    cage.put(".git", f"gitdir: {other}/repository/worktrees/w\n")
    for common in (cage.base, other, "../../..", cage.base / "home"):
        (other / "repository/worktrees/w/commondir").write_text(f"{common}\n")
        assert "canary" not in cage.sh(f"cat {cage.base}/home/.netrc; ls {other}").out, common
    (other / "repository/worktrees/w/commondir").write_text("../..\n")
    assert cage.sh(f"ls {other}").out == "repository\n"


def test_no_repository_can_be_put_where_git_expects_a_submodule(repository: Cage) -> None:
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    repository.folder("module")
    assert repository.plainly(["git", "update-index", "--add", "--cacheinfo", f"160000,{head},module"]).code == 0
    mark = repository.base / "home" / "ran"
    attack = (
        "rmdir module && mkdir module; cd module && git init -q && git -c user.name=x -c user.email=x@x commit -q "
        f"--allow-empty -m x && printf '%s' '{EVIL % mark}' >>.git/config"
    )
    assert repository.sh(attack).code != 0
    repository.plainly(["git", "status"])
    assert not mark.exists()
    assert repository.having(git="unprotected").sh(attack).code == 0  # positive control: it does run code
    repository.plainly(["git", "status"])
    assert mark.exists()


def test_submodules_are_found_in_every_version_of_the_index(repository: Cage) -> None:
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    for name in ("first/module", "second", "z"):
        repository.folder(name)
        repository.put(f"{name}x", "file\n")
        repository.plainly(["git", "add", f"{name}x"])
        assert repository.plainly(["git", "update-index", "--add", "--cacheinfo", f"160000,{head},{name}"]).code == 0
    for version in ("2", "3", "4"):
        assert repository.plainly(["git", "update-index", f"--index-version={version}"]).code == 0
        for name in ("first/module", "second", "z"):
            assert repository.sh(f"echo x >{name}/planted").code != 0, (version, name)
        assert repository.sh("echo x >secondx").code == 0


@pytest.mark.parametrize("kind", ["sha256", "split", "sha256 split"])
def test_submodules_are_found_in_every_kind_of_index(cage: Cage, kind: str) -> None:
    cage.put("file")
    cage.put("s/ubx")
    cage.put("link/link")
    cage.folder("s/ub")
    head = "1" * (64 if "sha256" in kind else 40)
    made = ["init", "-q", f"--object-format={'sha256' if 'sha256' in kind else 'sha1'}"]
    added = ["update-index", "--add", "--cacheinfo", f"160000,{head},s/ub"]
    split = [["update-index", "--split-index"], ["add", "s/ubx", "link"]] if "split" in kind else []
    for words in (made, ["add", "file"], added, *split):
        done = cage.plainly(["git", *IDENTITY, *words])
        assert done.code == 0, done
    assert cage.sh("echo x >s/ub/planted").code != 0
    assert cage.sh("echo x >s/ubx").code == 0


def test_submodules_of_submodules_and_of_worktrees_are_found_too(repository: Cage) -> None:
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    source, tree = repository.base / "home" / "source", repository.base / "tree"
    adding = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source), "sub"]
    linked = f"160000,{head},nested"
    for words in (
        ["init", "-q", str(source)],
        ["-C", str(source), "update-index", "--add", "--cacheinfo", linked],
        ["-C", str(source), "commit", "-qm", "x"],
        adding,
        ["update-index", "--add", "--cacheinfo", linked],
        ["commit", "-qm", "x"],
        ["worktree", "add", "-q", str(tree)],
    ):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0, words
    assert (repository.root / "sub" / ".git").is_file()
    for place in (repository.root / "sub", tree):
        assert (place / "nested").is_dir()
    assert repository.sh("git init -q sub/nested").code != 0
    assert repository.having(root=str(tree)).sh("git init -q nested").code != 0
    assert repository.having(git="unprotected").sh("git init -q sub/nested").code == 0  # the control


def test_what_a_run_plants_is_named_the_loudest_first(cage: Cage) -> None:
    planting = "git init -q sub/deep; git init -q .; echo {} >.mcp.json; mkdir .claude; echo x >fine; mkdir -p .vscode"
    result = cage.run(["/bin/sh", "-c", planting], protected=PROTECTED)
    assert set(result.planted) == {".claude", ".git", ".mcp.json", "sub/deep/.git"}
    assert set(result.loud) == {".claude", ".git", ".mcp.json"}
    assert result.planted[-1] == "sub/deep/.git"
    assert cage.run(["true"], protected=PROTECTED).planted == ()


@pytest.mark.parametrize("mode", ["read_only", "commit"])
def test_a_second_name_that_an_earlier_run_made_is_no_way_to_write_a_protected_file(cage: Cage, mode: str) -> None:
    chosen = cage.having(git=mode)
    planting = """
    echo fine >.mcp.json; mkdir -p .claude/refs build; echo fine >.claude/refs/x; git init -q; git init -q sub
    ln .mcp.json copy; ln .claude/refs/x build/x; ln .git/config build/config; ln .git/hooks/pre-push.sample build/hook
    ln sub/.git/config .git/config-of-sub; git init -q "$(printf 'new\\nline')"; ln new*/.git/config odd
    echo fine >build/other; ln build/other build/fine
    """
    assert chosen.run(["/bin/sh", "-c", planting], protected=PROTECTED).code == 0
    attack = """
    for file in copy build/x build/config build/hook .git/config-of-sub odd build/fine
    do if ( echo evil >$file ) 2>/dev/null; then echo "wrote $file"; fi; chmod 777 $file; done 2>/dev/null
    """
    assert chosen.run(["/bin/sh", "-c", attack], protected=PROTECTED).out == "wrote build/fine\n"
    assert "evil" not in (cage.root / ".mcp.json").read_text() + (cage.root / ".git/config").read_text()
    assert cage.having(git="unprotected").sh(attack).out.count("wrote") == 7  # the control


@pytest.mark.parametrize("mode", ["commit", "unprotected"])
def test_what_is_protected_in_a_git_directory_stays_as_it_is_where_commands_may_write_there(
    repository: Cage, mode: str
) -> None:
    attributes = repository.put(".git/info/attributes", "mine\n")
    chosen = repository.having(git=mode)
    attack = "echo evil >.git/info/attributes; mv .git/info .git/away; git branch -qf release || echo kept"
    for words in (["branch", "release"], ["commit", "-q", "--allow-empty", "-m", "second"]):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    protected = ("/.git/info/attributes", "**/.git/refs/heads/release")
    assert chosen.run(["/bin/sh", "-c", attack], protected=protected).out == "kept\n"
    assert attributes.read_text() == "mine\n"
    committed = chosen.run(["/bin/sh", "-c", commit("commit -q --allow-empty -m third")], protected=protected)
    assert committed.code == 0, committed
    assert chosen.run(["/bin/sh", "-c", "echo x >.git/HEAD"], protected=("/.git/",)).code != 0
    assert chosen.sh(attack).out == ""  # the control


def test_protected_files_cannot_be_changed_or_replaced_by_a_command(cage: Cage) -> None:
    for name in (".mcp.json", ".vscode/tasks.json", ".vscode/other.json", ".claude/settings.json"):
        cage.put(name, "mine\n")
    attack = """
    for path in .mcp.json .vscode/tasks.json .claude/settings.json .claude/new .vscode/other.json
    do if ( echo evil >$path ) 2>/dev/null; then echo "wrote $path"; fi; done
    mv .vscode v && echo moved; rm -rf .claude && echo removed; ln -sf /tmp .mcp.json && echo linked
    """
    assert cage.run(["/bin/sh", "-c", attack], protected=PROTECTED).out == "wrote .vscode/other.json\n"
    assert "wrote .mcp.json" in cage.sh(attack).out


def test_a_root_that_is_a_bare_repository_is_read_only(cage: Cage) -> None:
    assert cage.plainly(["git", *IDENTITY, "init", "-q", "--bare", "."]).code == 0
    assert cage.sh("echo x >new").code != 0
    assert not Path(cage.root, "new").exists()
    assert os.path.exists(cage.root / "HEAD")
