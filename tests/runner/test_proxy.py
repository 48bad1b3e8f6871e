"""The real proxy program through the daemon's end: doors, lists, decisions, ends and confinement."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest
import trio

from codespace import limits
from codespace.contract import Domain
from codespace.errors import Refusal
from codespace.runner.network.decisions import Decision, Decisions
from codespace.runner.network.door import Door
from codespace.runner.network.door import open_door as open_control
from codespace.runner.network.proxy import Proxy
from codespace.testing import processes

from ..sandbox.until import until

SECONDS = 60.0
MAY_LOOK = os.geteuid() == 0
"""Whether what processes hold that are not dumpable may be looked at: another account may not, which is the point."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    started = Proxy()
    try:
        yield started
    finally:
        await started.aclose()


def listener() -> tuple[socket.socket, int]:
    made = socket.create_server(("127.0.0.1", 0))
    return made, made.getsockname()[1]


async def open_door(program: Proxy, *domains: Domain) -> tuple[Door, int]:
    made, port = listener()
    return await program.open(domains, made), port


@asynccontextmanager
async def door_of_process(program: Proxy, *domains: Domain) -> AsyncIterator[tuple[Door, int, int]]:
    """Lend an open door, its port and the process that is the door: the one that the keeper had laid by before.

    So it is known to an account too that may not look at what processes hold which are not dumpable, as these are.
    """
    await program.warm()
    keeper = program._resident._program
    assert keeper is not None
    (pid,) = await until(lambda: [pid for pid in processes.children(keeper.pid) if _is_confined(pid)])
    door, port = await open_door(program, *domains)
    try:
        if MAY_LOOK:
            assert pid_of(port) == pid
        yield door, port, pid
    finally:
        door.drop()


def _is_confined(pid: int) -> bool:
    """Return whether a keeper's child is a door: what it starts while it loads is not confined yet."""
    return processes.is_alive(pid) and _status(pid).get("NoNewPrivs") == "1"


def _status(pid: int) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {}


async def ask(port: int, sent: bytes) -> bytes:
    data = b""
    with trio.fail_after(SECONDS):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(sent)
            while block := await stream.receive_some():
                data += block
    return data


def get(url: str) -> bytes:
    return f"GET {url} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@asynccontextmanager
