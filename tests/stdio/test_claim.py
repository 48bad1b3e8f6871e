"""Taking the wire, with standard descriptors in every condition a parent may leave them in."""

from __future__ import annotations

import json
import socket
import subprocess

import trio

from .test_stdio import INITIALIZE, PROGRAM, ROOT, request

HELLO = json.dumps(request("initialize", 0, **INITIALIZE)).encode() + b"\n"


async def test_a_closed_standard_error_is_no_way_onto_the_wire() -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *PROGRAM]
    call = request("tools/call", 1, name="read", arguments={"path": "a.txt"})
    with trio.fail_after(60):
        done = await trio.run_process(shell, stdin=HELLO + json.dumps(call).encode(), capture_stdout=True, cwd=ROOT)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]


async def test_a_socket_carries_the_wire_as_a_pipe_does() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await trio.lowlevel.open_process(
            PROGRAM, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, cwd=ROOT
        )
        theirs.close()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        with trio.fail_after(60):
            await stream.send_all(HELLO)
            assert json.loads(await stream.receive_some())["id"] == 0
            await stream.send_eof()
            assert await process.wait() == 0


async def test_one_terminal_file_for_all_three_ends_as_the_rest() -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *PROGRAM]
    with trio.fail_after(60):
        done = await trio.run_process(shell, stdin=HELLO, capture_stdout=True, cwd=ROOT)
    # standard error shares the pipe here by the caller's own choice; the messages are whole all the same
    assert [json.loads(line)["id"] for line in done.stdout.splitlines() if line.startswith(b"{")] == [0]
