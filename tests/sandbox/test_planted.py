"""What a run leaves behind that runs on the host, also where it takes several runs, each harmless by itself."""

from __future__ import annotations

import itertools
import os
import shlex
import tracemalloc
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import box, foreground
from codespace.sandbox.inventory import detours, git, gitstamps
from codespace.sandbox.plan import HOME

from .cage import PATH, Cage
from .test_git import EVIL, IDENTITY, commit

PROTECTED = ("/.mcp.json", "/.vscode/tasks.json", "/.claude/")
INDEXED = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),"
REWRITTEN = (
    'perl -MDigest::SHA -0777 -e \'open F, "<", ".git/index"; $_ = substr(<F>, 0, -20); %s; '
    'open F, ">", ".git/index"; print F $_ . Digest::SHA::sha1($_)\' '
)
"""Makes an index that git would not write, and believes."""
RENAMED = REWRITTEN % r"s/\Q$ARGV[0]/$ARGV[1]/ or die"


@pytest.fixture
def repository(cage: Cage) -> Cage:
    cage.put("file", "one\n")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    return cage


def mark(cage: Cage) -> Path:
    return cage.base / "home" / "ran"


def making(cage: Cage, place: str) -> str:
    """Return what makes a repository that runs a program once git enters it."""
    place = shlex.quote(place)
    return (
        f"git init -q {place} && git -C {place} {' '.join(IDENTITY)} commit -q --allow-empty -m x && "
        f"printf '%s' {shlex.quote(EVIL % mark(cage))} >>{place}/.git/config; "
    )


def runs_on_the_host(cage: Cage) -> bool:
    cage.plainly(["git", *IDENTITY, "status"])
    return mark(cage).exists()


def planting(cage: Cage, script: str) -> set[str]:
    """Run a script as the daemon does, which reads git's configuration too, and return what is told."""

    def inside() -> set[str]:
        prepared = box.Sandbox(cage.bubblewrap).prepare(
            cage.workspace, command=["/bin/sh", "-c", script], cwd=".", env={"PATH": PATH, "HOME": HOME}, protected=()
        )
        foreground.run(prepared.equipment, prepared.plan)
        return {one.path for one in prepared.planted()}

    told: set[str] = cage.does(inside)
    return told


# --- what was hidden ---


def test_what_was_hidden_before_a_run_is_not_told_after_it(cage: Cage) -> None:
    for place in ("vault/.git/config", "vault/.vscode/tasks.json", "deep/secret/.git/config", ".mcp.json"):
        cage.put(place)
    (cage.root / "deep/secret").chmod(0o311)
    os.symlink("vault", cage.root / ".claude")
    chosen = cage.having(hidden_paths=("/vault/", "secret", ".mcp.json", ".claude"))
    for script in ("true", "mv deep moved", "test -e moved"):
        done = chosen.run(["/bin/sh", "-c", script], protected=(*PROTECTED, "**/tasks.json"))
        assert (done.code, done.planted) == (0, ()), script


def test_what_a_run_makes_under_a_hidden_name_is_told(cage: Cage) -> None:
    """Also in the place of what was hidden there, which a command can move with the directory above it."""
    cage.put("deep/secret/.git/config")
    chosen = cage.having(hidden_paths=("secret", ".claude"))
    attack = "mv deep moved; mkdir -p deep/secret/.git .claude other/secret/.git"
    done = chosen.run(["/bin/sh", "-c", attack], protected=PROTECTED)
    assert set(done.planted) == {".claude", "deep/secret/.git", "other/secret/.git"}


# --- what git enters ---


@pytest.mark.parametrize(
    ("place", "spelled"),
    [
        ("evil", "evil"),
        ("deep/evil", "deep/evil"),
        ("evil", "./evil"),
        ("evil", "deep/../evil"),
        ("new\nline", "new\nline"),
        (".git/evil", ".git/evil"),
        (".git/objects/evil", ".git/objects/evil"),
    ],
)
def test_a_repository_of_an_earlier_run_that_the_index_has_git_enter_is_told_as_loud(
    repository: Cage, place: str, spelled: str
) -> None:
    """Where git writes no such name, the one with that index is."""
    chosen = repository.having(git="commit")
    made = chosen.sh(f"mkdir -p deep; {making(repository, place)}")
    assert made.loud == ()
    assert not runs_on_the_host(repository)
    stand_in = "z" * len(spelled)
    done = chosen.sh(f"{INDEXED}{stand_in} && {RENAMED} {stand_in} {shlex.quote(spelled)}")
    told = (".git",) if ".." in spelled or ".git" in spelled else (f"{place}/.git",)
    assert (done.code, done.planted, done.loud) == (0, told, told)
    assert chosen.sh("true").planted == ()
    assert runs_on_the_host(repository)  # the control: this is what it is told for


def test_a_repository_that_git_would_enter_by_a_tree_that_a_sparse_index_names_is_told_as_loud(
    repository: Cage,
) -> None:
    for place in ("deep/file", "other/file"):
        repository.put(place)
    for words in (
        ["add", "."],
        ["commit", "-qm", "x"],
        ["sparse-checkout", "set", "--cone", "--sparse-index", "other"],
    ):
        assert repository.plainly(["git", *IDENTITY, *words]).code == 0
    chosen = repository.having(git="commit")
    made = chosen.sh(f"{making(repository, 'deep/evil')} {making(repository, 'evil')}")
    assert made.loud == ("deep/evil/.git",)
    tree = "printf '160000 commit %s\\tevil\\n' $(git rev-parse HEAD) | git mktree --missing"
    replacing = REWRITTEN % "($o, $n) = map pack(q(H*), $_), @ARGV; s/\\Q$o/$n/ or die"
    assert chosen.sh(f"{replacing} $(git rev-parse HEAD:deep) $({tree})").code == 0
    assert runs_on_the_host(repository)