async def server() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A sentinel on loopback: its port, and the heads that reached it."""
    heads: list[bytes] = []

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            heads.append(await stream.receive_some())
            await stream.send_all(ANSWER)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, talk, 0)
        yield listeners[0].socket.getsockname()[1], heads
        nursery.cancel_scope.cancel()


def pid_of(port: int) -> int:
    """The process that listens on `port`, other than this one."""
    for pid in processes.descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # another one, which ended meanwhile
            for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A" and _holds(pid, fields[9]):
                    return pid
    raise AssertionError("nobody listens")


def _holds(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                return True
    return False


async def wait_shut(port: int) -> None:
    """Return once nobody listens on `port`; a process that ends, or refuses a list, has it for a moment longer."""
    with trio.fail_after(SECONDS):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                return
            await trio.aclose_forcefully(stream)


async def test_a_door_lets_through_what_its_list_names_and_tells_every_decision() -> None:
    async with proxy() as program, server() as (port, heads):
        door, inside = await open_door(program, Domain("db", port, "127.0.0.1"), Domain("localhost", port))
        assert (await ask(inside, get(f"http://db:{port}/x"))).endswith(b"hi")
        assert (await ask(inside, get("http://evil.example/"))).startswith(b"HTTP/1.1 403 ")
        assert (await ask(inside, get(f"http://localhost:{port}/"))).startswith(b"HTTP/1.1 403 ")
        told = [await door.decision() for _ in range(3)]
        assert [(one.host, one.port, one.allowed, one.code) for one in told if one] == [
            ("db", port, True, "listed"),
            ("evil.example", 80, False, "not-listed"),
            ("localhost", port, False, "not-global"),
        ]
        assert len(heads) == 1
        assert b"GET /x HTTP/1.1\r\nHost: db:%d\r\n" % port in heads[0]
        await door.close(lambda decision: None)
        assert door.end is not None
        assert door.end.sent_bytes == len(heads[0])
        assert door.end.received_bytes == len(ANSWER)


async def test_a_closed_door_leaves_no_listener_no_connection_and_no_process() -> None:
    idle = Domain("idle", 80, "127.0.0.1")
    async with proxy() as program, door_of_process(program, idle) as (door, inside, process):
        async with await trio.open_tcp_stream("127.0.0.1", inside) as open_connection:
            await door.close(lambda decision: None)
            with trio.fail_after(SECONDS):
                assert await _end_of(open_connection)
                await processes.wait_gone([process])
        await wait_shut(inside)


async def _end_of(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def test_doors_do_not_know_each_others_lists_and_end_apart() -> None:
    async with proxy() as program, server() as (port, heads):
        first, one = await open_door(program, Domain("db", port, "127.0.0.1"))
        second, two = await open_door(program)
        assert (await ask(one, get(f"http://db:{port}/"))).endswith(b"hi")
        assert (await ask(two, get(f"http://db:{port}/"))).startswith(b"HTTP/1.1 403 ")
        await second.close(lambda decision: None)
        assert (await ask(one, get(f"http://db:{port}/"))).endswith(b"hi")
        assert len(heads) == 2
        await first.close(lambda decision: None)


async def test_a_list_that_cannot_be_kept_opens_no_door() -> None:
    async with proxy() as program:
        made, port = listener()
        with pytest.raises(Refusal, match=r"SANDBOX_UNAVAILABLE.*is no address.*Nothing was started"):
            await program.open([Domain("a", 80, "::::")], made)
        await wait_shut(port)


async def test_a_door_that_is_killed_takes_the_way_out_with_it_and_is_seen_to_be_gone() -> None:
    async with proxy() as program:
        async with door_of_process(program) as (door, inside, process):
            os.kill(process, signal.SIGKILL)
            with trio.fail_after(SECONDS):
                assert await door.decision() is None
            assert door.end is None
            await door.close(lambda decision: None)
        await wait_shut(inside)


async def test_a_keeper_and_its_spare_that_were_killed_are_replaced() -> None:
    async with proxy() as program:
        await (await open_door(program))[0].close(lambda decision: None)
        keeper = program._resident._program
        assert keeper is not None
        victims = await until(lambda: processes.descendants(keeper.pid))  # the spare door
        for pid in (keeper.pid, *victims):
            with contextlib.suppress(ProcessLookupError):  # a door that was just closed
                os.kill(pid, signal.SIGKILL)
        with trio.fail_after(SECONDS):
            await processes.wait_gone(victims)
        door, inside = await open_door(program)
        assert (await ask(inside, get("http://evil.example/"))).startswith(b"HTTP/1.1 403 ")
        await door.close(lambda decision: None)


async def test_a_door_whose_daemon_is_killed_ends() -> None:
    script = (
        "import trio, socket, os\n"
        "from codespace.runner.network.proxy import Proxy\n"
        "async def main():\n"
        "    made = socket.create_server(('127.0.0.1', 0))\n"
        "    port = made.getsockname()[1]\n"
        "    program = Proxy()\n"
        "    door = await program.open([], made)\n"
        "    print(port, flush=True)\n"
        "    await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    daemon, said = _start(script)
    with daemon, said:
        try:
            port = int(await trio.to_thread.run_sync(said.readline))
            below = processes.descendants(daemon.pid)
            if MAY_LOOK:
                assert pid_of(port) in below
            assert (await ask(port, get("http://evil.example/"))).startswith(b"HTTP/1.1 403 ")
            assert len(below) >= 2  # keeper, door, and a spare as soon as it is made
        finally:
            daemon.kill()
    with trio.fail_after(SECONDS):
        await processes.wait_gone(below)
    await wait_shut(port)


def _start(script: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    daemon = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    return daemon, daemon.stdout


async def test_a_cancelled_opening_leaves_no_door() -> None:
    async with proxy() as program:
        made, port = listener()
        with trio.CancelScope() as scope:
            scope.cancel()
            await program.open([], made)
        assert scope.cancelled_caught
        assert made.fileno() == -1
        await wait_shut(port)


async def test_no_door_opens_once_the_daemon_is_stopping() -> None:
    program = Proxy()
    await program.warm()
    await program.aclose()
    made, _ = listener()
    with pytest.raises(Refusal, match="SHUTTING_DOWN"):
        await program.open([], made)


async def test_the_proxy_holds_no_right_that_it_does_not_need() -> None:
    async with proxy() as program, door_of_process(program) as (door, _, pid):
        _check_rights(pid)
        await door.close(lambda decision: None)


def _check_rights(pid: int) -> None:
    status = _status(pid)
    assert status["NoNewPrivs"] == "1"
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    bounds = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        1                    1" in bounds
    assert str(limits.PROXY_MEMORY_BYTES) in bounds
    if MAY_LOOK:
        assert Path(f"/proc/{pid}/environ").read_bytes() in (b"LANG=C.UTF-8\0", b"")
        numbers = [number for number in os.listdir(f"/proc/{pid}/fd") if int(number) > 2]
        held = {os.readlink(f"/proc/{pid}/fd/{number}").partition(":")[0] for number in numbers}
        assert held <= {"socket", "anon_inode"}
    else:
        with pytest.raises(PermissionError):
            Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_thousand_connections_to_the_program_leave_the_daemon_quick() -> None:
    async with proxy() as program, server() as (port, _):
        door, inside = await open_door(program, Domain("db", port, "127.0.0.1"))
        crowd = [await trio.open_tcp_stream("127.0.0.1", inside) for _ in range(300)]
        for stream in crowd:
            await stream.send_all(b"GET http://db/ HTTP/1.1\r\nX: ")
        assert (await ask(inside, get(f"http://db:{port}/"))).endswith(b"hi")
        for stream in crowd:
            await trio.aclose_forcefully(stream)
        await door.close(lambda decision: None)


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"event": "decision"}',
        b'{"event": "decision", "host": 1, "port": "x", "allowed": 1, "code": 1, "reason": 1, "rule": 1, "address": 1}',
        b'{"event": "end", "turned_away": [], "sent_bytes": 0, "received_bytes": 0}',
        b'{"event": "end", "turned_away": 1e999, "sent_bytes": 0, "received_bytes": 0}',
        b'{"event": "decision", "host": "a", "port": -1e999, "allowed": true, "code": "", "reason": "", "rule": null, '
        b'"address": null}',
        b"[" * 60_000,
        b"x" * 100_000,
    ],
)
async def test_a_proxy_that_speaks_nonsense_is_heard_no_more(line: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        door = Door(ours)
        theirs.sendall(line + b"\n")
        with trio.fail_after(SECONDS):
            assert await door.decision() is None
            theirs.setblocking(False)
            with contextlib.suppress(ConnectionResetError):  # where it had not heard all of it
                assert theirs.recv(1) == b"", "a door that is not heard any more is told to close"
            await door.close(lambda decision: None)
        assert door.end is None


@pytest.mark.parametrize("landlock", ["1e999", "null", '"x"', "[]"])
async def test_a_proxy_that_opens_with_nonsense_has_no_door(landlock: str) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made, _ = listener()
    with theirs, made:
        theirs.sendall(b'{"event": "open", "landlock": %b}\n' % landlock.encode())
        with trio.fail_after(SECONDS), pytest.raises(Refusal, match=r"SANDBOX_UNAVAILABLE.*nonsense"):
            await open_control(ours, b"{}\n", made)
        assert ours.fileno() == -1


async def test_what_a_tricked_proxy_says_is_escaped() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        door = Door(ours)
        told = {"host": "\x1b[2J", "port": 1, "allowed": "yes", "code": "x", "reason": "\u202e", "rule": "\n"}
        theirs.sendall(json.dumps({"event": "decision", "address": None, **told}).encode() + b"\n")
        found = await door.decision()
        theirs.shutdown(socket.SHUT_WR)
        await door.close(lambda decision: None)
    assert found == Decision("\\x1b[2J", 1, False, "x", "\\u202e", "\\n", None)


def decision(host: str) -> Decision:
    return Decision(host, 80, False, "not-listed", f"{host}:80 is not in allowed_domains.", None, None)


def test_requests_that_name_no_host_are_told_apart_by_what_was_wrong_with_them() -> None:
    kept = Decisions()
    for reason in ("Two lengths.", "No request.", "No request."):
        kept.add(Decision("", None, False, "bad-request", reason, None, None))
    assert [(row["reason"], row["times"]) for row in kept.rows()] == [("Two lengths.", 1), ("No request.", 2)]


def test_decisions_are_kept_once_counted_and_bounded() -> None:
    kept = Decisions()
    assert kept.add(decision("a"))
    assert not kept.add(decision("a"))
    for number in range(limits.PROXY_DECISIONS + 10):
        kept.add(decision(f"n{number}"))
    assert kept.rows()[0]["times"] == 2
    assert kept.rows()[0]["reason"] == "a:80 is not in allowed_domains."
    assert len(kept.rows()) == limits.PROXY_DECISIONS
    assert kept.not_kept == 11
