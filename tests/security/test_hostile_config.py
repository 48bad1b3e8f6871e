"""A wrong configuration opens nothing: the installed daemon refuses to start and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from codespace.testing.installed import script
from codespace.testing.site import Site
from codespace.testing.wire import Wire


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.add_workspace("main")
    return site


def refused(site: Site, *mentions: str, serve: tuple[str, ...] = ("--stdio",), **environ: str) -> str:
    """Start the daemon; it must end at once, with words on stderr and none on stdout."""
    done = subprocess.run(
        [script(), "serve", *serve],
        env={**site.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    said = done.stderr.decode()
    assert done.returncode not in (0, -9, -15), said
    assert done.stdout == b""
    assert "Traceback" not in said
    for mention in mentions:
        assert mention in said, said
    return said


def installation() -> str:
    """Return the directory that the installed command's package lies in; a checkout may be another one."""
    ask = [sys.executable, "-I", "-c", "import codespace; print(codespace.__path__[0])"]
    done = subprocess.run(ask, cwd="/", stdout=subprocess.PIPE, check=True)
    return str(Path(done.stdout.decode().strip()).parent)


def test_the_daemon_does_not_start_with_its_own_things_inside_a_root(site: Site) -> None:
    root = site.root()
    refused(site, "state", str(root), CODESPACE_STATE_DIR=str(root / "state"))
    refused(site, "database", str(root), CODESPACE_OPERATIONS_DB=str(root / "operations.sqlite"))
    inside = root / "config.json"
    inside.write_text(site.config.read_text())
    refused(site, "config", str(root), CODESPACE_CONFIG=str(inside))
    inside.unlink()
    site.workspaces["main"]["root"] = installation()
    site.write()
    refused(site, "main")
    site.workspaces["main"] = {"root": str(root), "readable_paths": [str(site.folder)]}
    site.write()
    refused(site, "readable_paths")


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"root": "relative"}, "root"),
        ({"root": "/no/such/directory/anywhere"}, "root"),
        ({"root": "/"}, "root"),
        ({"root": 7}, "root"),
        ({"hidden_paths": ["**/*.{pem,key}"]}, "Write one pattern for each"),
        ({"profile": "full-access"}, "profile"),
        ({"profil": "read-only"}, "profil"),
        ({"approvals": True}, "approvals"),
        ({"approvals": "false"}, "approvals"),
        ({"network": "open"}, "network"),
        ({"occupancy": "anyone"}, "occupancy"),
        ({"timeout_seconds": "600"}, "timeout_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"limits": {"pidz": 1}}, "pidz"),
        ({"limits": 5}, "limits"),
        ({"hidden_paths": ".env"}, "hidden_paths"),
        ({"env": {"LD_PRELOAD": 5}}, "env"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_key(site: Site, change: dict[str, Any], mention: str) -> None:
    site.workspaces["main"].update(change)
    site.write()
    refused(site, mention)


def test_a_home_directory_and_overlapping_roots_are_refused(site: Site) -> None:
    site.workspaces["home"] = {"root": str(site.home)}
    site.write()
    refused(site, "home")
    del site.workspaces["home"]
    (site.root() / "below").mkdir()
    site.workspaces["below"] = {"root": str(site.root() / "below")}
    site.write()
    refused(site, "below")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"workspaces": []}', b'{"workspaces": {"a": "b"}}', b'{"unknown": 1}'],
    ids=repr,
)
def test_a_malformed_config_opens_nothing(site: Site, text: bytes) -> None:
    site.config.write_bytes(text)
    refused(site)


def test_the_same_key_twice_is_refused_and_not_guessed(site: Site) -> None:
    root = json.dumps(str(site.root()))
    site.config.write_text(
        f'{{"workspaces": {{"main": {{"root": {root}, "profile": "read-only", "profile": "workspace-write"}}}}}}'
    )
    refused(site, "profile")


def test_a_config_that_others_may_write_is_refused(site: Site) -> None:
    site.config.chmod(0o666)
    refused(site, str(site.config))


def test_without_a_registered_workspace_nothing_is_reachable(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write()
    done = subprocess.run(
        [script(), "serve", "--stdio"], env=site.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    if done.returncode != 0:
        assert "workspaces" in done.stderr.decode()
        return
    with Wire(site) as wire:
        answer = wire.call("read", workspace_id="main", path="/etc/passwd")
        refusal = json.loads(answer["content"][0]["text"])
        assert refusal["code"] == "WORKSPACE_NOT_FOUND"
        told = wire.call("workspace_info")["content"][0]["text"]
        for text in (refusal["next_step"], told):  # one leads to the other for ever where both say: ask it for the ids
            assert ("codespace init" in text, "workspace_info with" in text) == (True, False), text


def test_the_state_directory_and_the_database_are_for_the_operator_alone(site: Site) -> None:
    with Wire(site) as wire:
        assert wire.call("workspace_info", workspace_id="main")["structuredContent"]["profile"] == "workspace-write"
        assert site.state.stat().st_mode & 0o077 == 0
        for path in site.state.rglob("*"):
            with suppress(FileNotFoundError):  # of a daemon at work
                assert path.stat().st_mode & 0o077 == 0, path


def test_a_module_in_the_working_directory_is_never_imported(site: Site) -> None:
    for name in ("trio", "mcp", "json", "codespace", "helper", "sitecustomize"):
        (site.root() / f"{name}.py").write_text("open('owned', 'w')\n")
    done = subprocess.run(
        [script(), "serve", "--stdio"],
        env=site.environ,
        cwd=site.root(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not (site.root() / "owned").exists()


def test_a_foreign_or_broken_database_is_left_alone(site: Site) -> None:
    site.state.mkdir(mode=0o700)
    database = site.state / "operations.sqlite"
    for content in (b"not a database, but somebody's notes\n" * 50, b"SQLite format 3\0" + os.urandom(4096)):
        database.write_bytes(content)
        refused(site, "operations.sqlite")
        assert database.read_bytes() == content
