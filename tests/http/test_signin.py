"""Tickets and sessions of the console: made by the owner of the state directory only, good once and for a while."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from codespace import limits
from codespace.http import signin
from codespace.http.signin import Sessions, Tickets


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tickets(tmp_path: Path, clock: Clock) -> Tickets:
    return Tickets(str(tmp_path), clock)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "console" / "tickets").iterdir())


def test_a_ticket_is_good_once_and_its_file_names_only_its_digest(tmp_path: Path, tickets: Tickets) -> None:
    ticket = tickets.issue()
    (path,) = files(tmp_path)
    assert ticket not in path.name + path.read_text()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert tickets.take(ticket)
    assert not tickets.take(ticket)
    assert files(tmp_path) == []


def test_of_many_who_take_a_ticket_at_once_one_has_it(tickets: Tickets) -> None:
    ticket = tickets.issue()
    together = threading.Barrier(8)
    taken: list[bool] = []

    def take() -> None:
        together.wait()
        taken.append(tickets.take(ticket))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 7 + [True]


def test_a_ticket_that_is_too_old_is_used_up_and_swept(tmp_path: Path, tickets: Tickets, clock: Clock) -> None:
    late, never = tickets.issue(), tickets.issue()
    clock.now += limits.CONSOLE_TICKET_SECONDS
    assert not tickets.take(late)
    assert len(files(tmp_path)) == 1
    tickets.issue()
    assert len(files(tmp_path)) == 1
    assert not tickets.take(never)


@pytest.mark.parametrize("guess", ["", "x", "../address", "\udcff", "a" * 100_000])
def test_what_is_no_ticket_opens_nothing(tickets: Tickets, guess: str) -> None:
    tickets.issue()
    assert not tickets.take(guess)


def test_a_ticket_that_others_could_have_written_is_none(tmp_path: Path, tickets: Tickets) -> None:
    readable, linked = tickets.issue(), tickets.issue()
    for path in files(tmp_path):
        path.chmod(0o644)
    assert not tickets.take(readable)
    (path,) = [path for path in files(tmp_path) if path.exists()][-1:]
    target = tmp_path / "elsewhere"
    target.write_text("9999999999")
    target.chmod(0o600)
    path.unlink()
    path.symlink_to(target)
    assert not tickets.take(linked)


def test_a_session_ends_with_its_time_by_sign_out_or_for_newer_ones(clock: Clock) -> None:
    sessions = Sessions(clock)
    first = sessions.open()
    session = sessions.find(first)
    assert session is not None
    assert session.csrf not in first
    assert sessions.find(first + "x") is None
    assert sessions.find(None) is None
    sessions.close(first)
    assert sessions.find(first) is None
    second = sessions.open()
    clock.now += limits.CONSOLE_SESSION_SECONDS
    assert sessions.find(second) is None
    many = [sessions.open() for _ in range(limits.CONSOLE_SESSIONS + 1)]
    assert [sessions.find(cookie) is not None for cookie in many] == [False] + [True] * limits.CONSOLE_SESSIONS


def test_where_consoles_listen_is_told_the_newest_first_and_none_takes_back_the_word_of_another(tmp_path: Path) -> None:
    folder = str(tmp_path)
    first, second = "http://codespace.localhost:1/console/", "http://codespace.localhost:2/console/"
    assert signin.announced(folder) == []
    one, other = signin.Word(folder, first), signin.Word(folder, second)
    for path in (tmp_path / "console").iterdir():
        made = 2 if path.read_text() == first else 1
        os.utime(path, (made, made))
    assert signin.announced(folder) == [first, second]
    one.withdraw()
    assert signin.announced(folder) == [second]
    other.withdraw()
    assert signin.announced(folder) == []
    assert os.listdir(tmp_path / "console") == []


def test_a_word_that_nobody_could_lock_any_more_is_swept_and_one_in_the_making_is_not(tmp_path: Path) -> None:
    left, made = tmp_path / "console/.address-left", tmp_path / "console/.address-made"
    left.parent.mkdir()
    for path in (left, made):
        path.write_text("http://codespace.localhost:1/console/")
    os.utime(left, (1, 1))
    assert signin.announced(str(tmp_path)) == []
    assert list(left.parent.iterdir()) == [made]