def test_a_submodule_of_a_tree_that_lies_elsewhere_is_looked_for_there(repository: Cage) -> None:
    assert repository.plainly(["git", "config", "core.worktree", "../deep"]).code == 0
    repository.folder("deep/sub")
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    assert repository.plainly(["git", "update-index", "--add", "--cacheinfo", f"160000,{head},sub"]).code == 0
    assert repository.sh(making(repository, "deep/sub")).code != 0
    assert repository.having(git="unprotected").sh(making(repository, "deep/sub")).loud == ("deep/sub/.git",)
    assert runs_on_the_host(repository)


@pytest.mark.parametrize("place", ["../home/mine", ".git/hooks/pre-commit"])
def test_a_submodule_in_the_index_where_a_checkout_would_remove_a_file_is_told_as_loud(
    repository: Cage, place: str
) -> None:
    victim = repository.put(place)
    chosen, stand_in = repository.having(git="commit"), "z" * len(place)
    assert chosen.sh(f"{INDEXED}{stand_in} && {RENAMED} {stand_in} {place}").loud == (".git",)
    assert repository.plainly(["git", "checkout", "--", "."]).code == 0
    assert not victim.is_file()  # the control: this is what it is told for


@pytest.mark.parametrize(
    "unread",
    [
        "touch $(seq -f many%g 100); git add many*",
        "touch abc; git add abc; " + REWRITTEN % r"s/\0\x03abc/\0\x02abc/ or die",
    ],
)
def test_an_index_that_cannot_be_looked_through_any_more_is_told(
    repository: Cage, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    """It is larger than what is looked through, or has a name that is longer than it says."""
    monkeypatch.setattr("codespace.limits.SANDBOX_INDEX_BYTES", 2_000)
    chosen = repository.having(git="commit")
    assert chosen.sh(making(repository, "evil")).loud == ()
    done = chosen.sh(f"{INDEXED}evil && {unread}")
    assert (done.code, done.loud) == (0, (".git",))
    assert chosen.sh("true").planted == ()
    assert runs_on_the_host(repository)


def with_a_part_that_git_splits(cage: Cage) -> None:
    """Give the operator's repository an index that git makes by itself, and that cannot be looked through."""
    for words in (
        ["config", "core.splitIndex", "true"],
        ["config", "splitIndex.maxPercentChange", "100"],
        ["init", "-q", "sub"],
        ["-C", "sub", "commit", "-q", "--allow-empty", "-m", "x"],
        ["-c", "advice.addEmbeddedRepo=false", "add", "sub"],
        ["update-index", "--split-index"],
        ["-C", "sub", "commit", "-q", "--allow-empty", "-m", "y"],
        ["add", "sub"],
    ):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0, words


def test_an_index_that_cannot_be_looked_through_is_told_again_where_a_run_has_changed_it(repository: Cage) -> None:
    """What was told of it once was another: git makes such indexes too, and what is in one is as little known."""
    with_a_part_that_git_splits(repository)
    chosen = repository.having(git="commit")
    assert chosen.sh("git ls-files -s").planted == ()
    name = ".git/hooks/post-checkout"
    stand_in = "z" * len(name)
    script = f"#!/bin/sh\ntouch {mark(repository)}\n"
    made = f"printf '%b' {shlex.quote(script)} >{stand_in} && chmod 755 {stand_in} && git add {stand_in}"
    whole = "git -c core.splitIndex=false update-index --no-split-index"  # of others git looks at the names
    done = chosen.sh(f"{made} && rm {stand_in} && {whole} && {RENAMED} {stand_in} {name}")
    assert (done.code, done.loud) == (0, (".git",)), done.err
    assert chosen.sh("git ls-files -s").planted == ()
    repository.plainly(["git", "checkout-index", "-a"])
    repository.plainly(["git", *IDENTITY, "checkout", "-q", "-f", "-b", "other"])
    assert mark(repository).exists()  # the control: this is what it is told for


def test_an_index_from_which_one_was_split_that_cannot_be_looked_through_is_told_where_a_run_has_changed_it(
    repository: Cage,
) -> None:
    with_a_part_that_git_splits(repository)
    chosen = repository.having(git="commit")
    (shared,) = (repository.root / ".git").glob("sharedindex.*")
    writing = f"perl -pi -e 's/file/evil/' {shared}"
    assert chosen.sh(f"touch {shared} .git/index.more").planted == ()
    assert chosen.sh(writing).loud == (".git",)
    assert repository.plainly(["git", "ls-files"]).out == "evil\nsub\n"  # the control: git believes it
    assert repository.sh(f"rm {shared}").code != 0  # it is read-only


def test_an_index_that_no_command_may_write_is_not_told_where_another_program_changes_it(repository: Cage) -> None:
    with_a_part_that_git_splits(repository)

    def changing() -> list[str]:
        prepared = repository.prepare(["/bin/true"], cwd=".", env={"PATH": PATH, "HOME": HOME})
        index = repository.root / ".git/index"
        index.write_bytes(index.read_bytes() + b"more")
        foreground.run(prepared.equipment, prepared.plan)
        return [one.path for one in prepared.planted()]

    assert repository.does(changing) == []


def test_an_index_that_names_no_submodule_or_is_none_is_not_told(repository: Cage) -> None:
    chosen = repository.having(git="commit")
    assert chosen.sh(f"mkdir none; {INDEXED}none && {INDEXED}absent; echo x >absent").planted == ()
    assert chosen.sh(commit("rm -q --cached none absent && git add file && git commit -qm x")).planted == ()
    assert chosen.sh("echo none >.git/index").planted == ()


# --- what makes a repository ---


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("shared", r"../../shared\n"),
        ("shared", r"../../shared\r\n"),
        ("sha\nred", r"../../sha\nred\n"),
        ("shared", r"../../shared\0x\n"),
    ],
)
def test_the_shared_part_of_a_repository_is_no_commands_also_where_it_is_none_by_itself(
    cage: Cage, monkeypatch: pytest.MonkeyPatch, place: str, said: str, is_there: bool
) -> None:
    """A run makes `sub/.git` without a configuration, and is told; another would give it one elsewhere."""
    monkeypatch.setenv("HOME", str(cage.base / "home"))
    making_it = f"mkdir -p sub/.git; echo ref: refs/heads/main >sub/.git/HEAD; printf '{said}' >sub/.git/commondir"
    shared = shlex.quote(place)
    assert planting(cage, f"{making_it}; {f'mkdir {shared}' if is_there else 'true'}") == {"sub/.git"}
    configuration = shlex.quote(EVIL % mark(cage))
    attack = f"mkdir -p {shared}/objects {shared}/refs; printf '%s' {configuration} >{shared}/config"
    assert planting(cage, attack) == (set() if is_there else {place})
    cage.plainly(["git", "status"], cwd=str(cage.root / "sub"))
    assert mark(cage).exists() is not is_there  # where it was told, that is the control


