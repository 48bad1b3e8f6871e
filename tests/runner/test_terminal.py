"""A command with a terminal: what a person at a keyboard would see, driven through the verbs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import SpawnRequest
from codespace.protocol.tools import TABLE
from codespace.runner.terminal import Terminal
from codespace.testing import processes

from .supervised import Bench, open_bench, refused

CTRL_C, CTRL_D, CTRL_Z, ESCAPE = "\x03", "\x04", "\x1a", "\x1b"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed; .ci/run installs it"
    return found


async def shell(bench: Bench) -> str:
    """Start bash with a short prompt and no files of anybody's."""
    process_id = await bench.spawn(
        program("bash"), "--norc", "--noprofile", "-i", tty=True, env={"PS1": "$ ", "INPUTRC": "/dev/null"}
    )
    await bench.wait_text(process_id, "$ ")
    return process_id


# --- the terminal itself ---


async def test_it_is_a_terminal_of_24_by_80_from_the_first_instruction_on(bench: Bench) -> None:
    state, text = await bench.run("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM", tty=True)
    assert (text, state.exit_code) == ("24 80\r\nxterm-256color\r\n", 0)


async def test_it_has_the_size_that_was_asked_for(bench: Bench) -> None:
    assert (await bench.run("stty", "size", tty=True, rows=50, cols=132))[1] == "50 132\r\n"


async def test_it_is_the_controlling_terminal_and_the_command_leads_its_foreground(bench: Bench) -> None:
    probe = "import os; t = os.open('/dev/tty', os.O_RDWR); print(os.getsid(0) == os.getpid() == os.tcgetpgrp(t))"
    assert (await bench.run("python3", "-c", probe, tty=True))[1] == "True\r\n"


async def test_all_it_writes_is_one_stream(bench: Bench) -> None:
    state, text = await bench.run("sh", "-c", "echo out; echo err >&2", tty=True)
    assert text == "out\r\nerr\r\n"
    assert state.output_total == {"combined": 10, "stdout": 10, "stderr": 0}


async def test_what_is_typed_is_echoed_until_the_program_turns_that_off(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "read a; stty -echo; echo ready; read b; echo got $a $b", tty=True)
    await bench.type(process_id, "seen\n", until="ready")
    await bench.type(process_id, "hidden\n", until="got")
    await bench.supervisor.wait_exit(process_id)
    assert (await bench.read(process_id)).text == "seen\r\nready\r\ngot seen hidden\r\n"


async def test_the_end_of_input_is_a_key_and_not_the_end_of_the_terminal(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "cat; echo between; cat", tty=True)
    await bench.supervisor.write_stdin(process_id, b"one\n", eof=True)
    await bench.wait_text(process_id, "between\r\n")
    await bench.supervisor.write_stdin(process_id, b"half a line", eof=True)
    state = await bench.supervisor.wait_exit(process_id)
    assert state.exit_code == 0
    assert (await bench.read(process_id)).text == "one\r\none\r\nbetween\r\nhalf a linehalf a line"


DEAF = "import time, tty; tty.setraw(0); print('raw', flush=True); time.sleep(600)"


