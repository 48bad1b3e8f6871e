"""Each client gets what it documents, in the user's own file, and nothing that was there is lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import shlex
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codespace.cli.clients import CLIENTS, program

from .conftest import Desk

_FILES = {name: client.file for name, client in CLIENTS.items() if client.file is not None}
_JSON = [name for name in _FILES if name != "codex"]


def entry(client: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return dict(document[CLIENTS[client].section]["codespace"])


def printed(client: str, text: str) -> dict[str, Any]:
    if client == "codex":
        return entry(client, tomllib.loads(text))
    start = text.index("{")
    return entry(client, json.JSONDecoder().raw_decode(text[start:])[0])


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_told_to_start_this_very_installation(desk: Desk, client: str) -> None:
    desk.codespace("init", desk.project)
    said = desk.codespace("client-config", client)
    found = printed(client, said.out)
    assert said.code == 0
    assert [found["command"], *found["args"]] == [*program(), "serve", "--stdio"]
    assert os.path.isabs(found["command"])
    assert found["env"] == {"CODESPACE_CONFIG": str(desk.config)}


@pytest.mark.parametrize("words", [(), ("--http",)])
def test_codex_is_told_to_wait_for_the_tools(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "t0ken")
    assert printed("codex", desk.codespace("client-config", "codex", *words).out)["required"] is True
    assert "required" not in printed("cursor", desk.codespace("client-config", "cursor", *words).out)


def test_the_command_for_claude_code_can_be_pasted_into_a_shell(desk: Desk) -> None:
    said = desk.codespace("client-config", "claude-code")
    words = shlex.split(said.out.strip().splitlines()[-1])
    assert words[:6] == ["claude", "mcp", "add-json", "--scope", "user", "codespace"]
    assert json.loads(words[6]) == printed("claude-code", said.out)


def test_what_was_chosen_here_is_said_to_the_client_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    state = str(desk.home / "state")
    monkeypatch.setenv("CODESPACE_STATE_DIR", state)
    monkeypatch.setenv("CODESPACE_RUNNER", "uds")
    monkeypatch.setenv("CODESPACE_OPERATOR_TOKEN", "canary")
    said = desk.codespace("client-config", "generic")
    assert printed("generic", said.out)["env"] == {"CODESPACE_STATE_DIR": state, "CODESPACE_RUNNER": "uds"}
    assert "canary" not in said.out


@pytest.mark.parametrize("client", CLIENTS)
def test_a_state_directory_by_xdg_is_said_to_a_client_that_may_not_hand_the_variable_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    desk.codespace("init", desk.project)
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.home / "away"))
    found = printed(client, desk.codespace("client-config", client).out)
    assert found["env"]["CODESPACE_STATE_DIR"] == str(desk.home / "away/codespace")
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.home / ".local/state"))
    assert "CODESPACE_STATE_DIR" not in printed(client, desk.codespace("client-config", client).out)["env"]


@pytest.mark.parametrize("client", [name for name, client in CLIENTS.items() if client.http])
@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("::1", "[::1]"),
        ("0.0.0.0", "127.0.0.1"),  # the door answers to no such name
    ],
)
def test_over_http_a_client_gets_the_address_and_the_token(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, client: str, host: str, told: str
) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "t0ken-of-16-chars")
    monkeypatch.setenv("CODESPACE_HTTP_HOST", host)
    found = printed(client, desk.codespace("client-config", client, "--http").out)
    assert found["url"] == f"http://{told}:8787/mcp"
    headers = found["http_headers" if client == "codex" else "headers"]
    assert headers == {"Authorization": "Bearer t0ken-of-16-chars"}


def test_no_command_is_offered_that_would_show_the_token_to_other_users(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "t0ken")
    said = desk.codespace("client-config", "claude-code", "--http")
    assert said.code == 0
    assert [line for line in said.out.splitlines() if "t0ken" in line and "claude mcp" in line] == []
    assert "claude mcp" in desk.codespace("client-config", "claude-code").out


def test_the_generated_token_is_read_from_its_file(desk: Desk) -> None:
    missing = desk.codespace("client-config", "cursor", "--http")
    assert missing.code == 2
    assert "serve --http" in missing.err
    (desk.home / ".local/state/codespace/http-token").write_text("generated\n")
    found = printed("cursor", desk.codespace("client-config", "cursor", "--http").out)
    assert found["headers"] == {"Authorization": "Bearer generated"}


def test_a_client_without_http_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "t0ken")
    said = desk.codespace("client-config", "claude-desktop", "--http")
    assert (said.code, "Claude Desktop" in said.err) == (2, True)


@pytest.mark.parametrize("client", _JSON)
def test_writing_into_a_json_file_keeps_everything_else(desk: Desk, client: str) -> None:
    path = desk.home / _FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    section = CLIENTS[client].section
    present = json.dumps({"theme": "dunkel ö", section: {"other": {"command": "x"}, "codespace": {"command": "old"}}})
    path.write_text(present)
    path.chmod(0o640)
    assert desk.codespace("client-config", client, "--write").code == 0
    document = json.loads(path.read_text())
    assert (document["theme"], document[section]["other"]) == ("dunkel ö", {"command": "x"})
    assert [entry(client, document)["command"], *entry(client, document)["args"]] == [*program(), "serve", "--stdio"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert Path(f"{path}.before-codespace").read_text() == present


def test_writing_into_a_toml_file_keeps_every_letter(desk: Desk) -> None:
    path = desk.home / ".codex/config.toml"
    path.parent.mkdir()
    present = "# mine\nmodel = 'x'   # odd   spacing\n\n[mcp_servers.other]\ncommand = 'y'\n"
    path.write_text(present)
    assert desk.codespace("client-config", "codex", "--write").code == 0
    assert path.read_text().startswith(present)
    assert set(tomllib.loads(path.read_text())["mcp_servers"]) == {"other", "codespace"}


@pytest.mark.parametrize("client", _FILES)
def test_writing_twice_changes_nothing_the_second_time(desk: Desk, client: str) -> None:
    path = desk.home / _FILES[client]
    assert desk.codespace("client-config", client, "--write").code == 0
    before = path.read_bytes()
    said = desk.codespace("client-config", client, "--write")
    assert "says so already" in said.out
    assert path.read_bytes() == before
    assert not Path(f"{path}.before-codespace").exists()


@pytest.mark.parametrize(
    ("client", "present"),
    [
        ("vscode", '{ // a comment\n  "servers": {} }'),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": []}'),
        ("codex", "[mcp_servers.codespace]\ncommand = 'mine'\n"),
        ("codex", "mcp_servers = {}\n"),
        ("codex", "not TOML"),
        ("cursor", "[" * 100_000),
        ("cursor", '{"a": 1e400}'),
        ("cursor", '{"a": NaN}'),
        ("codex", "a = " + "[" * 100_000),
    ],
)
def test_a_file_that_cannot_be_merged_safely_is_left_alone_and_the_lines_are_shown(
    desk: Desk, client: str, present: str
) -> None:
    path = desk.home / _FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(present)
    said = desk.codespace("client-config", client, "--write")
    assert said.code == 2
    assert program()[0] in said.err
    assert path.read_text() == present


def test_a_file_with_a_token_becomes_private(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "t0ken")
    path = desk.home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0o644)
    desk.codespace("client-config", "cursor", "--http", "--write")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_behind_a_link_is_written_where_it_is(desk: Desk) -> None:
    real = desk.home / "dotfiles/mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    (desk.home / ".cursor").mkdir()
    link = desk.home / ".cursor/mcp.json"
    link.symlink_to(real)
    desk.codespace("client-config", "cursor", "--write")
    assert link.is_symlink()
    assert "codespace" in real.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_file_and_its_copy_stay_the_users_whose_it_was(desk: Desk) -> None:
    path = desk.home / ".claude.json"
    path.write_text("{}")
    path.chmod(0o600)
    os.chown(path, 4242, 4343)
    assert desk.codespace("client-config", "claude-code", "--write").code == 0
    found = [(each.stat().st_uid, each.stat().st_gid) for each in desk.home.glob(".claude.json*")]
    assert found == [(4242, 4343)] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_file_whose_owner_cannot_be_kept_is_left_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_allowed(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    path = desk.home / ".claude.json"
    path.write_text("{}")
    os.chown(path, 4242, -1)
    monkeypatch.setattr(os, "fchown", not_allowed)
    said = desk.codespace("client-config", "claude-code", "--write")
    assert said.code == 2
    assert "belongs to user 4242" in said.err
    assert "do this as that user" in said.err
    assert (path.read_text(), path.stat().st_uid) == ("{}", 4242)
    assert list(desk.home.glob(".claude.json*")) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_of_ones_own_file_a_group_that_one_is_not_in_is_given_up_with_its_rights(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_allowed(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    path = desk.home / ".claude.json"
    path.write_text("{}")
    path.chmod(0o664)
    os.chown(path, -1, 4343)
    monkeypatch.setattr(os, "fchown", not_allowed)
    assert desk.codespace("client-config", "claude-code", "--write").code == 0
    assert "codespace" in path.read_text()
    assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (os.getegid(), 0o604)


def test_half_a_letter_is_written_back_as_it_was(desk: Desk) -> None:
    path = desk.home / ".claude.json"
    present = r'{"history": [{"display": "ö, a whole \ud83d\ude00 and a cut \ud83d"}]}'
    path.write_text(present)
    assert desk.codespace("client-config", "claude-code", "--write").code == 0
    assert json.loads(path.read_text())["history"] == json.loads(present)["history"]
    assert r'"ö, a whole 😀 and a cut \ud83d"' in path.read_text()


def test_a_full_disk_leaves_no_copy_either(desk: Desk) -> None:
    path = desk.home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text("{}")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, usual[1]))  # room for the copy of what is there
    try:
        said = desk.codespace("client-config", "cursor", "--write")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert said.code == 2
    assert said.err == f"codespace: {path.parent}: File too large\nNothing was written.\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_in_a_workspace_is_never_written(desk: Desk) -> None:
    desk.codespace("init", desk.project)
    (desk.home / ".cursor").symlink_to(desk.project)
    said = desk.codespace("client-config", "cursor", "--write")
    assert said.code == 2
    assert "lies inside the workspace `project`" in said.err
    assert list(desk.project.iterdir()) == []


def test_a_generic_client_has_no_file_to_write(desk: Desk) -> None:
    assert desk.codespace("client-config", "generic", "--write").code == 2
