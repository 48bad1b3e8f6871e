"""`doctor` and `audit` say what is, also about a database that somebody touched."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from codespace.gateway.audit import Audit
from codespace.gateway.store import Store
from codespace.sandbox import limits
from codespace.sandbox.plan import Quota

from .conftest import Desk, Said


async def record(path: Path, count: int) -> None:
    store = Store.open(str(path))
    audit = Audit(lambda: 1.0, "inst-test")
    try:
        for number in range(count):
            await store.write(lambda db, n=number: audit.append(db, "test", f"s-{n}", "e", None, "t", "a reason"))  # type: ignore[misc]
    finally:
        store.close()


@pytest.fixture
def database(desk: Desk) -> Path:
    desk.codespace("doctor")
    path = desk.home / ".local/state/codespace/operations.sqlite"
    trio.run(record, path, 5)
    return path


def lines(said: Said, verdict: str) -> list[str]:
    return [line for line in said.out.splitlines() if line.startswith(verdict)]


def test_doctor_on_a_fresh_machine_finds_no_failure_and_names_every_limit(desk: Desk) -> None:
    said = desk.codespace("doctor")
    assert (said.code, lines(said, "fail")) == (0, [])
    assert [line for line in lines(said, "limit") if "No workspace is registered" in line]
    assert [line for line in lines(said, "pass") if "linux-sandbox" in line and "attacked from inside" in line]
    for area in ("writes", "git", "system", "outside", "mounts", "privileges", "network", "processes"):
        assert [line for line in lines(said, "pass") if line.split()[1:2] == [area]]
    assert [line for line in lines(said, "pass") if "ripgrep" in line]
    assert [line for line in lines(said, "pass") if "rename flags" in line]


def test_doctor_leaves_nothing_in_the_state_directory(desk: Desk) -> None:
    desk.codespace("doctor")
    assert list((desk.home / ".local/state/codespace").iterdir()) == []


def test_doctor_says_how_to_get_what_is_missing(desk: Desk) -> None:
    state = desk.home / ".local/state/codespace"
    state.mkdir(parents=True)
    state.chmod(0o755)
    said = desk.codespace("doctor")
    assert f"fix: chmod 700 {state}" in said.out


def test_what_commands_are_locked_into_is_told_for_each_workspace(desk: Desk) -> None:
    desk.codespace("init", desk.project, "--profile", "workspace-write")
    said = desk.codespace("doctor")
    whole = "limit" if limits.look().carried(Quota()).pids == "none" else "pass"
    assert [line for line in lines(said, whole) if "commands in project" in line and "linux-sandbox" in line]
    assert [line for line in lines(said, "pass") if f"{desk.project}, workspace-write" in line]


def test_a_program_that_is_not_ripgrep_is_a_failure_with_its_fix(desk: Desk) -> None:
    desk.config.parent.mkdir(parents=True)
    desk.config.write_text('rg_path = "/bin/false"\n')
    said = desk.codespace("doctor")
    assert said.code == 1
    assert [line for line in lines(said, "fail") if "ripgrep" in line]
    assert "Correct rg_path" in said.out


def test_a_sound_chain_is_called_sound_and_its_head_can_be_kept(desk: Desk, database: Path) -> None:
    head = desk.codespace("audit", "head").out.strip()
    assert head.startswith("5:")
    said = desk.codespace("audit", "verify", "--head", head)
    assert (said.code, said.out) == (0, f"5 events, head {head}: sound\n")
    assert [line for line in lines(desk.codespace("doctor"), "pass") if "audit chain" in line]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE events SET subject = 'other' WHERE seq = 3", "edited"),
        ("DELETE FROM events WHERE seq = 3", "gap"),
        ("UPDATE events SET at = 9e999 WHERE seq = 3", "edited"),
        ("UPDATE events SET details = CAST(x'ff' AS TEXT) WHERE seq = 3", "edited"),
        ("UPDATE events SET hash = CAST(x'ff1b' AS TEXT) WHERE seq = 5", "edited"),
    ],
)
def test_a_chain_that_somebody_touched_is_found(desk: Desk, database: Path, change: str, fault: str) -> None:
    tamper(database, change)
    said = desk.codespace("audit", "verify")
    assert said.code == 1
    assert said.out.startswith(fault)
    assert "NOT SOUND" in said.out
    assert desk.codespace("doctor").code == 1


def test_a_cut_tail_shows_against_a_head_that_was_kept(desk: Desk, database: Path) -> None:
    head = desk.codespace("audit", "head").out.strip()
    tamper(database, "DELETE FROM events WHERE seq = 5")
    assert desk.codespace("audit", "verify").code == 0
    said = desk.codespace("audit", "verify", "--head", head)
    assert (said.code, said.out.split()[0]) == (1, "cut")


@pytest.mark.parametrize("left", [None, b""], ids=["removed", "emptied"])
def test_a_chain_that_is_gone_shows_against_a_head_that_was_kept(
    desk: Desk, database: Path, left: bytes | None
) -> None:
    head = desk.codespace("audit", "head").out.strip()
    database.unlink()
    if left is not None:
        database.write_bytes(left)
    said = desk.codespace("audit", "verify", "--head", head)
    assert (said.code, said.out.split()[0]) == (1, "cut")
    assert "NOT SOUND" in said.out
    assert "nothing has been recorded yet" in said.err
    assert desk.codespace("audit", "verify", "--head", f"0:{'0' * 64}").code == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE grants", "it lacks grants.approval_id"),
        ("DROP INDEX operations_key", "it lacks operations_key"),
        ("UPDATE operations SET files = 'none'", "files of row 1 of operations"),
        ("UPDATE operations SET changes = '5'", "changes of row 1 of operations"),
    ],
)
def test_doctor_finds_what_a_daemon_would_stumble_over(desk: Desk, database: Path, change: str, told: str) -> None:
    row = "'op-x', 'patch', 'apply_patch', 'w', '/w', '', 'applied', 'inst-x', 1.0, '[]', '[]'"
    columns = "id, kind, tool, workspace_id, root, fingerprint, state, instance_id, created_at, files, changes"
    tamper(database, f"INSERT INTO operations ({columns}) VALUES ({row})")
    assert lines(desk.codespace("doctor"), "fail") == []
    tamper(database, change)
    said = desk.codespace("doctor")
    assert said.code == 1
    assert told in lines(said, "fail")[0]


def test_a_chain_on_a_filesystem_that_may_only_be_read_is_read_unless_its_newest_is_in_a_log(
    desk: Desk, database: Path
) -> None:
    mounted = ("bwrap", "--dev-bind", "/", "/", "--ro-bind", database.parent, database.parent)

    def verify() -> subprocess.CompletedProcess[str]:
        words = (*mounted, sys.executable, "-m", "codespace", "audit", "verify")
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    database.chmod(0o644)
    said = verify()
    assert (said.returncode, said.stdout.split()[0]) == (0, "5"), said.stderr
    (database.parent / f"{database.name}-wal").write_bytes(b"newer")
    said = verify()
    assert (said.returncode, said.stdout) == (2, "")
    assert "Copy both to where they may be written" in said.stderr


def test_asking_about_a_chain_that_is_not_there_makes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said = desk.codespace("audit", "verify")
    assert said.code == 2
    assert "nothing has been recorded yet" in said.err
    monkeypatch.setenv("CODESPACE_OPERATIONS_DB", ":memory:")
    assert desk.codespace("audit", "head").code == 2
    assert not (desk.home / ".local/state/codespace/operations.sqlite").exists()


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_of_ours_is_told_and_left_alone(desk: Desk, content: bytes) -> None:
    desk.codespace("doctor")
    path = desk.home / ".local/state/codespace/operations.sqlite"
    path.write_bytes(content)
    for words in (["audit", "verify"], ["audit", "head"], ["doctor"]):
        said = desk.codespace(*words)
        assert said.code in (1, 2)
        assert "Traceback" not in said.err
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_nothing_to_be_moved_away(desk: Desk) -> None:
    desk.codespace("doctor")
    with sqlite3.connect(desk.home / ".local/state/codespace/operations.sqlite") as db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()
    said = desk.codespace("doctor").out
    fix = said.partition("is a database of another program")[2].partition("fix: ")[2].split("\n")[0]
    assert fix == "Set CODESPACE_OPERATIONS_DB to a file of its own."


@pytest.mark.parametrize("head", ["5", "5:abc", "x:" + "0" * 64])
def test_a_head_that_is_none_is_refused(desk: Desk, head: str) -> None:
    assert desk.codespace("audit", "verify", "--head", head).code == 2


def tamper(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA foreign_keys = OFF")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(statement)
        connection.commit()
    finally:
        connection.close()
