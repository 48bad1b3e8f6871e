"""How `codespace doctor` puts a finding into a line, and what it says on a bad day."""

from __future__ import annotations

import resource
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from codespace import limits
from codespace.cli import findings, programs
from codespace.cli.doctor import line
from codespace.cli.finding import Finding
from codespace.errors import Refusal
from codespace.gateway import database
from codespace.runner.worker.hire import Place
from codespace.settings import Settings


def test_a_long_subject_does_not_run_into_what_was_found() -> None:
    assert line(Finding("pass", "workspace my-project", "/srv/a")) == "pass  workspace my-project /srv/a"
    assert line(Finding("pass", "account", "fine")) == f"pass  {'account':<18}fine"


def test_a_state_directory_on_a_full_disk_is_a_failure_and_no_pass(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = Settings(state_dir=str(tmp_path), database=":memory:")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, usual[1]))
    try:
        (found,) = findings.state(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert found.verdict == "fail"
    assert "File too large" in found.found
    assert [each.verdict for each in findings.state(settings)] == ["pass"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["instances", "journal", "homes", "spool"])
@pytest.mark.parametrize("kind", ["file", "dead link"])
def test_what_stands_where_a_daemon_keeps_a_folder_of_its_own_is_a_failure(
    tmp_path: Path, name: str, kind: str
) -> None:
    tmp_path.chmod(0o700)
    settings = Settings(state_dir=str(tmp_path), database=":memory:")
    if kind == "file":
        (tmp_path / name).touch()
    else:
        (tmp_path / name).symlink_to(tmp_path / "gone")
    (found,) = findings.state(settings)
    assert found.verdict == "fail"
    assert found.found.startswith(f"{tmp_path / name} is no directory that this account can write")
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir(0o700)
    assert [each.verdict for each in findings.state(settings)] == ["pass"]


@pytest.mark.parametrize("kind", ["folder", "empty file", "dead link", "file of everybody"])
def test_a_token_file_that_no_daemon_takes_is_a_failure(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "http-token"
    settings = Settings(state_dir=str(tmp_path), database=":memory:")
    assert not list(findings.generated_token(settings))
    if kind == "folder":
        place.mkdir()
    elif kind == "dead link":
        place.symlink_to(tmp_path / "gone")
    else:
        place.write_text("x" * 43 if kind == "file of everybody" else "")
        place.chmod(0o644 if kind == "file of everybody" else 0o600)
    (found,) = findings.generated_token(settings)
    assert (found.verdict, found.fix) == ("fail", "Remove it; a new one is made at the next start.")


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_where_a_daemon_keeps_the_sockets_of_its_worker_is_a_failure_where_it_has_one(
    tmp_path: Path, kind: str, is_elsewhere: bool
) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    for folder in (state, elsewhere):
        folder.mkdir(0o700)
    above = elsewhere if is_elsewhere else state
    place = above / "runner"
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path)

    def verdicts(runner: Literal["in-process", "uds"]) -> list[str]:
        named = str(elsewhere) if is_elsewhere else None
        settings = Settings(state_dir=str(state), database=":memory:", runner=runner, runner_dir=named)
        return [each.verdict for each in findings.state(settings)]

    assert verdicts("uds") == ["fail"]
    with pytest.raises(Refusal, match="runner is no directory"):  # which is why
        Place(str(above))
    assert verdicts("in-process") == ["pass"]
    place.unlink()
    Place(str(above)).close()
    assert verdicts("uds") == ["pass"]


@pytest.mark.parametrize("secret", ["fff", "none", "", "ff", "00" * 33])
def test_a_database_whose_secret_no_daemon_takes_is_a_failure(tmp_path: Path, secret: str) -> None:
    path = str(tmp_path / "operations.db")
    settings = Settings(state_dir=str(tmp_path), database=path)
    database.prepare(path)[0].close()
    assert [each.verdict for each in findings.database(settings)] == ["pass"]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE name LIKE 'secret:%'", (secret,))
    (found,) = findings.database(settings)
    assert (found.verdict, "The database is damaged" in found.found) == ("fail", True)
    assert "restore the file from a backup" in found.fix
    with pytest.raises(Refusal) as refused:
        database.prepare(path)
    assert (refused.value.details or {})["cause"] == "DAMAGED"


def test_a_database_without_a_secret_is_given_one_and_is_no_failure(tmp_path: Path) -> None:
    path = str(tmp_path / "operations.db")
    database.prepare(path)[0].close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM meta WHERE name LIKE 'secret:%'")
    assert [each.verdict for each in findings.database(Settings(state_dir=str(tmp_path), database=path))] == ["pass"]
    again, known = database.prepare(path)
    again.close()
    assert {len(secret) for secret in known.values()} == {32}


def test_a_fix_can_be_pasted_whatever_the_path(tmp_path: Path) -> None:
    place = tmp_path / "my own; $(files)"
    place.mkdir(mode=0o755)
    (found,) = findings.state(Settings(state_dir=str(place), database=":memory:"))
    assert shlex.split(found.fix) == ["chmod", "700", str(place)]


def test_a_state_directory_where_nothing_can_be_made_hides_none_of_the_other_findings() -> None:
    settings = Settings(state_dir="/proc", database=":memory:")
    assert "fail" in [each.verdict for each in findings.state(settings)]
    assert [each.subject for each in findings.files(settings)] == ["file primitive"]


def test_programs_that_do_not_answer_in_time_are_not_told_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "rg"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(limits, "SANDBOX_PROBE_SECONDS", 0.3)
    settings = Settings(state_dir=str(tmp_path), database=":memory:", rg_path=str(slow))
    [found] = programs.findings(settings)
    assert (found.verdict, "did not say its version" in found.found) == ("fail", True), found
    assert "Install" not in found.fix


def test_a_program_that_is_no_ripgrep_is_a_failure_that_names_it(tmp_path: Path) -> None:
    settings = Settings(state_dir=str(tmp_path), database=":memory:", rg_path="/bin/true")
    [found] = programs.findings(settings)
    assert (found.verdict, "/bin/true is no ripgrep" in found.found, found.fix) == ("fail", True, "Correct rg_path.")


def test_a_database_that_cannot_be_looked_at_is_told_with_its_own_remedy(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    settings = Settings(state_dir=str(tmp_path), database=str(loop))
    (found,) = findings.database(settings)
    assert (found.verdict, "levels of symbolic links" in found.found) == ("fail", True)
    assert "CODESPACE_OPERATIONS_DB" in str(found.fix)
