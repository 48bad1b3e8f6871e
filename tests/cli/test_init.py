"""`init` registers a directory without changing anything in it, and loses nothing that was written before."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Hidden
from codespace.cli.survey import look
from codespace.settings import load

from .conftest import Desk


def registered(desk: Desk) -> dict[str, object]:
    return dict(load(os.environ).workspaces)


def test_a_new_configuration_is_private_read_only_and_loads(desk: Desk) -> None:
    said = desk.codespace("init", desk.project)
    assert said.code == 0
    assert stat.S_IMODE(desk.config.stat().st_mode) == 0o600
    workspace = load(os.environ).workspaces["project"]
    assert (workspace.root, workspace.profile, workspace.approvals) == (str(desk.project), "read-only", "off")
    assert f"Wrote {desk.config}" in said.out
    assert "codespace client-config" in said.out
    assert workspace.sandbox == "required"
    assert "Commands run in a sandbox, which holds here" in said.out
    assert list(desk.project.iterdir()) == []


def test_a_second_directory_is_added_and_every_letter_before_it_is_kept(desk: Desk) -> None:
    desk.codespace("init", desk.project)
    written = desk.config.read_text() + "\n# my own words\n[environments.box]\nkind = 'linux-container'\n"
    desk.config.write_text(written)
    other = desk.project.parent / "Other Project"
    other.mkdir()
    said = desk.codespace("init", other, "--profile", "workspace-write", "--approvals", "confirm")
    assert said.code == 0
    assert desk.config.read_text().startswith(written.rstrip())
    assert list(registered(desk)) == ["project", "other-project"]
    assert Path(f"{desk.config}.before-codespace").read_text() == written


def test_the_same_directory_again_changes_nothing(desk: Desk) -> None:
    desk.codespace("init", desk.project)
    before = desk.config.read_text()
    assert desk.codespace("init", desk.project).code == 0
    assert desk.config.read_text() == before


def test_a_json_configuration_gets_json(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = desk.home / "c.json"
    path.write_text('{"results": "text"}')
    path.chmod(0o600)
    monkeypatch.setenv("CODESPACE_CONFIG", str(path))
    assert desk.codespace("init", desk.project).code == 0
    document = json.loads(path.read_text())
    assert (document["results"], list(document["workspaces"])) == ("text", ["project"])
    assert not desk.config.exists()


@pytest.mark.parametrize(
    ("present", "told"),
    [
        ("[" * 100_000, "cannot be parsed"),
        (r'{"workspaces": {}, "cut \ud83d": 1}', "U+D83D alone is no character"),
        ('{"workspaces": {}, "retention_seconds": 1e400}', "1e400 is too large for a number"),
        ('{"workspaces": {"a": {}}, "workspaces": {}}', "'workspaces' is there twice"),
    ],
)
def test_a_json_configuration_that_no_daemon_would_read_is_left_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, present: str, told: str
) -> None:
    path = desk.home / "mine.json"
    path.write_text(present)
    monkeypatch.setenv("CODESPACE_CONFIG", str(path))
    said = desk.codespace("init", desk.project)
    assert (said.code, "Correct it there.\n  Nothing was written." in said.err) == (2, True)
    assert told in said.err
    assert path.read_text() == present


@pytest.mark.parametrize(
    "present",
    [
        'workspaces = { project = { root = "/elsewhere" } }\n',
        "workspaces = {}\n",
        '[workspaces.project]\nroot = "/elsewhere"\n',
        "this is not TOML\n",
        "[[workspaces]]\n",
    ],
)
def test_a_file_that_cannot_be_added_to_safely_is_left_alone_and_the_lines_are_shown(desk: Desk, present: str) -> None:
    desk.config.parent.mkdir(parents=True)
    desk.config.write_text(present)
    said = desk.codespace("init", desk.project)
    assert said.code == 2
    assert f'root = "{desk.project}"' in said.err
    assert "Nothing was written." in said.err
    assert desk.config.read_text() == present


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_directory_whose_settings_the_operator_changed_is_not_offered_a_second_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    config = desk.home / f"config.{ending}"
    monkeypatch.setenv("CODESPACE_CONFIG", str(config))
    desk.codespace("init", desk.project)
    config.write_text(config.read_text().replace("read-only", "workspace-write"))
    changed = config.read_text()
    said = desk.codespace("init", desk.project)
    assert said.code == 2
    assert "is in" in said.err
    assert "Change it there." in said.err
    assert "--id" not in said.err
    assert config.read_text() == changed


def test_force_writes_a_new_file_and_keeps_a_copy_of_each_old_one(desk: Desk) -> None:
    desk.config.parent.mkdir(parents=True)
    desk.config.write_text("old")
    assert desk.codespace("init", desk.project, "--force").code == 0
    assert desk.codespace("init", desk.project, "--force", "--id", "again").code == 0
    assert list(registered(desk)) == ["again"]
    assert Path(f"{desk.config}.before-codespace").read_text() == "old"
    assert "[workspaces.project]" in Path(f"{desk.config}.before-codespace.2").read_text()


def test_a_directory_that_the_daemon_would_refuse_is_refused_before_anything_is_written(desk: Desk) -> None:
    for directory, told in ((desk.home, "home directory"), (Path("/"), "whole machine"), (desk.home / "no", "No such")):
        said = desk.codespace("init", directory)
        assert said.code == 2
        assert told in said.err
    assert not desk.config.exists()


def test_a_directory_that_is_none_is_told_in_words(desk: Desk) -> None:
    missing, file = desk.home / "none", desk.home / "file"
    file.touch()
    for path, why in ((missing, "No such file or directory"), (file, "Not a directory")):
        said = desk.codespace("init", path)
        assert (said.code, said.out) == (2, "")
        assert said.err == f"codespace: {path}: {why}. Nothing was written.\n"


@pytest.mark.parametrize("name", ["config", "config.ini", os.fsdecode(b"\xff.toml")])
def test_a_configuration_that_would_never_be_read_is_not_written(desk: Desk, name: str) -> None:
    said = desk.codespace("init", desk.project, "--config", desk.home / name)
    assert said.code == 2
    assert "ending" in said.err or "UTF-8" in said.err
    assert "/tmp/codespace-init" not in said.err  # what was only tried out
    assert list(desk.home.iterdir()) == []


def test_what_is_to_be_typed_next_can_be_pasted_whatever_the_path(desk: Desk) -> None:
    path = desk.home / "my own; $(files).toml"
    said = desk.codespace("init", desk.project, "--config", path)
    (line,) = [line for line in said.out.splitlines() if "export" in line]
    assert shlex.split(line) == ["export", f"CODESPACE_CONFIG={path}"]


def test_a_directory_whose_name_is_no_text_is_told_in_words(desk: Desk) -> None:
    directory = desk.project / os.fsdecode(b"\xff")
    directory.mkdir()
    said = desk.codespace("init", directory)
    assert (said.code, said.out) == (2, "")
    assert "is not UTF-8" in said.err


def test_a_configuration_that_is_a_pipe_is_not_waited_for(desk: Desk) -> None:
    path = desk.home / "config.toml"
    os.mkfifo(path)
    said = desk.codespace("init", desk.project, "--config", path)
    assert (said.code, said.err) == (2, f"codespace: {path}: It is not a regular file. Nothing was written.\n")


def test_an_account_without_a_home_is_told_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)  # nobody has it
    said = desk.codespace("init", desk.project)
    assert said.code == 2
    assert "this user has no home" in said.err


def test_that_no_toolchain_was_seen_is_said(desk: Desk) -> None:
    assert "none is seen at its top" in desk.codespace("init", desk.project).out
    (desk.project / "Makefile").touch()
    assert "none is seen" not in desk.codespace("init", desk.project).out


def test_a_configuration_is_never_written_into_the_directory_that_it_opens(desk: Desk) -> None:
    said = desk.codespace("init", desk.project, "--config", desk.project / "codespace.toml")
    assert said.code == 2
    assert "inside the root" in said.err
    assert list(desk.project.iterdir()) == []


def test_a_hostile_directory_name_neither_acts_nor_breaks_the_file(desk: Desk) -> None:
    directory = desk.project / 'a"]\n\x1b[31m\u202e = x'
    directory.mkdir()
    said = desk.codespace("init", directory)
    assert not {"\x1b", "\u202e"} & set(said.out + said.err)
    if said.code == 0:
        tomllib.loads(desk.config.read_text())
    else:
        assert "control character" in said.err


def test_what_is_in_the_directory_is_found(desk: Desk) -> None:
    (desk.project / "pyproject.toml").touch()
    (desk.project / ".git").mkdir()
    (desk.project / ".git/config.pem").touch()
    (desk.project / ".env").touch()
    (desk.project / ".env.example").touch()
    (desk.project / "deploy/keys").mkdir(parents=True)
    (desk.project / "deploy/keys/server.pem").touch()
    (desk.project / "deploy/id_ed25519").touch()
    (desk.project / "deploy/credentials.json").touch()
    (desk.project / ".npmrc").write_text("//registry.npmjs.org/:_authToken=abc\n")
    found = look(str(desk.project))
    assert found.git
    assert found.toolchains == (("Python", "python3"),)
    assert set(found.hidden) == {"**/.env", "**/.npmrc", "**/*.pem", "**/id_ed25519", "**/credentials.json"}
    said = desk.codespace("init", desk.project)
    assert set(load(os.environ).workspaces["project"].hidden_paths) == set(found.hidden)
    assert "toolchain  Python" in said.out
    assert "deploy/keys/server.pem" in said.out


def test_hidden_files_that_are_committed_are_named_with_the_command_by_which_git_passes_them_by(desk: Desk) -> None:
    for name in ("tests/a b.pem", "tests/new.pem", "x.key", "code.py"):
        (desk.project / name).parent.mkdir(exist_ok=True)
        (desk.project / name).touch()
    git = ["git", "-C", str(desk.project)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "tests/a b.pem", "x.key", "code.py"], check=True)
    assert set(look(str(desk.project)).committed) == {"tests/a b.pem", "x.key"}
    said = desk.codespace("init", desk.project)
    (command,) = (line for line in said.out.splitlines() if "update-index" in line)
    subprocess.run(shlex.split(command), check=True)
    assert look(str(desk.project)).committed == ()
    said = desk.codespace("init", desk.project, "--force")
    assert "update-index" not in said.out


def test_an_npmrc_without_a_token_is_no_secret(desk: Desk) -> None:
    (desk.project / ".npmrc").write_text("registry=https://registry.npmjs.org\n//x/:_authToken=${NPM_TOKEN}\n")
    assert look(str(desk.project)).hidden == ()


def test_links_and_special_files_are_not_followed_or_opened(desk: Desk) -> None:
    outside = desk.project.parent / "outside"
    outside.mkdir()
    (outside / ".env").touch()
    (desk.project / "link").symlink_to(outside)
    (desk.project / "loop").symlink_to(desk.project)
    os.mkfifo(desk.project / ".npmrc")
    assert look(str(desk.project)).hidden == ()


def test_a_pattern_from_a_name_means_that_name_only(desk: Desk) -> None:
    (desk.project / ".env.[ab]*").touch()
    assert look(str(desk.project)).hidden == ("**/.env.\\[ab]\\*",)


def test_a_huge_directory_is_looked_at_in_part_and_that_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INIT_ENTRIES", 10)
    for number in range(20):
        (desk.project / f"{number}").touch()
    assert not look(str(desk.project)).complete
    assert "only its nearest part" in desk.codespace("init", desk.project).out


def test_a_workspace_that_the_operator_decides_for_is_written_so_that_it_loads(desk: Desk) -> None:
    said = desk.codespace("init", desk.project, "--profile", "workspace-write", "--approvals", "operator")
    assert said.code == 0, said.err
    (workspace,) = load({"HOME": str(desk.home)}).workspaces.values()
    assert (workspace.approvals, workspace.sandbox) == ("operator", "required")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (b".env.\xff", "**/.env.*"),
        (b".env.prod\xff\xfe", "**/.env.prod*"),
        (b".env.a\xffb", "**/.env.a*b"),
        (b".env.a\nb", "**/.env.a*b"),
        (b".env.\xc2\x9b2J", "**/.env.*2J"),
        (b".env.a ", "**/.env.a*"),
        (b".env. ", "**/.env.*"),
        (b".env.\xff ", "**/.env.*"),
        (b"a\nb.pem", "**/*.pem"),
        (b".env.{a,b}", "**/.env.\\{a\\,b}"),
        (b".env.a,.b", "**/.env.a\\,.b"),
        (b".env.(a|b)", "**/.env.\\(a\\|b)"),
        (b".env.a;.b:.c\\", "**/.env.a\\;.b\\:.c\\\\"),
    ],
)
def test_a_secret_whose_name_is_no_pattern_is_hidden_all_the_same(desk: Desk, name: bytes, pattern: str) -> None:
    (desk.project / os.fsdecode(name)).touch()
    assert desk.codespace("init", desk.project).code == 0
    assert load(os.environ).workspaces["project"].hidden_paths == (pattern,)
    assert Hidden((pattern,)).covers(os.fsdecode(name))


@pytest.mark.parametrize("form", ["toml", "json"])
def test_the_sandbox_is_demanded_only_where_the_bubblewrap_that_was_chosen_makes_one(desk: Desk, form: str) -> None:
    chosen = desk.home / "bwrap"
    chosen.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 99.0 && exit 0\n'
        "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1\n"
    )
    chosen.chmod(0o755)
    config = desk.home / f"config.{form}"
    said = {"toml": f'bwrap_path = "{chosen}"\n', "json": json.dumps({"bwrap_path": str(chosen)})}
    config.write_text(said[form])
    told = desk.codespace("init", desk.project, "--config", config)
    assert told.code == 0
    assert "does not hold here" in told.out
    assert load(os.environ, config_path=str(config)).workspaces["project"].sandbox == "optional"


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ([f".env.{number}" for number in range(24)], {f"**/.env.{number}" for number in range(24)}),
        ([f".env.{number}" for number in range(3000)], {"**/.env.[0-9]*"}),
        (
            [f".env.{stage}-{number}.x9" for stage in ("test", "prod") for number in range(100)],
            {"**/.env.test-[0-9]*.x[0-9]*", "**/.env.prod-[0-9]*.x[0-9]*"},
        ),
        (
            [*(f".env.{number}" for number in range(25)), "server.pem", "id_rsa2.key"],
            {"**/.env.[0-9]*", "**/*.pem", "**/*.key"},
        ),
        ([f".env.{number:x}.env." for number in range(0xAAAA, 0xAEAA)], {"**/.env.*"}),
        ([f".env.{first}{second}" for first in "abcdef" for second in "uvwxyz"], {"**/.env.*"}),
        ([f".env.\\[{number}]*\udcff{number}\n" for number in range(50)], {"**/.env.\\\\\\[[0-9]*]\\**[0-9]*"}),
    ],
)
def test_thousands_of_secrets_are_hidden_by_a_few_patterns(desk: Desk, names: list[str], patterns: set[str]) -> None:
    for name in names:
        (desk.project / name).touch()
    said = desk.codespace("init", desk.project)
    assert (said.code, said.out.count("hidden  ")) == (0, len(patterns))
    assert set(load(os.environ).workspaces["project"].hidden_paths) == patterns
    hidden = Hidden(tuple(patterns))
    assert [name for name in names if not hidden.covers(name)] == []