@pytest.mark.parametrize("last", [r"x\0y\n", r"\0", r"/\0/\r"])
def test_a_path_with_a_nul_in_what_a_gitfile_leads_to_is_read_up_to_it(
    cage: Cage, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setenv("HOME", str(cage.base / "home"))
    assert planting(cage, r"mkdir sub; printf 'gitdir: ../store\0x\n' >sub/.git") == {"sub/.git"}
    planting(cage, f"mkdir store; printf '{last}' >store/commondir")
    assert planting(cage, "true") == set()


@pytest.mark.parametrize(
    ("place", "spelled"), [(".git/hooks/post-index-change", None), ("../home/.profile", None), ("HOME", "/.profile")]
)
def test_a_name_in_the_index_that_has_a_checkout_write_where_none_may_is_told_as_loud(
    repository: Cage, place: str, spelled: str | None
) -> None:
    chosen = repository.having(git="commit")
    written = repository.root / place if spelled is None else repository.base / "home" / spelled[1:]
    name = place if spelled is None else str(written)
    stand_in = "z" * len(name)
    making_it = f"echo evil >{stand_in} && git add {stand_in} && rm {stand_in}" if "/" not in stand_in else "false"
    done = chosen.sh(f"{making_it} && {RENAMED} {stand_in} {shlex.quote(name)}")
    assert (done.code, done.loud) == (0, (".git",)), done.err
    assert chosen.sh("true").planted == ()
    repository.plainly(["git", *IDENTITY, "checkout-index", "-a"])
    assert written.read_text() == "evil\n"  # the control: this is what it is told for


HOOK = "#!/bin/sh\ntouch %s\n"


@pytest.fixture
def linked(repository: Cage) -> Cage:
    """A workspace that is a linked worktree, with another one in it, of a repository outside."""
    for place in ("../tree", "../tree/inner"):
        assert repository.plainly(["git", *IDENTITY, "worktree", "add", "-q", place]).code == 0
    return repository.having(root=str(repository.base / "tree"), git="commit")


@pytest.mark.parametrize(
    ("own", "tree", "name"),
    [
        (".git", "root", ".git/hooks/post-checkout"),
        (".git/worktrees/inner", "tree/inner", "../../root/.git/hooks/post-checkout"),
    ],
)
def test_a_name_that_leads_astray_in_an_index_of_a_repository_outside_is_told_as_loud(
    linked: Cage, own: str, tree: str, name: str
) -> None:
    whole, stand_in, where = f"{linked.base}/root/{own}", "z" * len(name), str(linked.base / tree)
    index = f"GIT_INDEX_FILE={whole}/index"
    assert linked.sh(f"{index} git update-index --refresh && touch file && {commit()}").planted == ()
    hook = f"printf '%b' {shlex.quote(HOOK % mark(linked))} | git hash-object -w --stdin"
    adding = f"{index} git update-index --add --cacheinfo 100755,$({hook}),{stand_in}"
    done = linked.sh(f"{adding} && {RENAMED.replace('.git/index', f'{whole}/index')} {stand_in} {name}")
    assert (done.code, done.loud) == (0, (whole,)), done.err
    assert linked.sh("true").planted == ()
    linked.plainly(["git", "checkout-index", "-a"], cwd=where)
    linked.plainly(["git", *IDENTITY, "checkout", "-q", "-f", "-b", "other"], cwd=where)
    assert mark(linked).exists()  # the control: this is what it is told for


@pytest.mark.parametrize(("name", "is_bare"), [(".git/evil", False), ("store/evil", True)])
def test_a_repository_in_a_repository_outside_that_an_index_there_has_git_enter_is_told_as_loud(
    linked: Cage, name: str, is_bare: bool
) -> None:
    """By whatever name: a repository that is not called `.git` can lie in its tree all the same."""
    top = linked.base / "root"
    if is_bare:
        linked.plainly(["mv", ".git", "store"], cwd=str(top))
        linked.plainly(["sh", "-c", "echo gitdir: store >.git && git worktree repair"], cwd=str(top))
    whole, stand_in = top / os.path.dirname(name), "z" * len(name)
    assert linked.sh(making(linked, str(top / name))).planted == ()
    index = f"GIT_INDEX_FILE={whole}/index {INDEXED}{stand_in}"
    done = linked.sh(f"{index} && {RENAMED.replace('.git/index', f'{whole}/index')} {stand_in} {name}")
    assert (done.code, done.loud) == (0, (str(whole),)), done.err
    linked.plainly(["git", *IDENTITY, "status"], cwd=str(top))
    assert mark(linked).exists()  # the control: this is what it is told for


def test_where_an_index_outside_expects_a_submodule_in_the_workspace_none_can_be_put(linked: Cage) -> None:
    assert linked.sh(f"mkdir inner/sub; cd inner && {INDEXED}sub").code == 0
    assert linked.sh(making(linked, "inner/sub")).code != 0


def test_a_name_in_the_index_of_a_repository_whose_tree_lies_elsewhere_is_told_as_loud(repository: Cage) -> None:
    """Nothing that lies in it, or leads to it, is called `.git`."""
    tree = repository.base / "home" / "tree"
    store, name = repository.root / "store", "../../root/store/hooks/post-checkout"
    assert repository.plainly(["git", "init", "-q", f"--separate-git-dir={store}", str(tree)]).code == 0
    chosen = repository.having(git="commit")
    script, stand_in = shlex.quote(f"#!/bin/sh\ntouch {mark(repository)}\n"), "z" * len(name)
    adding = f"printf '%b' {script} | git hash-object -w --stdin"
    done = chosen.sh(
        f"export GIT_DIR=store; git update-index --add --cacheinfo 100755,$({adding}),{stand_in} && "
        f"{RENAMED.replace('.git/index', 'store/index')} {stand_in} {name}"
    )
    assert (done.code, done.loud) == (0, ("store",)), done.err
    assert chosen.sh("true").planted == ()
    repository.plainly(["git", "checkout-index", "-a"], cwd=str(tree))
    repository.plainly(["git", *IDENTITY, "commit", "-qam", "x"], cwd=str(tree))
    repository.plainly(["git", "checkout", "-q", "-b", "other"], cwd=str(tree))
    assert mark(repository).exists()  # the control: this is what it is told for


# --- what cannot be looked into ---


def test_a_repository_in_a_closed_directory_is_told_where_git_enters_it(repository: Cage) -> None:
    """git opens what it knows the name of; only a listing needs more than that."""
    head = repository.plainly(["git", "rev-parse", "HEAD"]).out.strip()
    assert repository.plainly(["git", "update-index", "--add", "--cacheinfo", f"160000,{head},sub"]).code == 0
    done = repository.sh(f"{making(repository, 'sub')} chmod 111 sub")
    assert done.code == 0
    assert "sub/.git" in done.loud
    assert runs_on_the_host(repository)


def test_a_directory_that_a_run_closed_is_told_as_it_may_hold_what_an_editor_runs(cage: Cage) -> None:
    attack = "mkdir -p .vscode fine; echo evil >.vscode/tasks.json; chmod 111 .vscode"
    done = cage.run(["/bin/sh", "-c", attack], protected=PROTECTED)
    assert done.planted == ((".vscode/tasks.json",) if cage.uid == 0 else (".vscode",))
    assert cage.plainly(["/bin/cat", ".vscode/tasks.json"]).out == "evil\n"
    assert cage.run(["/bin/sh", "-c", "chmod 755 .vscode; true"], protected=PROTECTED).planted == ()


@pytest.mark.parametrize(
    ("place", "is_loud"), [("build", False), (".vscode", True), (".VSCode", True), (".claude", True), (".git", True)]
)
def test_a_closed_directory_is_told_as_loud_where_its_name_is_one_that_the_host_looks_for(
    cage: Cage, place: str, is_loud: bool
) -> None:
    done = cage.run(["/bin/sh", "-c", f"mkdir {place}; chmod 311 {place}"], protected=PROTECTED)
    is_told = cage.uid != 0 or place in (".claude", ".git")  # nothing is closed to root
    assert (done.planted, done.loud) == ((place,) if is_told else (), (place,) if is_told and is_loud else ())
    (cage.root / place).chmod(0o755)


def test_what_an_editor_runs_at_the_root_is_told_as_loud_also_in_a_directory(cage: Cage) -> None:
    attack = "mkdir -p .vscode sub/.vscode sub/.hg; echo evil | tee .vscode/tasks.json >sub/.vscode/tasks.json"
    done = cage.run(["/bin/sh", "-c", attack], protected=(*PROTECTED, ".hg/"))
    assert (done.planted, done.loud) == ((".vscode/tasks.json", "sub/.hg"), (".vscode/tasks.json",))


def test_a_root_that_a_run_closed_is_told_as_loud(cage: Cage) -> None:
    done = cage.run(["/bin/sh", "-c", "mkdir .vscode; echo evil >.vscode/tasks.json; chmod 311 ."], protected=PROTECTED)
    assert done.loud == ((".vscode/tasks.json",) if cage.uid == 0 else (".",))
    cage.root.chmod(0o755)


# --- links ---


def test_a_link_on_the_way_to_what_is_protected_is_told_and_what_it_leads_to_is_protected(cage: Cage) -> None:
    def run(script: str) -> tuple[str, ...]:
        return cage.run(["/bin/sh", "-c", f"{{ {script}; }} 2>/dev/null"], protected=PROTECTED).planted

    assert run("mkdir -p build/more; echo fine >build/tasks.json") == ()
    assert run("ln -s build/more .vscode") == (".vscode",)
    assert run("echo evil >build/more/tasks.json") == ("build/more/tasks.json",)
    assert run("echo worse >build/more/tasks.json; mv build/more moved; rm -rf build/more") == ()
    assert (cage.root / ".vscode/tasks.json").read_text() == "evil\n"
    assert run("rm .vscode; ln -s build .vscode") == ("build/tasks.json",)
    assert run("echo evil >build/tasks.json") == ()
    assert (cage.root / ".vscode/tasks.json").read_text() == "fine\n"


def test_a_link_that_leads_to_the_root_protects_what_lies_there(cage: Cage) -> None:
    def run(script: str) -> tuple[str, ...]:
        return cage.run(["/bin/sh", "-c", f"{{ {script}; }} 2>/dev/null"], protected=PROTECTED).planted

    assert run("echo fine >tasks.json; ln -s . .vscode") == (".vscode", "tasks.json")
    assert run("echo evil >tasks.json") == ()
    assert (cage.root / ".vscode/tasks.json").read_text() == "fine\n"


def test_where_a_link_leads_in_a_directory_that_can_be_entered_but_not_listed_is_known(cage: Cage) -> None:
    """An editor opens what it knows the name of, and patches go by this."""
    cage.folder(".vscode").chmod(0o311)
    os.symlink("../build/t", cage.root / ".vscode/tasks.json")

    def look() -> dict[str, str]:
        with Root.open(str(cage.root)) as root:
            return detours.behind(root, PROTECTED)

    assert cage.does(look) == {"/build/t": ".vscode/tasks.json"}
    (cage.root / ".vscode").chmod(0o755)


@pytest.mark.parametrize(
    "leads",
    ["/proc/self/cwd/build", "/proc/thread-self/cwd/build", "/dev/fd/../cwd/build", "/proc/self/cwd/../root/build"],
)
def test_a_link_that_leads_elsewhere_for_everybody_who_looks_is_told_and_no_command_runs_behind_it(
    cage: Cage, leads: str
) -> None:
    """An editor that is started in the workspace comes to its `build`, the daemon to a place of its own."""

    def prepare(script: str) -> box.Prepared:
        return box.Sandbox(cage.bubblewrap).prepare(
            cage.workspace,
            command=["/bin/sh", "-c", script],
            cwd=".",
            env={"PATH": PATH, "HOME": HOME},
            protected=PROTECTED,
        )

    def plant() -> set[str]:
        prepared = prepare(f"mkdir build; echo evil >build/tasks.json; ln -s {leads} .vscode")
        foreground.run(prepared.equipment, prepared.plan)
        return {one.path for one in prepared.planted()}

    assert cage.does(plant) == {".vscode"}
    assert cage.plainly(["/bin/cat", ".vscode/tasks.json"]).out == "evil\n"
    with pytest.raises(Refusal, match=r"\.vscode: a symbolic link"):
        cage.does(lambda: prepare("echo worse >build/tasks.json"))
    (cage.root / ".vscode").unlink()
    cage.does(lambda: prepare("true"))


def test_a_link_of_the_operators_on_the_way_leaves_commands_their_work(cage: Cage) -> None:
    os.symlink(cage.base / "home", cage.root / ".vscode")
    done = cage.run(["/bin/sh", "-c", "echo x >made"], protected=PROTECTED)
    assert (done.code, done.planted) == (0, ())
    replacing = "rm .vscode; mkdir .vscode; echo evil >.vscode/tasks.json"
    assert cage.run(["/bin/sh", "-c", replacing], protected=PROTECTED).planted == (".vscode/tasks.json",)


@pytest.mark.parametrize("link", ["COMMIT_EDITMSG", "logs/refs/heads/x", "worktrees/tree/ORIG_HEAD"])
def test_a_link_that_a_command_leaves_in_a_worktrees_repository_outside_is_told(cage: Cage, link: str) -> None:
    home, tree = cage.base / "home" / "project", cage.base / "tree"
    profile = cage.put(f"{cage.base}/home/.profile", "mine\n")
    for words in (
        ["init", "-q", str(home)],
        ["-C", str(home), "commit", "-q", "--allow-empty", "-m", "first"],
        ["-C", str(home), "worktree", "add", "-q", str(tree)],
    ):
        assert cage.plainly(["git", *IDENTITY, *words]).code == 0
    chosen = cage.having(root=str(tree), git="commit")
    assert chosen.sh(commit("commit -q --allow-empty -m second")).planted == ()
    done = chosen.sh(f"mkdir -p {home}/.git/{os.path.dirname(link)}; ln -sf {profile} {home}/.git/{link}")
    assert (done.code, done.planted) == (0, (f"{home}/.git/{link}",))
    assert chosen.sh(commit("commit -q --allow-empty -m third")).code != 0  # it is read-only from then on
    if link == "COMMIT_EDITMSG":  # the control: this is what it is told for
        cage.plainly(["git", "-C", str(home), *IDENTITY, "commit", "-q", "--allow-empty", "-m", "evil"])
        assert profile.read_text() == "evil\n"


def test_a_link_that_a_command_leaves_in_a_bare_repository_is_told(repository: Cage) -> None:
    assert repository.plainly(["git", "clone", "-q", "--bare", ".", "stores/bare"]).code == 0
    profile = repository.put(f"{repository.base}/home/.profile", "mine\n")
    chosen = repository.having(git="commit")
    assert chosen.sh(f"ln -sf {profile} stores/bare/FETCH_HEAD").planted == ("stores/bare/FETCH_HEAD",)
    assert chosen.sh("true").planted == ()
    repository.plainly(["git", "-C", "stores/bare", "fetch", "-q", "../.."])  # the control: this is what it is told for
    assert profile.read_text() != "mine\n"


@pytest.mark.parametrize("lies_outside", [False, True])
def test_a_repository_that_takes_long_to_look_through_for_links_is_read_only_and_told(
    repository: Cage, monkeypatch: pytest.MonkeyPatch, lies_outside: bool
) -> None:
    """A command can make as many directories as it likes where it may commit."""
    place, chosen = ".git", repository.having(git="commit")
    if lies_outside:
        place, tree = f"{repository.base}/home/project/.git", repository.base / "tree"
        for words in (["clone", "-q", ".", place[:-5]], ["-C", place[:-5], "worktree", "add", "-q", str(tree)]):
            assert repository.plainly(["git", *IDENTITY, *words]).code == 0
        chosen = chosen.having(root=str(tree))

    class Clock:
        """It goes on by the hundredth part of the time for a look, each time that it is looked at."""

        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 100).__next__

    monkeypatch.setattr(git, "time", Clock)
    monkeypatch.setattr(gitstamps, "time", Clock)
    assert chosen.sh(commit("commit -q --allow-empty -m second")).planted == ()
    done = chosen.sh(f"cd {place}/refs && mkdir $(seq 120)")
    assert (done.code, done.planted) == (0, (place,) if lies_outside else ())
    assert chosen.sh(commit("commit -q --allow-empty -m third")).code != 0
    repository.plainly(["sh", "-c", f"rmdir {place}/refs/[0-9]*"])
    assert chosen.sh(commit("commit -q --allow-empty -m third")).code == 0


