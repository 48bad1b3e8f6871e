"""What lies where a file of the operator's should be: each command says what it is and what to do, in its own words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codespace import limits

from .conftest import Desk

EVERY = (["doctor"], ["operations", "list"], ["serve", "--stdio"], ["client-config", "generic"])


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_a_directory_where_the_configuration_should_be_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    config = desk.home / "config.toml"
    config.mkdir()  # which Docker makes where it is to mount a file that is not there
    monkeypatch.setenv("CODESPACE_CONFIG", str(config))
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"codespace: CODESPACE_CONFIG\n  {config} is not a regular file.\n  Name a regular file.\n"


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[0])
def test_a_configuration_that_the_disk_does_not_give_is_told_as_that_and_not_as_an_answer_that_was_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    config = desk.home / "config.toml"
    config.symlink_to("/proc/self/mem")  # a regular file whose beginning is an I/O error
    monkeypatch.setenv("CODESPACE_CONFIG", str(config))
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert f"{config} cannot be read: Input/output error.\n" in said.err


def written(desk: Desk, content: bytes, ending: str = "toml") -> Path:
    config = desk.home / f"config.{ending}"
    config.write_bytes(content)
    config.chmod(0o600)
    return config


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = " + b"9" * 5000, "it would not be TOML"),
        (b'root = "\xff"', "{path}: It is not UTF-8 (byte 8); save it as that. Nothing was written."),
        (b"#" * (limits.CONFIG_BYTES + 1), f"{{path}} is over {limits.CONFIG_BYTES} bytes."),
        (b"#" * (limits.USER_FILE_BYTES + 1), f"{{path}}: It is over {limits.USER_FILE_BYTES} bytes. Nothing was"),
    ],
    ids=["a huge number", "no text", "large", "huge"],
)
def test_init_names_what_is_wrong_with_the_configuration_that_is_there(
    desk: Desk, content: bytes, problem: str
) -> None:
    path = written(desk, content)
    said = desk.codespace("init", desk.project, "--config", path)
    assert (said.code, said.out) == (2, "")
    assert problem.format(path=path) in said.err
    assert path.read_bytes() == content
    assert list(desk.home.iterdir()) == [path]


@pytest.mark.parametrize(
    "words", [["audit", "verify"], ["operations", "list"], ["approvals", "list"]], ids=lambda words: words[0]
)
def test_what_a_start_on_a_full_disk_left_of_a_database_is_nothing_that_was_recorded(
    desk: Desk, words: list[str]
) -> None:
    database = desk.home / ".local/state/codespace/operations.sqlite"
    database.parent.mkdir(0o700, parents=True)
    database.touch(0o600)
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"codespace: nothing has been recorded yet: there is no database at {database}.\n"
    assert f"{database} is made at the first start" in desk.codespace("doctor").out


@pytest.mark.parametrize(
    "words", [["audit", "verify"], ["operations", "list"], ["approvals", "list"]], ids=lambda words: words[0]
)
def test_a_database_that_cannot_be_looked_at_is_not_told_as_one_that_is_not_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    loop = desk.home / "loop"
    loop.symlink_to(loop)
    monkeypatch.setenv("CODESPACE_OPERATIONS_DB", str(loop))
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert "Too many levels of symbolic links" in said.err
    assert "nothing has been recorded" not in said.err


@pytest.mark.parametrize(
    "words",
    [
        ["approvals", "show", "\udcff"],
        ["approvals", "grant", "--yes", "\udcff"],
        ["approvals", "deny", "\udcff"],
        ["approvals", "grant", "--fingerprint", "\udcff", "id"],
        ["approvals", "grant", "--patches", "\udcff", "id"],
        ["grants", "revoke", "\udcff"],
        ["operations", "show", "\udcff"],
        ["operations", "settle", "\udcff"],
        ["operations", "forget", "\udcff"],
        ["init", ".", "--id", "\udcff"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_word_that_no_database_holds_is_refused_before_one_is_asked(desk: Desk, words: list[str]) -> None:
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.endswith(": it is not UTF-8; copy it from a list, or write it anew\n")


@pytest.mark.parametrize(
    "words",
    [
        ["sandbox", "run", "project", "--", "true"],
        ["init", "project"],
        ["doctor", "--config", "c.toml"],
        ["audit", "head", "--config", "c.toml"],
    ],
    ids=lambda words: words[0],
)
def test_a_relative_path_where_the_current_directory_is_gone_is_told_in_one_line(desk: Desk, words: list[str]) -> None:
    (desk.home / "gone").mkdir()
    told = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$0" -P -m codespace "$@"', sys.executable, *words],
        cwd=desk.home / "gone",
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        "codespace: the directory that this runs in is gone. Go to another (`cd`), or name whole paths.\n"
    )


def test_a_folder_in_which_nothing_can_be_made_is_named_and_no_file_that_nobody_knows(desk: Desk) -> None:
    desk.codespace("init", desk.project)
    (desk.home / ".cursor").symlink_to("/proc/self/task")
    said = desk.codespace("client-config", "cursor", "--write")
    assert said.code == 2
    assert said.err.startswith(f"codespace: /proc/{os.getpid()}/task: ")


@pytest.mark.parametrize("words", [["init", ""], ["sandbox", "run", "", "--", "true"]], ids=["init", "sandbox"])
def test_a_directory_that_is_named_by_nothing_is_not_the_one_that_this_runs_in(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(desk.project)
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert "DIR" in said.err
    assert list(desk.home.iterdir()) == []
