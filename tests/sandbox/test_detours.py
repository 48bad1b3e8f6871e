"""Links that lie in a protected directory: what they lead to is read by the names that are protected."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

import pytest

from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.runner.protected import PROTECTED
from codespace.sandbox import box, foreground
from codespace.sandbox.inventory import detours
from codespace.sandbox.plan import HOME

from .cage import PATH, Cage


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with Root.open(str(tmp_path)) as opened:
        yield opened


def link(root: Root, name: str, leads: str) -> None:
    path = Path(root.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(leads)


def prepared(cage: Cage, script: str) -> box.Prepared:
    return box.Sandbox(cage.bubblewrap).prepare(
        cage.workspace,
        command=["/bin/sh", "-c", f"{{ {script}; }} 2>/dev/null"],
        cwd=".",
        env={"PATH": PATH, "HOME": HOME},
        protected=PROTECTED,
    )


def run(cage: Cage, script: str) -> set[str]:
    """Run a script as the daemon does, and return what is told."""

    def inside() -> set[str]:
        one = prepared(cage, script)
        foreground.run(one.equipment, one.plan)
        return {found.path for found in one.planted()}

    told: set[str] = cage.does(inside)
    return told


# --- commands ---


@pytest.mark.parametrize("name", [".claude/settings.json", ".cursor/mcp.json", ".husky/pre-commit"])
def test_what_a_link_in_a_protected_directory_leads_to_is_no_commands_to_write(cage: Cage, name: str) -> None:
    directory = posixpath.dirname(name)
    told = run(cage, f"mkdir build {directory}; echo fine >build/it; ln -s ../build/it {name}")
    assert told == {directory, "build/it"}
    assert run(cage, "echo evil >build/it; mv build gone; rm -rf build") == set()
    assert (cage.root / name).read_text() == "fine\n"


def test_what_is_put_where_such_a_link_leads_is_told(cage: Cage) -> None:
    assert run(cage, "mkdir .claude; ln -s ../build/it .claude/settings.json") == {".claude"}
    assert run(cage, "mkdir build; echo evil >build/it") == {"build/it"}
    assert run(cage, "echo worse >build/it") == set()
    assert (cage.root / ".claude/settings.json").read_text() == "evil\n"


def test_links_in_what_such_a_link_leads_to_are_followed_too(cage: Cage) -> None:
    run(
        cage,
        "mkdir .claude skills build; ln -s ../skills .claude/skills; ln -s ../build/it skills/it; echo fine >build/it",
    )
    assert run(cage, "echo evil >build/it; rm skills/it; echo evil >skills/it") == set()
    assert (cage.root / ".claude/skills/it").read_text() == "fine\n"


def test_a_link_that_is_swapped_on_the_way_out_of_a_protected_directory_is_told(cage: Cage) -> None:
    run(cage, "mkdir .claude build; ln -s ../build/it .claude/settings.json; echo fine >other; ln -s ../other build/it")
    assert run(cage, "rm build/it; echo evil >build/it") == {"build/it"}
    assert run(cage, "rm build/it; mkdir more; ln -s ../more build/it") == set()


def test_no_command_runs_where_a_link_in_a_protected_directory_leads_elsewhere_for_everybody(cage: Cage) -> None:
    os.symlink("/proc/self/cwd/build", cage.folder(".claude") / "settings.json")
    with pytest.raises(Refusal, match=r"\.claude/settings\.json: a symbolic link"):
        cage.does(lambda: prepared(cage, "true"))


def test_no_command_runs_where_not_every_link_could_be_followed(cage: Cage) -> None:
    deep = cage.folder(".claude") / "/".join(["d"] * 40)
    cage.folder(str(deep.relative_to(cage.root)))
    with pytest.raises(Refusal, match=r"followed in \.claude") as refusal:
        cage.does(lambda: prepared(cage, "true"))
    assert refusal.value.code == "SANDBOX_UNAVAILABLE"


def test_links_in_what_only_gits_configuration_names_are_gits_to_follow(cage: Cage) -> None:
    """`node_modules/.bin` holds hundreds, and git runs one."""
    cage.folder("bin")
    for name in ("x", "y"):
        cage.put(f"tool/{name}", "fine\n")
        os.symlink(f"../tool/{name}", cage.root / "bin" / name)
    assert cage.plainly(["git", "init", "-q"]).code == 0
    assert cage.plainly(["git", "config", "core.pager", str(cage.root / "bin/x")]).code == 0
    assert run(cage, "echo new >tool/y; echo new >tool/x") == set()
    assert [(cage.root / "tool" / name).read_text() for name in ("x", "y")] == ["fine\n", "new\n"]


# --- what is found ---


@pytest.mark.parametrize(
    ("name", "leads", "glob"),
    [
        (".claude/a/b/c", "../../../build/c", "/build/c"),
        (".config/mise/conf.d/x.toml", "../../../build/x", "/build/x"),
        (".hg/hgrc", "../build/hgrc", "/build/hgrc"),
        (".jj/repo/store/git_target", "../../../build/t", "/build/t"),
        (".Claude/x", "../build/[x]", "/build/?x?"),
        (".claude/x", "..", "/**"),
    ],
)
def test_the_place_that_a_link_leads_to_is_protected_and_closed_to_patches(
    root: Root, name: str, leads: str, glob: str
) -> None:
    link(root, name, leads)
    assert detours.look(root, PROTECTED) == detours.Detours(globs=(glob,))
    assert detours.behind(root, PROTECTED) == {glob: name}


@pytest.mark.parametrize(
    ("name", "leads"),
    [
        (".hg/wlock", "host:123"),
        (".opencode/node_modules/.bin/x", "../x/x.js"),
        (".claude/worktrees/one/node_modules/.bin/x", "../../../../../build/x"),
        (".claude/one/.git/x", "../../../build/x"),
        (".claude/x", "/nowhere/x"),
        (".claude/x", "x"),
        ("src/.claude/x", "../../build/x"),
    ],
)
def test_a_link_that_leads_nowhere_else_or_lies_among_data_protects_nothing(root: Root, name: str, leads: str) -> None:
    link(root, name, leads)
    assert detours.look(root, PROTECTED) == detours.Detours()
    assert detours.behind(root, PROTECTED) == {}


def test_a_circle_of_links_to_directories_ends(root: Root) -> None:
    link(root, ".claude/x", "../one")
    link(root, "one/y", "../two")
    link(root, "two/z", "../one")
    assert set(detours.look(root, PROTECTED).globs) == {"/one", "/two"}


def test_a_directory_behind_a_link_on_the_way_is_looked_into(root: Root) -> None:
    link(root, ".config", "conf")
    link(root, "conf/mise/x", "../../build/x")
    assert detours.look(root, PROTECTED) == detours.Detours(
        links=(".config",), globs=("/conf/mise", "/conf/mise.toml", "/conf/mise.*.toml", "/build/x")
    )
    assert detours.behind(root, PROTECTED)["/build/x"] == "conf/mise/x"


def _many_links(directory: Path) -> None:
    for number in range(1_025):
        (directory / str(number)).symlink_to("x")


def _many_files(directory: Path) -> None:
    for number in range(16_385):
        (directory / str(number)).touch()


def _deep(directory: Path) -> None:
    (directory / "/".join(["d"] * 34)).mkdir(parents=True)


@pytest.mark.parametrize("fill", [_many_links, _many_files, _deep])
def test_more_than_can_be_looked_at_is_said(root: Root, fill: object) -> None:
    directory = Path(root.path, ".claude")
    directory.mkdir()
    assert callable(fill)
    fill(directory)
    assert detours.look(root, PROTECTED).blind == (".claude",)
    with pytest.raises(detours.Blind, match=r"\.claude"):
        detours.behind(root, PROTECTED)


def test_a_directory_that_can_be_entered_and_not_listed_is_said(cage: Cage) -> None:
    os.symlink("../build/it", cage.folder(".claude") / "settings.json")
    (cage.root / ".claude").chmod(0o311)

    def look() -> detours.Detours:
        with Root.open(str(cage.root)) as root:
            return detours.look(root, PROTECTED)

    found = cage.does(look)
    (cage.root / ".claude").chmod(0o755)
    assert found == (detours.Detours(globs=("/build/it",)) if cage.uid == 0 else detours.Detours(blind=(".claude",)))
