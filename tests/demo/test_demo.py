"""`codespace demo` ends with 0 only if every step was right, in plain text, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import codespace.demo
from codespace.demo.agent import Agent, Wrong, check
from codespace.demo.story import STEPS, ask
from codespace.demo.teller import Teller
from codespace.testing.installed import script


def test_the_installed_demo_shows_every_step_in_order_and_ends_with_0(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([script(), "demo"], env=environ, capture_output=True, timeout=250)
    said = done.stdout.decode()
    assert done.returncode == 0, said
    titles = [line for line in said.splitlines() if line[:2].strip().isdigit() and line[2:4] == ". "]
    assert titles == [f"{number:2}. {title}" for number, (title, _) in enumerate(STEPS, 1)]
    assert said.splitlines().count("    right") == len(STEPS)
    assert said.isprintable() or all(line.isprintable() for line in said.splitlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_early_says_nothing_more_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert ended_early([script(), "demo"], environ, number) == (130, b"")
    assert list(tmp_path.iterdir()) == []


def test_a_demo_in_the_background_of_a_shell_is_ended_in_order_too(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    words = ["sh", "-c", 'trap "" INT; exec "$0" demo', script()]
    assert ended_early(words, environ, signal.SIGTERM) == (130, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_whose_reader_takes_nothing_is_ended_in_order_too(tmp_path: Path, number: signal.Signals) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    reading, writing = os.pipe()
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
    with subprocess.Popen([script(), "demo"], env=environ, stdout=writing, stderr=subprocess.PIPE) as demo:
        try:
            wait_until(lambda: any(tmp_path.glob("*/config.json")))  # the next that it does is to say its first line
            demo.send_signal(number)
            _, told = demo.communicate(timeout=60)
        finally:
            demo.kill()
            os.close(reading)
            os.close(writing)
    assert (demo.returncode, told) == (130, b"")
    assert list(tmp_path.iterdir()) == []


def wait_until(comes: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + 60
    while not comes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended_early(words: list[str], environ: dict[str, str], number: signal.Signals) -> tuple[int, bytes]:
    """Send a demo a signal in its second step; return its exit code and what it wrote to standard error."""
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        while b" 2. " not in demo.stdout.readline():
            pass
        demo.send_signal(number)
        _, told = demo.communicate(timeout=60)
        return demo.returncode, told


def test_a_demo_that_nobody_can_read_still_ends_with_its_verdict(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    words = ["sh", "-c", 'exec "$0" demo >&-', script()]
    done = subprocess.run(words, env=environ, stderr=subprocess.PIPE, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_demo_that_has_no_place_to_be_says_what_it_needs(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    told = subprocess.run(
        [script(), "demo"],
        env=environ,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0)),  # no directory takes a file
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(
        "codespace: there is no place for a workspace that is thrown away: No usable temporary"
    )
    assert told.stderr.endswith("\n  Set TMPDIR to a directory that takes new files.\n")
    assert list(tmp_path.iterdir()) == []


async def a_broken_promise(agent: Agent) -> list[str]:
    check(agent.on_disk("notes/recipe.txt") == "", "the recipe\x1b[2J is still there")
    return []


async def a_missing_field(agent: Agent) -> list[str]:
    return [(await agent.call("workspace_info"))["no such field"]]


async def a_refusal_that_does_not_come(agent: Agent) -> list[str]:
    await agent.refused("PATH_ESCAPE", "read", workspace_id="notes", path="recipe.txt")
    return []


async def another_refusal(agent: Agent) -> list[str]:
    await agent.refused("PATH_ESCAPE", "read", workspace_id="notes", path="missing.txt")
    return []


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (a_broken_promise, "WRONG: the recipe\\x1b[2J is still there"),
        (a_missing_field, "WRONG: an answer has no 'no such field'"),
        (a_refusal_that_does_not_come, "WRONG: read was not refused"),
        (another_refusal, "WRONG: read was refused with FILE_NOT_FOUND and not with PATH_ESCAPE"),
    ],
)
def test_one_wrong_step_ends_the_story_with_1_and_the_daemons_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], step: object, said: str
) -> None:
    monkeypatch.setattr(codespace.demo, "STEPS", (("Ask", ask), ("Wrong", step), ("Never told", ask)))
    assert codespace.demo.main() == 1
    shown = capfd.readouterr().out
    assert said in shown
    assert "Never told" not in shown
    assert "daemon started" in shown
    assert "\x1b" not in shown


def test_a_daemon_that_does_not_start_is_a_wrong_story(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(codespace.demo.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    assert codespace.demo.main() == 1
    assert "WRONG" in capfd.readouterr().out


def test_a_check_that_holds_says_nothing() -> None:
    check(True, "never said")
    with pytest.raises(Wrong, match="said"):
        check(False, "said")


async def test_what_came_from_outside_never_acts_on_the_terminal(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w") as stream:
        teller = Teller(stream)
        await teller.opening(Path("/tmp/\x1b[31mred"))
        await teller.step("Title")
        await teller.right(["a\rb", "\u202egnp.exe"])
        await teller.wrong("bell\x07", ["log\x1b]0;title\x07"])
    shown = (tmp_path / "shown").read_bytes().decode()
    assert shown.splitlines()[-1] == "    log\\x1b]0;title\\x07"
    assert all(line.isprintable() for line in shown.splitlines())
    assert not any(character in shown for character in "\x1b\r\x07\u202e")


@pytest.fixture
def terminal() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A terminal: the reading end, and a stream that writes to it."""
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        yield leader, stream
    os.close(leader)


@pytest.mark.parametrize(("no_colour", "coloured"), [(False, True), (True, False)])
async def test_colours_are_for_terminals_whose_owner_wants_them(
    terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch, no_colour: bool, coloured: bool
) -> None:
    leader, stream = terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    await Teller(stream).step("Title")
    said = b""
    while b"Title" not in said:  # a terminal hands out what is there by then
        said += os.read(leader, 1000)
    assert (b"\x1b[1m" in said) is coloured