@pytest.mark.parametrize("place", [".git", "stores/bare"])
@pytest.mark.parametrize(
    "link",
    [
        "objects/info/commit-graph",
        "objects/info",
        "objects/pack/multi-pack-index",
        "objects/info/commit-graphs/commit-graph-chain",
        "objects/ab",
        "lfs/objects/ab/cd",
        "annex/objects/ab/cd",
    ],
)
def test_a_link_that_a_command_leaves_among_the_data_of_a_repository_is_told(
    repository: Cage, place: str, link: str
) -> None:
    assert repository.plainly(["git", "clone", "-q", "--bare", ".", "stores/bare"]).code == 0
    profile = repository.put(f"{repository.base}/home/.profile", "mine\n")
    chosen = repository.having(git="commit")
    above = os.path.dirname(link)
    script = f"cd {place} && mkdir -p {above} && rm -rf {link} && ln -s {profile} {link}"
    assert chosen.sh(script).planted == (f"{place}/{link}",)
    assert chosen.sh(f"echo x >{place}/{above}/more").code != 0  # it is read-only from then on
    if link == "objects/info/commit-graph":  # the control: this is what it is told for
        repository.plainly(["git", "-C", place, "gc", "-q"])
        assert profile.read_bytes() != b"mine\n"


def test_data_of_a_repository_is_not_looked_through_one_by_one(
    repository: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("objects/ab", "lfs/objects/ab/cd", "annex/objects/ab/cd/key"):
        repository.folder(f".git/{place}")
    listed: list[str] = []
    with Root.open(str(repository.root)) as root:
        opening = root.open_listing
        monkeypatch.setattr(root, "open_listing", lambda path: listed.append(path) or opening(path))
        assert list(git.links(root, ".git", git.deadline())) == []
    data = {path.removeprefix(".git/") for path in listed if "objects" in path}
    assert data == {
        "objects",
        "objects/info",
        "objects/pack",
        *(f"{of}/objects{below}" for of in ("lfs", "annex") for below in ("", "/ab")),
    }


def test_files_of_a_repository_are_not_kept_while_it_is_looked_through_for_links(repository: Cage) -> None:
    """A command can make as many as it likes in one directory."""
    folder = repository.folder(".git/objects/many")
    for number in range(5_000):
        os.close(os.open(folder / f"file{number}", os.O_CREAT | os.O_WRONLY))
    os.symlink("x", folder / "link")
    with Root.open(str(repository.root)) as root:
        tracemalloc.start()
        try:
            assert list(git.links(root, ".git", git.deadline())) == [".git/objects/many/link"]
            assert tracemalloc.get_traced_memory()[1] < 300_000
        finally:
            tracemalloc.stop()


# --- what git has in hand ---


PROMPT = """
. /usr/lib/git-core/git-sh-prompt && __git_ps1 x y && : "${PS1@P}"
"""


def counting(cage: Cage, place: str) -> str:
    return f"""
    mkdir -p {place}/rebase-merge && cd {place}/rebase-merge && echo refs/heads/main >head-name && echo 3 >end &&
    echo '$(touch {mark(cage)})' >msgnum
    """


def test_a_rebase_that_a_command_left_is_told_as_loud_as_the_hosts_prompt_runs_what_it_says(repository: Cage) -> None:
    chosen = repository.having(git="commit")
    done = chosen.sh(counting(repository, ".git"))
    assert (done.code, done.planted, done.loud) == (0, (".git/rebase-merge",), (".git/rebase-merge",))
    assert chosen.sh("git status").planted == ()
    repository.plainly(["bash", "-c", PROMPT])
    assert mark(repository).exists()  # the control: this is what it is told for


def test_a_rebase_of_the_operators_that_a_command_changed_is_told(repository: Cage) -> None:
    chosen = repository.having(git="commit")
    repository.put(".git/rebase-apply/next", "1\n")
    assert chosen.sh("cat .git/rebase-apply/next").planted == ()
    assert chosen.sh("echo evil >.git/rebase-apply/next").planted == (".git/rebase-apply",)
    assert repository.sh("echo evil >.git/rebase-apply/next").planted == ()  # it is read-only
    assert chosen.sh("mkdir .git/sequencer").loud == (".git/sequencer",)
    assert chosen.sh("rm -r .git/sequencer .git/rebase-apply").planted == ()


def test_a_rebase_in_a_linked_worktree_and_in_a_repository_outside_is_told(repository: Cage) -> None:
    tree = repository.base / "tree"
    for place in ("inside", str(tree)):
        assert repository.plainly(["git", *IDENTITY, "worktree", "add", "-q", place]).code == 0
    own = ".git/worktrees/inside"
    assert repository.having(git="commit").sh(counting(repository, own)).planted == (f"{own}/rebase-merge",)
    chosen, whole = repository.having(root=str(tree), git="commit"), f"{repository.root}/.git/worktrees/tree"
    assert chosen.sh(counting(repository, whole)).loud == (f"{whole}/rebase-merge",)
    assert chosen.sh("git status").planted == ()
    assert chosen.sh(f"echo 2 >{whole}/rebase-merge/msgnum").planted == (f"{whole}/rebase-merge",)


def test_files_that_the_next_commit_would_write_over_are_told_as_loud(repository: Cage) -> None:
    """Also where an empty file had been left, as after a conflict that is resolved."""
    hook = repository.put(".git/hooks/pre-commit", "#!/bin/sh\n", 0o755)
    repository.put(".git/MERGE_RR", "")
    chosen, name = repository.having(git="commit"), "a" * 40
    recorded = f"mkdir -p .git/rr-cache/{name} && cd .git/rr-cache/{name} && cp ../../hooks/pre-commit preimage"
    told = f"echo evil >postimage && printf '{name}.-1\\t.git/hooks/pre-commit\\0' >../../MERGE_RR"
    assert chosen.sh(f"{recorded} && {told}").loud == (".git/MERGE_RR",)
    assert chosen.sh("git status").planted == ()
    assert repository.plainly(["git", *IDENTITY, "commit", "-q", "--allow-empty", "-m", "second"]).code == 0
    assert hook.read_text() == "evil\n"  # the control: this is what it is told for


def test_a_stash_that_the_next_commit_would_take_is_told_as_loud(repository: Cage) -> None:
    chosen = repository.having(git="commit")
    attack = f"""
    export GIT_INDEX_FILE=/tmp/index && git read-tree HEAD && evil=$(echo evil | git hash-object -w --stdin) &&
    git update-index --add --cacheinfo 100644,$evil,.vscode/tasks.json && tree=$(git write-tree) &&
    index=$({commit("commit-tree HEAD^{tree} -p HEAD -m x")}) &&
    {commit("commit-tree $tree -p HEAD -p $index -m x")} >.git/MERGE_AUTOSTASH
    """
    done = chosen.sh(attack)
    assert (done.code, done.loud) == (0, (".git/MERGE_AUTOSTASH",)), done.err
    assert repository.plainly(["git", *IDENTITY, "commit", "-q", "--allow-empty", "-m", "second"]).code == 0
    assert (repository.root / ".vscode/tasks.json").exists()  # the control: this is what it is told for


def test_of_conflicts_whose_resolution_git_records_only_one_that_a_command_left_is_told(repository: Cage) -> None:
    assert repository.plainly(["git", "config", "rerere.enabled", "true"]).code == 0
    chosen = repository.having(git="commit")
    branches = f"echo a >file; {commit('commit -qam a')}; git checkout -qb other HEAD~1; echo b >file;"
    branches += f"{commit('commit -qam b')}; {commit('merge -q -')};"
    assert chosen.sh(f"{branches} echo c >file; {commit('commit -qam c')}").planted == ()
    assert (repository.root / ".git/MERGE_RR").read_bytes() == b""  # the control: there was a conflict
    again = "git checkout -qb more HEAD~1; echo d >file;"
    done = chosen.sh(f"{again} {commit('commit -qam d')}; {commit('merge -q other')}")
    assert done.planted == (".git/MERGE_RR",)


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("lies_outside", [False, True])
def test_a_worktree_that_a_command_left_whose_tree_is_elsewhere_is_told(
    repository: Cage, lies_outside: bool, is_linked: bool
) -> None:
    """A link on the way lies in the workspace, and what it leads to may not."""
    home, chosen = repository.folder(f"{repository.base}/home/mine"), repository.having(git="commit")
    own = f"{repository.root}/.git/worktrees/evil"
    for place in (repository.base / "tree", "inside"):
        assert repository.plainly(["git", *IDENTITY, "worktree", "add", "-q", str(place)]).code == 0
    if lies_outside:
        chosen = chosen.having(root=str(repository.base / "tree"))
    tree = f"{chosen.root}/mine" if is_linked else home
    said = f"echo {tree}/.git >{own}/gitdir; echo ../.. >{own}/commondir; echo ref: refs/heads/evil >{own}/HEAD"
    done = chosen.sh(f"mkdir {own} && {{ {said}; }}; ln -s {home} mine; git worktree add -q more")
    told = own if lies_outside else ".git/worktrees/evil"
    assert (done.code, set(done.planted)) == (0, {told, "more/.git"}), done.err
    assert chosen.sh("true").planted == ()
    repository.plainly(["git", "worktree", "repair"])
    assert (home / ".git").exists()  # the control: this is what it is told for


def test_a_linked_worktree_whose_name_has_odd_characters_is_read_only_and_told_where_its_tree_is_elsewhere(
    repository: Cage,
) -> None:
    """git makes no such name, and goes by it."""
    chosen = repository.having(git="commit")
    own = r'own="$(pwd)/.git/worktrees/$(printf "e\\001vil")"; mkdir -p "$own" && cd "$own" && '
    own += 'echo ../.. >commondir && echo ref: refs/heads/evil >HEAD && cd ../../.. && echo "{}/.git" >"$own/gitdir"'
    here = own.format("$(pwd)/sub") + ' && mkdir sub && echo "gitdir: $own" >sub/.git'
    done = chosen.sh(here)
    assert (done.code, done.planted) == (0, ("sub/.git",)), done.err
    assert repository.plainly(["git", "-C", "sub", "rev-parse", "--git-dir"]).code == 0  # the control: git takes it
    assert chosen.sh("for own in .git/worktrees/*; do echo ../../evil >$own/commondir; done").code != 0
    done = chosen.sh(own.replace("001", "002").format("/elsewhere"))
    assert (done.code, done.planted) == (0, (".git/worktrees/e\2vil",)), done.err


def test_a_worktree_elsewhere_is_the_same_where_git_says_again_where_it_is(repository: Cage) -> None:
    """It does so every day."""
    assert repository.plainly(["git", *IDENTITY, "worktree", "add", "-q", "../tree"]).code == 0
    gitdir, seen = repository.root / ".git/worktrees/tree/gitdir", []
    with Root.open(str(repository.root)) as root:
        for _ in range(2):
            seen.append(gitstamps.in_hand(root, ".git", gitstamps.Stamps()))
            gitdir.write_bytes(gitdir.read_bytes())
        assert (seen[0], seen[0].keys()) == (seen[1], {".git/worktrees/tree"})
        gitdir.write_bytes(b"/elsewhere/.git\n")
        assert gitstamps.in_hand(root, ".git", gitstamps.Stamps()) != seen[0]


@pytest.mark.parametrize("place", [".git/rebase-merge", "OUTSIDE"])
def test_what_git_has_in_hand_is_looked_at_up_to_a_bound_and_refused_beyond_it(
    repository: Cage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A command can make as many files there as it likes: each costs time, and room for as long as the run lasts."""
    monkeypatch.setattr(gitstamps, "_MOST_STAMPS", 100)
    chosen = repository.having(git="commit")
    if place == "OUTSIDE":
        tree = repository.base / "tree"
        assert repository.plainly(["git", "worktree", "add", "-q", str(tree)]).code == 0
        chosen, place = repository.having(root=str(tree), git="commit"), f"{repository.root}/.git/sequencer"
    assert chosen.sh(f"mkdir {place}; cd {place}; touch $(seq 99)").planted == (place,)
    assert chosen.sh("true").planted == ()
    with pytest.raises(Refusal, match=f"{place} is too many files") as refused:
        chosen.sh(f"touch {place}/100")  # by the look after it
    assert (refused.value.code, (repository.root / place / "100").exists()) == ("SANDBOX_UNAVAILABLE", True)
    with pytest.raises(Refusal, match=f"{place} is too many files"):
        chosen.sh("touch ran")
    assert not (Path(chosen.workspace.root) / "ran").exists()
    assert repository.sh("true").code == 0  # no command writes there


def test_files_in_hand_count_in_all_repositories_together(repository: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gitstamps, "_MOST_STAMPS", 100)
    for place in ("one", "two"):
        assert repository.plainly(["git", "init", "-q", place]).code == 0
        for number in range(60):
            repository.put(f"{place}/.git/rebase-apply/{number}")
    with pytest.raises(Refusal, match="too many files"):
        repository.having(git="commit").sh("true")


def test_more_files_in_hand_than_are_looked_at_are_not_even_listed(repository: Cage) -> None:
    folder = repository.folder(".git/rebase-merge")
    for number in range(30_000):
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY))
    with Root.open(str(repository.root)) as root:
        tracemalloc.start()
        try:
            with pytest.raises(Refusal, match="too many files"):
                gitstamps.in_hand(root, ".git", gitstamps.Stamps())
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()


def test_worktrees_that_take_long_to_be_looked_at_are_refused_and_not_waited_for(
    repository: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        repository.folder(f".git/worktrees/{number}")

    class Clock:
        """It goes on by the hundredth part of the time for a look, each time that it is looked at."""

        monotonic = itertools.count(0, limits.SANDBOX_SCAN_SECONDS / 100).__next__

    with Root.open(str(repository.root)) as root:
        assert gitstamps.in_hand(root, ".git", gitstamps.Stamps()) == {}
        monkeypatch.setattr(gitstamps, "time", Clock)
        with pytest.raises(Refusal, match="has in hand in the workspace took over") as refused:
            gitstamps.in_hand(root, ".git", gitstamps.Stamps())
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
