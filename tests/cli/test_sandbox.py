"""`codespace sandbox run`: the same sandbox for a person; exit codes, pipes and a terminal come through."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest

from codespace.testing.installed import script

SECONDS = 60


def run(*words: object, said: str = "") -> subprocess.CompletedProcess[str]:
    argv = [script(), "sandbox", "run", *map(str, words)]
    return subprocess.run(argv, input=said, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_pipes_and_the_exit_code_come_through(tmp_path: Path) -> None:
    ran = run(tmp_path, "--", "sh", "-c", "cat; pwd; echo wrong >&2; exit 7", said="in\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, f"in\n{tmp_path}\n", "wrong\n")


def test_a_death_by_signal_is_told_as_a_shell_does(tmp_path: Path) -> None:
    assert run(tmp_path, "--", "sh", "-c", "kill -TERM $$").returncode == 128 + 15


def test_it_is_locked_in(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("secret\n")
    ran = run(tmp_path / "root", "--", "cat", tmp_path / "secret")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "secret" in run(tmp_path, "--", "cat", tmp_path / "secret").stdout


def test_a_program_that_is_not_inside_is_said(tmp_path: Path) -> None:
    ran = run(tmp_path, "--", "no-such-program")
    assert ran.returncode == 125
    assert "no such program inside" in ran.stderr


def test_what_is_hidden_for_an_agent_can_be_hidden_here(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("secret\n")
    assert run(tmp_path, "--", "cat", ".env").stdout == "secret\n"
    assert "secret" not in run(tmp_path, "--hidden", "**/.env", "--", "cat", ".env").stdout


def test_a_network_has_one_door_and_what_it_refused_is_told(tmp_path: Path) -> None:
    ask = (
        'use IO::Socket::INET; $p = IO::Socket::INET->new("127.0.0.1:3128"); '
        'print $p "GET http://evil.example/ HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n"; print scalar <$p>'
    )
    ran = run(tmp_path, "--network", "enabled", "--allow", "good.example=127.0.0.1", "--", "perl", "-e", ask)
    assert ran.stdout.startswith("HTTP/1.1 403 ")
    assert "the operator adds `evil.example`" in ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("/", "--", "true"),
        ("{root}", "--allow", "a.example", "--", "true"),
        ("{root}", "--network", "enabled", "--allow", "not a name", "--", "true"),
        ("{root}", "--hidden", "../x", "--", "true"),
        ("{root}", "--hidden", "*.{{pem,key}}", "--", "true"),
        ("{root}", "--hidden", "{root}/.env", "--", "true"),
        ("{root}", "--readable", "{root}/none", "--", "true"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(*(word.format(root=tmp_path) for word in words)).returncode == 2


def test_a_terminal_has_its_size_ctrl_c_and_an_exit_code(tmp_path: Path) -> None:
    inside = "trap 'echo caught; exit 5' INT; test -t 0 && stty size; echo up; while :; do sleep 0.05; done"
    child, terminal = pty.fork()
    if child == 0:
        termios.tcsetwinsize(0, (30, 100))
        os.execv(script(), [str(script()), "sandbox", "run", str(tmp_path), "--", "sh", "-c", inside])
    said = until(terminal, b"up\r\n")
    assert b"30 100" in said
    os.write(terminal, b"\x03")
    assert b"caught" in until(terminal, b"caught\r\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    os.close(terminal)


def until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        assert select.select([terminal], [], [], SECONDS)[0], said
        said += os.read(terminal, 4096)
    return said


ENDLESS = "echo up; while :; do sleep 0.05; done"


def in_a_terminal(root: Path, inside: str, shell: str = 'exec "$@"') -> tuple[int, int]:
    """Run `inside` in a terminal until it says that it is up; return the pid and the terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv("/bin/sh", ["sh", "-c", shell, "sh", script(), "sandbox", "run", str(root), "--", "sh", "-c", inside])
    until(terminal, b"up\r\n")
    return child, terminal


def test_a_terminal_that_hangs_up_ends_the_sandbox_as_it_ends_a_shell(tmp_path: Path) -> None:
    child, terminal = in_a_terminal(tmp_path, ENDLESS)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP


def test_a_terminal_that_hangs_up_under_its_output_ends_the_sandbox(tmp_path: Path) -> None:
    child, terminal = in_a_terminal(tmp_path, "echo up; exec yes")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_is_told_and_the_terminal_is_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    child, terminal = in_a_terminal(tmp_path, ENDLESS)
    assert not termios.tcgetattr(terminal)[3] & termios.ICANON
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number
    assert termios.tcgetattr(terminal)[3] & termios.ICANON
    os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_is_heard_while_the_terminal_takes_nothing(tmp_path: Path, number: signal.Signals) -> None:
    inside = "echo up; read said; echo more; touch told; exec sleep 1000"
    child, terminal = in_a_terminal(tmp_path, inside)
    theirs = os.open(os.readlink(f"/proc/{child}/fd/0"), os.O_RDWR | os.O_NOCTTY)
    termios.tcflow(theirs, termios.TCOOFF)
    os.close(theirs)
    os.write(terminal, b"go\r")
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        os.sched_yield()
    os.kill(child, number)
    ended = os.pidfd_open(child)
    assert select.select([ended], [], [], SECONDS)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number
    assert termios.tcgetattr(terminal)[3] & termios.ICANON
    os.close(ended)
    os.close(terminal)


def test_the_first_of_many_signals_counts_and_none_breaks_into_the_end(tmp_path: Path) -> None:
    child, terminal = in_a_terminal(tmp_path, ENDLESS)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # of those that wait the lowest is heard first
        os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGHUP
    assert termios.tcgetattr(terminal)[3] & termios.ICANON
    os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_without_a_terminal_is_told_too(tmp_path: Path, number: signal.Signals) -> None:
    argv = [script(), "sandbox", "run", str(tmp_path), "--", "sh", "-c", ENDLESS]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == b"up\n"
        ran.send_signal(number)
        assert ran.communicate(timeout=SECONDS)[1] == b""
        assert ran.returncode == 128 + number
