"""Attacks on a plan file (SANDBOX 5: 34): nothing is run unless it is the owner's, young, whole and new."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from codespace.sandbox.plan import Quota

from .cage import PATH, Cage, accounts, bubblewraps, caged

HELPER = [sys.executable, "-I", "-m", "helper.sandbox"]


@pytest.fixture
def cage() -> Any:
    with caged(os.geteuid(), bubblewraps()[0]) as lent:
        yield lent


def helper(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HELPER, *words], input=stdin, capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )


def prepared(cage: Cage, command: list[str], name: str = "plan") -> Path:
    path = cage.base / name
    request = {"workspace": {"root": str(cage.root)}, "command": command, "env": {"PATH": PATH}}
    done = helper("prepare", "--plan", str(path), stdin=json.dumps(request))
    assert done.returncode == 0, done
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def changed(path: Path, **fields: Any) -> None:
    document = json.loads(path.read_text())
    for name, value in fields.items():
        (document if name in document else document["plan"])[name] = value
    path.write_text(json.dumps(document))


def test_a_plan_runs_once_and_exits_as_its_command_does(cage: Cage) -> None:
    plan = prepared(cage, ["/bin/sh", "-c", 'printf "%s|" "$@"; exit 7', "-", "two\nlines", "$HOME", "-x", "ü"])
    done = helper("run", "--plan", str(plan))
    assert (done.returncode, done.stdout) == (7, "two\nlines|$HOME|-x|ü|")
    again = helper("run", "--plan", str(plan))
    assert again.returncode == 125
    assert "cannot be opened" in again.stderr


def test_a_plan_that_is_not_its_owners_alone_is_not_run(cage: Cage) -> None:
    plan = prepared(cage, ["touch", "ran"])
    plan.chmod(0o644)
    assert "0600" in helper("run", "--plan", str(plan)).stderr
    plan.chmod(0o600)
    link = cage.base / "link"
    link.symlink_to(plan)
    assert helper("run", "--plan", str(link)).returncode == 125
    link.unlink()
    os.link(plan, link)
    assert "another name" in helper("run", "--plan", str(plan)).stderr
    link.unlink()
    assert "not absolute" in helper("run", "--plan", "plan").stderr
    os.mkfifo(link, 0o600)
    assert "regular file" in helper("run", "--plan", str(link)).stderr
    if len(accounts()) == 2:
        os.chown(plan, accounts()[1], -1)
        assert "another account" in helper("run", "--plan", str(plan)).stderr
        os.chown(plan, 0, -1)
    assert not (cage.root / "ran").exists()
    assert helper("run", "--plan", str(plan)).returncode == 0
    assert (cage.root / "ran").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"protocol": 2}, "protocol"),
        ({"written_at": 0}, "older"),
        ({"written_at": 1e18}, "older"),
        ({"command": []}, "empty"),
        ({"command": [""]}, "empty"),
        ({"command": "touch ran"}, "empty"),
        ({"command": ["touch\0", "ran"]}, "NUL"),
        ({"command": ["touch", "\udcff"]}, "Unicode"),
        ({"command": [1]}, "text"),
        ({"root": "relative"}, "absolute"),
        ({"cwd": "/a/../b"}, "absolute"),
        ({"mounts": [{"kind": "evil", "path": "/etc"}]}, "none of"),
        ({"quota": {}}, "KeyError"),
        ({"tty": "yes"}, "true or false"),
        ({"env": {"A": 1}}, "text"),
        ({"env": {"A=B": "c"}}, "no name"),
        ({"identity": [1]}, "IndexError"),
        ({"quota": asdict(Quota()) | {"cpu_seconds": math.nan}}, "cpu_seconds"),
        ({"quota": asdict(Quota()) | {"cpu_seconds": math.inf}}, "cpu_seconds"),
        ({"written_at": 10**400}, "OverflowError"),
        ({"bubblewrap": "/tmp/bwrap"}, "may be used"),
    ],
)
def test_a_plan_with_a_wrong_field_is_not_run(cage: Cage, fields: dict[str, Any], said: str) -> None:
    plan = prepared(cage, ["touch", "ran"])
    changed(plan, **fields)
    done = helper("run", "--plan", str(plan))
    assert done.returncode == 125
    assert said in done.stderr, done.stderr
    assert not (cage.root / "ran").exists()
    assert not plan.exists()


def test_a_file_that_is_no_plan_is_not_run(cage: Cage) -> None:
    for text in ("", "{}", "[]", "null", "[" * 100_000, '{"protocol": 1}', "\xff"):
        path = cage.base / "plan"
        path.write_text(text, encoding="latin-1")
        path.chmod(0o600)
        assert helper("run", "--plan", str(path)).returncode == 125


def test_prepare_writes_over_nothing_and_says_what_is_missing(cage: Cage) -> None:
    plan = prepared(cage, ["true"])
    request = {"workspace": {"root": str(cage.root)}, "command": ["true"]}
    assert helper("prepare", "--plan", str(plan), stdin=json.dumps(request)).returncode == 125
    for broken in ({}, {"workspace": {"root": str(cage.root)}}, {"workspace": {}, "command": ["true"]}):
        assert "not complete" in helper("prepare", "--plan", str(cage.base / "new"), stdin=json.dumps(broken)).stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"workspace": {"git": "readonly"}},
        {"workspace": {"hidden_paths": ".env"}},
        {"workspace": {"hiden_paths": [".env"]}},
        {"workspace": {"allow_submounts": "no"}},
        {"workspace": {"root": "relative"}},
        {"command": "touch ran"},
        {"protected": "/.mcp.json"},
        {"env": {"A=B": "c"}},
        {"env": []},
    ],
)
def test_prepare_takes_nothing_misspelt_for_something_weaker(cage: Cage, wrong: dict[str, Any]) -> None:
    request: dict[str, Any] = {"workspace": {"root": str(cage.root)}, "command": ["true"]}
    request |= wrong | {"workspace": request["workspace"] | wrong.get("workspace", {})}
    done = helper("prepare", "--plan", str(cage.base / "new"), stdin=json.dumps(request))
    assert (done.returncode, "not complete" in done.stderr, "Traceback" in done.stderr) == (125, True, False)
    assert not (cage.base / "new").exists()


@pytest.mark.parametrize("place", ["workspace", None])
@pytest.mark.parametrize("pattern", ["", "./.env", "*.{pem,key}", "{root}/.env"])
def test_prepare_takes_no_pattern_that_holds_for_nothing(cage: Cage, place: str | None, pattern: str) -> None:
    pattern = pattern.replace("{root}", str(cage.root))
    workspace = {"root": str(cage.root), **({"hidden_paths": [pattern]} if place else {})}
    request = {"workspace": workspace, "command": ["true"], "protected": [] if place else [pattern]}
    done = helper("prepare", "--plan", str(cage.base / "new"), stdin=json.dumps(request))
    assert (done.returncode, "would not hold" in done.stderr, "Traceback" in done.stderr) == (125, True, False)
    assert not (cage.base / "new").exists()


def test_prepare_writes_no_plan_where_run_would_not_look(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cage.base)
    request = {"workspace": {"root": str(cage.root)}, "command": ["true"]}
    done = helper("prepare", "--plan", "new", stdin=json.dumps(request))
    assert (done.returncode, "not absolute" in done.stderr) == (125, True)
    assert not (cage.base / "new").exists()


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/sys", "/tmp", "/home", "/run"])
def test_prepare_shows_nothing_that_is_the_sandboxs_own(cage: Cage, path: str) -> None:
    request = {"workspace": {"root": str(cage.root), "readable_paths": [path]}, "command": ["true"]}
    done = helper("prepare", "--plan", str(cage.base / "new"), stdin=json.dumps(request))
    assert (done.returncode, "would not hold" in done.stderr) == (125, True)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "null", "[" * 100_000])
def test_prepare_says_of_what_is_no_request_that_nothing_was_made(cage: Cage, text: str) -> None:
    done = helper("prepare", "--plan", str(cage.base / "new"), stdin=text)
    assert (done.returncode, "Traceback" in done.stderr) == (125, False)


def test_a_run_that_is_told_to_end_ends_its_command(cage: Cage) -> None:
    plan = prepared(cage, ["/bin/sh", "-c", "echo up; exec sleep 987655"])
    with subprocess.Popen([*HELPER, "run", "--plan", str(plan)], stdout=subprocess.PIPE, cwd="/") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        program.terminate()
        assert program.wait(60) == 128 + 15
