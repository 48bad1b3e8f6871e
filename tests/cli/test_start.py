"""The command line starts light, refuses what it cannot do, and says so in one place."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from codespace import __version__, platform

from .conftest import Desk

CHECKOUT = Path(__file__).parents[2]
_HEAVY = ("trio", "mcp", "pydantic", "sqlite_utils", "structlog", "quart", "hypercorn", "statemachine")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["serve", "--help"], ["demo", "--help"]])
def test_version_and_help_import_nothing_heavy(words: list[str]) -> None:
    program = f"""
import sys
from codespace.cli import main
try:
    main({words!r})
finally:
    print([name for name in {_HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    told = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout
    assert told.stderr == "[]\n"


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Gives Python a locale whose names are not UTF-8, on every machine."""


@pytest.mark.parametrize("entry", ["main", "serve"])
def test_a_locale_of_another_encoding_is_left_at_once(entry: str) -> None:
    program = f"import sys; from codespace import cli; print(sys.getfilesystemencoding(), flush=True); cli.{entry}()"
    words = [sys.executable, "-c", program, "--help"]
    told = subprocess.run(words, env=ASCII, cwd=CHECKOUT, capture_output=True, timeout=60, check=True)
    assert told.stdout.splitlines()[:2] == [b"ascii", b"utf-8"]


def test_an_output_that_lacks_a_letter_gets_its_escape(desk: Desk) -> None:
    directory = desk.project / "ä"
    directory.mkdir()
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "codespace", "init", str(directory)]
    told = subprocess.run(words, env=environ, cwd=CHECKOUT, capture_output=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"/\\xe4" in told.stdout


@pytest.mark.parametrize("entry", ["main", "serve"])
def test_signals_that_a_client_ignored_or_blocked_are_heard_again(entry: str) -> None:
    program = f"""
import signal
from codespace import cli
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGCHLD}})
try:
    cli.{entry}()
finally:
    print(signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    words = [sys.executable, "-c", program, "--help"]
    told = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.splitlines()[-1] == "True set()"


def test_the_version_is_the_packages(desk: Desk) -> None:
    assert desk.codespace("--version").out == f"codespace {__version__}\n"


def test_anything_but_linux_is_refused_in_words() -> None:
    assert platform.refusal("linux") is None
    for system in ("darwin", "win32", "freebsd14"):
        told = platform.refusal(system)
        assert told is not None
        assert "Linux only" in told
        assert system in told


def test_on_another_system_the_command_line_ends_before_anything_else() -> None:
    program = "import sys; sys.platform = 'darwin'; from codespace.cli import main; sys.exit(main(['doctor']))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert "CodeSpace runs on Linux only; this is darwin" in told.stderr


@pytest.mark.parametrize("words", [[], ["serv"], ["serve", "--std"], ["client-config", "emacs"], ["audit"]])
def test_wrong_words_are_refused_and_never_guessed(desk: Desk, words: list[str]) -> None:
    said = desk.codespace(*words)
    assert said.code == 2
    assert "usage: codespace" in said.err


@pytest.mark.parametrize("words", [["serve", "--stdio"], ["serve", "--http"], ["doctor"], ["audit", "head"]])
def test_wrong_settings_end_every_command_with_key_problem_and_fix(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("CODESPACE_LOG", "loud")
    said = desk.codespace(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[0] == "codespace: CODESPACE_LOG"
    assert "`loud` is not a value of this key." in said.err
    assert "`debug`" in said.err


def test_no_auth_without_the_http_door_is_a_mistake(desk: Desk) -> None:
    said = desk.codespace("serve", "--stdio", "--no-auth")
    assert said.code == 2
    assert "--http" in said.err


def test_the_alias_serves_with_the_words_of_the_process(desk: Desk) -> None:
    alias = "import sys; from codespace.cli import serve; sys.exit(serve())"
    told = subprocess.run(
        [sys.executable, "-c", alias, "--no-auth"], capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 2
    assert "--no-auth is about the HTTP door" in told.stderr


@pytest.mark.parametrize(
    ("words", "buffered"),
    [
        (["doctor"], True),
        (["doctor"], False),
        (["client-config", "generic"], True),
        (["client-config", "generic"], False),
        (["--help"], True),  # unbuffered, argparse itself drops what it cannot write
    ],
)
def test_a_closed_pipe_ends_quietly(desk: Desk, words: list[str], buffered: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as out:
        assert written_to(out, words, buffered=buffered) == (1, b"")


@pytest.mark.parametrize("words", [["doctor"], ["client-config", "generic"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_under_the_answer_is_told_in_one_line(desk: Desk, words: list[str], buffered: bool) -> None:
    with open("/dev/full", "wb") as out:
        code, told = written_to(out, words, buffered=buffered)
    assert (code, told) == (1, b"codespace: the answer could not be written: No space left on device.\n")


def written_to(out: IO[bytes], words: list[str], *, buffered: bool) -> tuple[int, bytes]:
    """Run a command with this as its standard output; return exit code and standard error."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        environ["PYTHONUNBUFFERED"] = "1"
    told = subprocess.run(
        [sys.executable, "-m", "codespace", *words],
        stdout=out,
        stderr=subprocess.PIPE,
        env=environ,
        timeout=60,
        check=False,
    )
    return told.returncode, told.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_daemon_without_a_wire_ends_with_a_word_and_no_traceback(desk: Desk, closed: str) -> None:
    told = subprocess.run(
        ["sh", "-c", f'exec "$0" -m codespace serve --stdio {closed}', sys.executable],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert told.returncode == 2
    assert told.stderr == b"codespace: stdin or stdout is closed, and MCP is spoken on both.\n"


def test_python_m_codespace_is_the_same_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "codespace", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == f"codespace {__version__}\n"


def test_a_person_at_a_terminal_is_told_what_serve_does(desk: Desk) -> None:
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "codespace", "serve"], stdin=slave, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        os.write(master, b"\x04")  # Ctrl-D: the end of input
        _, told = process.communicate(timeout=60)
    finally:
        os.close(master)
        os.close(slave)
    assert b"a client is meant to start this command" in told
    assert b"No workspace is registered" in told
    assert process.returncode == 0


def test_the_demo_is_found_by_its_entry() -> None:
    import importlib.util

    found = importlib.util.find_spec("codespace.demo")
    assert found is not None
    assert Path(found.origin or "").name in ("__init__.py", "demo.py")