async def test_an_end_of_input_that_a_full_terminal_does_not_take_is_no_success(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STDIN_SECONDS", 0.1)
    process_id = await bench.spawn(sys.executable, "-c", DEAF, tty=True)
    await bench.wait_text(process_id, "raw")

    async def press() -> None:
        while await bench.supervisor.write_stdin(process_id, b"y" * 4_096, eof=False):
            pass
        while True:  # where no block fits, some keys still may
            assert await bench.supervisor.write_stdin(process_id, b"", eof=True) == 0

    found = await refused("TIMEOUT", press())
    assert found.details == {"bytes_written": 0}
    assert "send `eof` with empty `data`" in str(found.next_step)


async def test_what_was_taken_before_the_end_of_input_is_counted_where_the_command_ends_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_id = await bench.spawn(sys.executable, "-c", DEAF, tty=True)
    await bench.wait_text(process_id, "raw")
    stdin = bench.supervisor._find(process_id).stdin
    assert stdin is not None
    write_some, pressing = stdin.write_some, trio.Event()

    async def take_data_alone(block: memoryview) -> int:
        if bytes(block) == b"data":
            return await write_some(block)
        pressing.set()  # and the key waits, as behind a full terminal
        await bench.supervisor.wait_exit(process_id)
        return await write_some(block)

    monkeypatch.setattr(stdin, "write_some", take_data_alone)
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            found = await refused("PROCESS_EXITED", bench.supervisor.write_stdin(process_id, b"data", eof=True))
            assert found.details is not None
            assert found.details["bytes_written"] == 4

        nursery.start_soon(write)
        await pressing.wait()
        await bench.supervisor.terminate(process_id, 0.0)


async def test_an_end_of_input_for_which_the_terminal_has_no_key_is_refused_and_nothing_typed(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "stty eof undef; echo ready; head -c 4 | od -c", tty=True)
    await bench.wait_text(process_id, "ready")
    found = await refused("INVALID_ARGUMENT", bench.supervisor.write_stdin(process_id, b"x", eof=True))
    assert found.details == {"bytes_written": 1}
    assert "terminate_process" in str(found.next_step)
    await bench.supervisor.write_stdin(process_id, b"yz\n", eof=False)
    await bench.wait_text(process_id, "x   y   z")


async def test_stdin_at_the_start_is_typed_also_where_the_terminal_has_no_key_for_its_end() -> None:
    terminal = Terminal(24, 80)
    modes = termios.tcgetattr(terminal.theirs[0])
    modes[6][termios.VEOF] = b"\0"
    termios.tcsetattr(terminal.theirs[0], termios.TCSANOW, modes)
    request = SpawnRequest("proc-1", ("cat",), ".", {}, 60.0, stdin=b"text\n", tty=True)
    keys = terminal.take_stdin(request)
    try:
        await keys.feed()
        assert os.read(terminal.theirs[0], 100) == b"text\n"
    finally:
        keys.close()
        terminal.close()


async def test_stdin_that_is_sent_at_the_start_is_typed_and_ended(bench: Bench) -> None:
    assert (await bench.run("cat", tty=True, stdin=b"text\n"))[1] == "text\r\ntext\r\n"


async def test_another_size_reaches_the_program_as_a_signal(bench: Bench) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 600 & wait; done"
    process_id = await bench.spawn("sh", "-c", script, tty=True)
    await bench.wait_text(process_id, "ready")
    await bench.supervisor.resize(process_id, 30, 100)
    await bench.wait_text(process_id, "30 100")


async def test_a_command_on_pipes_has_no_size(bench: Bench) -> None:
    process_id = await bench.spawn("sleep", "600")
    await refused("INVALID_ARGUMENT", bench.supervisor.resize(process_id, 24, 80))


async def test_a_terminal_that_ended_has_no_size_and_takes_no_keys(bench: Bench) -> None:
    process_id = await bench.spawn("true", tty=True)
    await bench.supervisor.wait_exit(process_id)
    await refused("PROCESS_EXITED", bench.supervisor.resize(process_id, 24, 80))
    await refused("PROCESS_EXITED", bench.supervisor.write_stdin(process_id, b"x", eof=False))


async def test_output_right_before_the_end_is_not_lost(bench: Bench) -> None:
    _, text = await bench.run("sh", "-c", "seq 5000", tty=True)
    assert text == "".join(f"{number}\r\n" for number in range(1, 5001))


async def test_a_program_that_does_not_read_takes_no_more_than_the_terminal_holds(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "stty raw -echo; echo ready; exec sleep 600", tty=True)
    await bench.wait_text(process_id, "ready")
    with trio.move_on_after(0.5):
        await bench.supervisor.write_stdin(process_id, b"x" * 1_000_000, eof=False)
        pytest.fail("a megabyte was taken by nobody")
    assert (await bench.supervisor.terminate(process_id, 1)).state == "exited"


async def test_of_a_longer_line_than_a_terminal_holds_a_program_gets_as_much_as_the_model_is_told(bench: Bench) -> None:
    length = "import sys; print('ready', flush=True); print(len(sys.stdin.readline().rstrip()), 'came')"
    process_id = await bench.spawn("sh", "-c", f'stty -echo; exec python3 -c "{length}"', tty=True)
    await bench.wait_text(process_id, "ready")
    assert await bench.supervisor.write_stdin(process_id, b"x" * 10_000 + b"\r", eof=False) == 10_001
    text = await bench.wait_text(process_id, "came")
    held = re.search(r"(\d+) came", text)
    assert held is not None
    assert f" {held[1]} bytes of a line" in TABLE["write_stdin"].description


async def test_who_waits_to_press_the_last_key_when_the_command_ends_is_told_that_it_ended(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "stty raw -echo; echo ready; exec sleep 600", tty=True)
    await bench.wait_text(process_id, "ready")
    async with trio.open_nursery() as nursery:
        for data, eof in ((b"x" * 1_000_000, False), (b"", True)):
            write = bench.supervisor.write_stdin(process_id, data, eof=eof)
            nursery.start_soon(refused, "PROCESS_EXITED", write)
            await trio.testing.wait_all_tasks_blocked()
        await bench.supervisor.terminate(process_id, 0)


async def test_no_descriptor_stays_after_many_terminals(bench: Bench) -> None:
    await bench.run("true", tty=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        await bench.run("true", tty=True)
    # What is kept of the last one, and its home, may still be being closed.
    while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110 - of this process
        await trio.sleep(0.01)


# --- job control and hang-up ---


async def test_ctrl_c_interrupts_what_is_in_front_and_the_shell_goes_on(bench: Bench) -> None:
    process_id = await shell(bench)
    await bench.type(process_id, "sh -c 'echo up; exec sleep 600'\r", until="up\r\n")
    await bench.type(process_id, CTRL_C, until="$ ")
    await bench.type(process_id, "echo code $?\r", until="code 130")


async def test_a_job_is_stopped_continued_and_brought_back(bench: Bench) -> None:
    process_id = await shell(bench)
    await bench.type(process_id, "sh -c 'echo up; exec cat'\r", until="up\r\n")
    await bench.type(process_id, CTRL_Z, until="$ ")
    await bench.type(process_id, "fg\r", until="exec cat'\r\n")
    await bench.type(process_id, "hello\r", until="hello\r\nhello")
    await bench.type(process_id, CTRL_D, until="$ ")
    await bench.type(process_id, "exit 7\r")
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 7


async def test_a_shell_that_ignores_sigterm_is_hung_up_within_the_grace(bench: Bench) -> None:
    process_id = await shell(bench)
    await bench.type(process_id, "trap 'echo hung up' HUP\r", until="$ ")
    await bench.type(process_id, "sleep 600 & sleep 601\r", until="\n")
    state = await bench.supervisor.terminate(process_id, 5)
    assert state.termination == "terminated"
    assert "hung up" in (await bench.read(process_id)).text


async def test_nothing_of_a_terminal_outlives_its_end(bench: Bench) -> None:
    script = "setsid sleep 600 & nohup sleep 601 & echo $$ $!; wait"
    process_id = await bench.spawn("bash", "-c", script, tty=True)
    await bench.wait_text(process_id, "\r\n")
    tree = processes.descendants(os.getpid())
    await bench.supervisor.terminate(process_id, 0.2)
    assert not [pid for pid in tree if processes.command_line(pid).startswith("sleep")]


# --- programs ---


async def test_a_python_repl_answers(bench: Bench) -> None:
    process_id = await bench.spawn("python3", "-q", tty=True, env={"PYTHON_BASIC_REPL": "1", "TERM": "dumb"})
    await bench.wait_text(process_id, ">>> ")
    await bench.type(process_id, "6 * 7\r", until="42")
    await bench.type(process_id, "print('o' + 'n'); __import__('time').sleep(600)\r", until="on\r\n")
    await bench.type(process_id, CTRL_C, until="KeyboardInterrupt")
    await bench.type(process_id, "exit(5)\r")
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 5


async def test_the_end_of_input_ends_a_python_repl(bench: Bench) -> None:
    process_id = await bench.spawn("python3", "-q", tty=True)
    await bench.wait_text(process_id, ">>> ")
    await bench.supervisor.write_stdin(process_id, b"", eof=True)
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 0


async def test_vim_writes_what_was_typed(bench: Bench) -> None:
    process_id = await bench.spawn(program("vim"), "-u", "NONE", "-i", "NONE", "-n", "note.txt", tty=True)
    await bench.wait_text(process_id, "note.txt")
    await bench.type(process_id, "ihello from vim" + ESCAPE)
    await bench.type(process_id, ":wq\r")
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 0
    assert (bench.folder / "note.txt").read_text() == "hello from vim\n"


async def test_less_pages_and_searches(bench: Bench) -> None:
    (bench.folder / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    process_id = await bench.spawn(program("less"), "long.txt", tty=True)
    await bench.wait_text(process_id, "line 23")
    await bench.type(process_id, "/line 777\r", until="line 799")
    await bench.type(process_id, "q")
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 0


async def test_top_draws_into_the_size_it_is_given(bench: Bench) -> None:
    process_id = await bench.spawn(program("top"), tty=True, rows=20, cols=100)
    await bench.wait_text(process_id, "PID")
    await bench.type(process_id, "q")
    assert (await bench.supervisor.wait_exit(process_id)).exit_code == 0
