"""While the account has no watch of epoll left: what runs is read, written to and followed to its end all the same."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from codespace import limits, watches
from codespace.runner.output.output import Output
from codespace.sandbox.box import Sandbox
from codespace.testing import open_bench as open_daemon
from codespace.testing.shortage import no_watches
from helper.proxy.run import stand

from .supervised import open_bench


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize("sandbox", [None, Sandbox()], ids=["plain", "boxed"])
async def test_a_command_is_started_and_read_while_nothing_can_be_watched(
    tmp_path: Path, sandbox: Sandbox | None, tty: bool
) -> None:
    async with open_bench(tmp_path, sandbox=sandbox) as bench:
        with no_watches() as full:
            state, text = await bench.run("/bin/sh", "-c", "echo one; sleep 0.2; echo two; exit 3", tty=tty)
    assert full.refused
    assert (state.exit_code, text.split()) == (3, ["one", "two"])


async def test_what_a_pipe_does_not_take_at_once_is_written_while_nothing_can_be_watched(tmp_path: Path) -> None:
    data = b"x" * (4 * limits.PIPE_BYTES)
    async with open_bench(tmp_path) as bench:
        with no_watches():
            state, text = await bench.run("/bin/sh", "-c", "sleep 0.2; wc -c", stdin=data)
    assert (state.exit_code, text.strip()) == (0, str(len(data)))


async def test_a_client_patches_runs_and_searches_while_nothing_can_be_watched() -> None:
    patch = "*** Begin Patch\n*** Add File: new.txt\n+" + "n" * 200_000 + "\n*** End Patch\n"
    async with open_daemon() as bench:
        with no_watches():
            await bench.call("apply_patch", patch=patch)
            ended = await bench.call("exec_command", command=["wc", "-c", "new.txt"], wait_seconds=20)
            found = await bench.call("search", pattern="nnn")
    assert ended["chunk"].split() == ["200001", "new.txt"]
    assert "new.txt" in str(found)


async def test_a_shortage_is_waited_out_and_any_other_error_is_told() -> None:
    def fails(number: int) -> Any:
        async def wait() -> None:
            await trio.lowlevel.checkpoint()
            raise OSError(number, os.strerror(number))

        return wait

    await watches.patiently(fails(errno.ENOSPC))
    with pytest.raises(OSError, match="descriptor"):
        await watches.patiently(fails(errno.EBADF))


async def test_a_fault_in_following_a_command_ends_that_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(tmp_path, sandbox=Sandbox()) as bench:
        other = await bench.spawn("/bin/cat", open_stdin=True)
        with monkeypatch.context() as faulty, capture_logs() as told:
            faulty.setattr(Output, "append", lambda *_: [][0])
            state, _ = await bench.run("/bin/sh", "-c", "echo here; sleep 600")
        await bench.supervisor.write_stdin(other, b"still here", eof=True)
        assert (await bench.supervisor.wait_exit(other)).exit_code == 0
        assert (await bench.read(other)).text == "still here"
    assert (state.state, state.termination) == ("exited", "lost")
    assert any("files is not known: the run was ended by a fault" in note for note in state.notes)
    assert any(line["log_level"] == "error" for line in told)


async def test_a_door_whose_order_comes_while_there_is_no_watch_serves_once_there_are_some() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stand, theirs, 0)
            await trio.testing.wait_all_tasks_blocked()
            with no_watches():
                socket.send_fds(ours, [b'{"rules": []}\n'], [listener.fileno()])
                ours.setblocking(False)
                assert b"open" in await watches.receive(ours, 1_000)
            asked = await trio.open_tcp_stream(*listener.getsockname())
            async with asked:
                with trio.fail_after(30):
                    await asked.send_all(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
                    answer = await asked.receive_some()
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 403"), answer
