"""A root is one project: never the whole machine, a home, another root, or a place where CodeSpace keeps itself."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import threading
from pathlib import Path

import pytest

import codespace
from codespace import limits
from codespace.sandbox.plan import HOME
from codespace.settings.roots import OF_THE_SANDBOX

from .home import Home


def roots(**paths: Path | str) -> dict[str, object]:
    return {"workspaces": {name: {"root": str(path)} for name, path in paths.items()}}


@pytest.mark.parametrize(
    ("root", "told"),
    [
        ("project", "not absolute"),
        ("~/project", "`~` is not expanded"),
        ("/no/such/directory", "does not exist"),
        ("/etc/passwd", "not a directory"),
        ("/", "whole machine"),
        ("/tmp/a\nb", "control character"),
    ],
)
def test_a_root_that_is_no_project_is_refused(home: Home, root: str, told: str) -> None:
    error = home.refusal(roots(app=root))
    assert error.key == "workspaces.app.root"
    assert told in f"{error.problem} {error.fix}"


def test_a_home_directory_is_refused_also_behind_a_link_and_also_from_above(home: Home) -> None:
    link = home.folder / "link"
    link.symlink_to(home.path)
    for root in (home.path, link, home.folder):
        assert "home directory" in home.refusal(roots(app=root)).problem


def test_the_home_of_the_account_counts_whatever_home_says(home: Home) -> None:
    real = pwd.getpwuid(os.getuid()).pw_dir
    if os.path.isdir(real) and real != "/":
        assert "home directory" in home.refusal(roots(app=real)).problem


def test_the_home_of_an_account_that_no_list_has_counts_too(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a directory service that is asked for one account at a time."""
    own = pwd.struct_passwd(("me", "x", os.getuid(), os.getgid(), "", str(home.project), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(pwd, "getpwuid", {os.getuid(): own}.__getitem__)
    assert "home directory" in home.refusal(roots(app=home.project)).problem


@pytest.mark.parametrize(
    ("uid", "shell", "counts"),
    [
        (0, "/bin/bash", True),
        (1000, "/bin/bash", True),
        (70_001, "", True),
        (1001, "/usr/sbin/nologin", False),
        (65_534, "/bin/false", False),
        (999, "/bin/sh", False),
        (os.getuid(), "/usr/sbin/nologin", True),
    ],
)
def test_a_directory_that_holds_a_home_of_somebody_else_is_refused_where_people_live_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, uid: int, shell: str, counts: bool
) -> None:
    theirs = home.project / "people" / "alice"
    theirs.mkdir(parents=True)
    homes = [str(theirs), "/", ""]
    accounts = [pwd.struct_passwd(("alice", "x", uid, uid, "", path, shell)) for path in homes]
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    for root in (theirs, theirs.parent, home.project):
        if counts:
            assert home.refusal(roots(app=root)).problem == f"{root} is or holds a home directory ({theirs})."
        else:
            assert home.load(roots(app=root)).workspaces["app"].root == str(root)
    inside = theirs / "project"
    inside.mkdir()
    assert home.load(roots(app=inside)).workspaces["app"].root == str(inside)


def test_roots_that_overlap_are_refused_and_neighbours_are_not(home: Home) -> None:
    inner, neighbour = home.project / "inner", home.folder / "project-2"
    inner.mkdir()
    neighbour.mkdir()
    assert "overlaps" in home.refusal(roots(one=home.project, two=inner)).problem
    assert "overlaps" in home.refusal(roots(one=inner, two=home.project)).problem
    assert "overlaps" in home.refusal(roots(one=home.project, two=home.project)).problem
    assert len(home.load(roots(one=home.project, two=neighbour)).workspaces) == 2


@pytest.mark.parametrize("key", ["root", "readable_paths"])
@pytest.mark.parametrize(
    ("what", "variable", "place"),
    [
        ("state directory", "CODESPACE_STATE_DIR", "open/state"),
        ("database", "CODESPACE_OPERATIONS_DB", "open/ops.sqlite"),
        ("runner's directory", "CODESPACE_RUNNER_DIR", "open/runner"),
    ],
)
def test_what_codespace_keeps_is_never_inside(home: Home, key: str, what: str, variable: str, place: str) -> None:
    inside = home.folder / "open"
    inside.mkdir()
    keys: dict[str, object] = {"root": str(inside)} if key == "root" else {"readable_paths": [str(inside)]}
    error = home.refusal(home.workspace(**keys), **{variable: str(home.folder / place)})
    assert error.key.startswith(f"workspaces.app.{key}")
    assert what in error.problem
    assert variable in error.fix
    assert not (inside / "state").exists()


@pytest.mark.parametrize("key", ["root", "readable_paths"])
@pytest.mark.parametrize("variable", ["CODESPACE_STATE_DIR", "CODESPACE_RUNNER_DIR"])
def test_nothing_is_open_within_a_directory_of_codespaces_own(home: Home, key: str, variable: str) -> None:
    ours = home.folder / "ours"
    (ours / "journal").mkdir(parents=True, mode=0o700)
    ours.chmod(0o700)
    inside = str(ours / "journal")
    keys: dict[str, object] = {"root": inside} if key == "root" else {"readable_paths": [inside]}
    error = home.refusal(home.workspace(**keys), **{variable: str(ours)})
    assert error.key.startswith(f"workspaces.app.{key}")
    assert f"lies inside {ours}" in error.problem
    assert variable in error.fix


def test_the_configuration_file_is_never_inside_nor_its_target(home: Home) -> None:
    for place in (home.project / "config.json", home.folder / "real.json"):
        home.write(roots(app=home.project), str(place.relative_to(home.folder)))
        if place.parent == home.project:
            assert "configuration file" in home.refusal().problem
    target = home.project / "target.json"
    (home.folder / "real.json").rename(target)
    (home.folder / "link.json").symlink_to(target)
    assert "configuration file" in home.refusal(CODESPACE_CONFIG=str(home.folder / "link.json")).problem


def test_a_program_that_searches_run_is_never_inside(home: Home) -> None:
    shutil.copy("/bin/true", home.project / "rg")
    error = home.refusal({**roots(app=home.project), "rg_path": str(home.project / "rg")})
    assert "rg_path" in error.problem


def test_codespaces_own_installation_is_never_inside(home: Home) -> None:
    package = Path(codespace.__file__).resolve().parent
    for root in (package, package.parent, Path(sys.prefix), package / "settings"):
        problem = home.refusal(roots(app=root), HOME="/nonexistent-home").problem
        assert "CodeSpace's own" in problem
    for readable in (str(package.parent), sys.prefix):
        assert "CodeSpace's own" in home.refusal(home.workspace(readable_paths=[readable])).problem
    error = home.refusal(home.workspace(readable_paths=[sys.base_prefix]))
    assert "The Python that CodeSpace runs on" in error.problem
    assert "from another Python" in error.fix  # another environment of this one would be refused again


def test_a_root_in_the_state_directorys_neighbourhood_is_fine(home: Home) -> None:
    state = home.folder / "project-state"
    assert home.load(roots(app=home.project), CODESPACE_STATE_DIR=str(state)).workspaces["app"].root == str(
        home.project
    )


def test_a_readable_path_that_is_not_there_is_refused_at_the_start_and_not_with_each_command(home: Home) -> None:
    there, missing = home.folder / "tools", home.folder / "none"
    there.mkdir()
    error = home.refusal(home.workspace(readable_paths=[str(there), str(missing)]))
    assert (error.key, error.problem) == ("workspaces.app.readable_paths[1]", f"{missing} does not exist.")
    missing.touch()
    assert home.load(home.workspace(readable_paths=[str(there), str(missing)]))


@pytest.mark.parametrize("key", ["root", "readable_paths"])
def test_a_path_that_does_not_answer_is_told_as_that_in_time(
    home: Home, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    hung, let_go, follow = home.folder / "hung", threading.Event(), os.path.realpath
    hung.mkdir()

    def realpath(path: str, **named: bool) -> str:
        assert path != str(hung) or let_go.wait(60)
        return follow(path, **named)

    monkeypatch.setattr(os.path, "realpath", realpath)
    monkeypatch.setattr(limits, "ROOT_ANSWER_SECONDS", 0.2)
    before = set(threading.enumerate())
    try:
        error = home.refusal(roots(app=hung) if key == "root" else home.workspace(readable_paths=[str(hung)]))
    finally:
        let_go.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
    assert error.key == {"root": "workspaces.app.root", "readable_paths": "workspaces.app.readable_paths[0]"}[key]
    assert "does not answer" in error.problem
    assert str(hung) in error.problem


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/self", "/sys", "/dev/shm", "/tmp", "/var/tmp", "/run", "/home"])
def test_a_readable_path_never_takes_the_place_of_what_a_sandbox_has_itself(home: Home, path: str) -> None:
    error = home.refusal(home.workspace(readable_paths=[path]))
    assert (error.key, "of its own" in error.problem) == ("workspaces.app.readable_paths[0]", True)


def test_what_a_sandbox_has_itself_has_the_home_that_its_commands_have() -> None:
    assert HOME in OF_THE_SANDBOX
