"""The worker's program by itself: what it gives up, whom it lets in, and how it ends when the wire is broken."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from codespace import limits
from codespace.contract import Runner, SpawnRequest, Workspace
from codespace.errors import Refusal
from codespace.runner.worker import hire
from codespace.runner.worker.frames import HEAD, BadFrame, Unpacker, pack
from codespace.runner.worker.greeting import SECRET_BYTES, SOCKET, VERSION, hello
from codespace.runner.worker.hire import Worker
from codespace.runner.worker.line import Line
from codespace.runner.worker.verbs import VERBS
from codespace.testing import processes
from helper.worker.harden import Orphaned, harden
from helper.worker.meeting import read_orders
from helper.worker.service import Clock, Service

SECRET = b"s" * SECRET_BYTES


def orders(state: Path) -> dict[str, Any]:
    return {
        "state_dir": str(state),
        "rg_path": None,
        "bwrap_path": None,
        "retention_seconds": 60,
        "spool_bytes": limits.SPOOL_BYTES,
        "process_spool_bytes": limits.PROCESS_SPOOL_BYTES,
        "sandbox": False,
        "log_level": "error",
    }


class Started:
    """A worker program that listens, and raw connections to it."""

    def __init__(self, worker: Worker, leaf: Path, state: Path) -> None:
        self.worker = worker
        self.leaf = leaf
        self.state = state
        self.log = b""
        self.connections: list[socket.socket] = []

    def connect(self) -> trio.SocketStream:
        """Return a connection, which is closed at the end at the latest."""
        connection = hire.connect(str(self.leaf), self.worker)
        self.connections.append(connection)
        return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    async def greeted(self) -> trio.SocketStream:
        stream = self.connect()
        await stream.send_all(pack(hello(SECRET, "gateway", orders=orders(self.state))))
        assert (await messages(stream, 1))[0]["hello"] == VERSION
        return stream

    async def end(self) -> int:
        """Return the exit code, once the program and all that it had started are gone."""
        with trio.fail_after(60):
            while (said := await self.worker.said()) is not None:
                self.log += said
            return await self.worker.wait()


async def say(stream: trio.SocketStream, data: bytes) -> None:
    """Send all of it and the end, as far as the worker still listens."""
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)
        await stream.send_eof()


async def messages(stream: trio.SocketStream, least: int | None = None) -> list[dict[str, Any]]:
    """Return what comes: `least` messages, or all until the end."""
    unpacker, found = Unpacker(), list[dict[str, Any]]()
    with trio.fail_after(60), suppress(trio.BrokenResourceError):
        while least is None or len(found) < least:
            data = await stream.receive_some()
            if not data:
                break
            unpacker.feed(data)
            while (message := unpacker.take()) is not None:
                found.append(message)
    return found


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Started]:
    leaf, state = folder / "leaf", folder / "state"
    for each in (leaf, state):
        each.mkdir(mode=0o700, exist_ok=True)
    worker = hire.start(str(leaf), SECRET)
    try:
        with trio.fail_after(60):
            await worker.wait_listening()
        here = Started(worker, leaf, state)
        try:
            yield here
        finally:
            for connection in here.connections:
                connection.close()
    finally:
        worker.kill()
        # Protects the next test from this one's processes.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            await worker.wait()
        worker.close()


async def test_it_is_hardened_before_it_has_listened(tmp_path: Path) -> None:
    async with started(tmp_path) as here:
        proc = Path(f"/proc/{here.worker.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        assert status["NoNewPrivs"].strip() == "1"
        core = next(line for line in (proc / "limits").read_text().splitlines() if line.startswith("Max core"))
        assert core.split()[4:6] == ["1", "1"]
        assert (proc / "environ").stat().st_uid == 0, "what belongs to root there cannot be looked at by the account"
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                (proc / "environ").read_bytes()
        else:
            assert (proc / "environ").read_bytes() == b""
            assert os.readlink(proc / "cwd") == "/"
            assert os.readlink(proc / "fd/0") == os.readlink(proc / "fd/1") == "/dev/null"
        assert SECRET.decode() not in processes.command_line(here.worker.pid)


async def test_the_socket_is_gone_once_the_one_connection_is_there(tmp_path: Path) -> None:
    async with started(tmp_path) as here:
        assert (here.leaf / SOCKET).is_socket()
        stream = await here.greeted()
        assert list(here.leaf.iterdir()) == []
        with pytest.raises(hire.NotHired):
            here.connect()
        await stream.aclose()
        assert await here.end() == 0


async def test_a_socket_that_an_earlier_worker_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "leaf").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:  # of one that was killed before anybody had come to it
        left.bind(str(tmp_path / "leaf" / SOCKET))
    async with started(tmp_path) as here:
        await (await here.greeted()).aclose()
        assert await here.end() == 0


async def test_another_process_is_turned_away_and_the_gateway_still_served(tmp_path: Path) -> None:
    async with started(tmp_path) as here:
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1))"
        path = str(here.leaf / SOCKET)
        stranger = await trio.run_process([sys.executable, "-c", code, path], capture_stdout=True)
        assert stranger.stdout == b"b''\n"
        await (await here.greeted()).aclose()
        assert await here.end() == 0


def wrong_hellos() -> dict[str, bytes]:
    right = hello(SECRET, "gateway", orders={})
    return {
        "another version": pack({**right, "hello": VERSION - 1}),
        "no proof": pack({"hello": VERSION, "orders": {}}),
        "another secret": pack(hello(b"x" * SECRET_BYTES, "gateway", orders={})),
        "the proof of the other side": pack(hello(SECRET, "worker", orders={})),
        "no orders": pack(hello(SECRET, "gateway")),
        "a request first": pack({"id": 1, "verb": "leftovers", "at": 1, "arguments": {"state_dir": None}}),
        "garbage": b"GET / HTTP/1.1\r\n\r\n",
        "over the small limit": HEAD.pack(limits.WORKER_HELLO_BYTES + 1),
        "cut off": HEAD.pack(20) + b"{",
        "nothing": b"",
        "half a character for a proof": pack({**right, "proof": "\ud800"}),
    }


@pytest.mark.parametrize("which", wrong_hellos())
async def test_a_wrong_hello_is_refused_with_a_reason(which: str) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(wrong_hellos()[which])
        ours.shutdown(socket.SHUT_WR)
        line = Line(theirs, limits.WORKER_HELLO_BYTES)
        with pytest.raises(BadFrame):
            await read_orders(line, SECRET)
        line.close()


async def test_a_hello_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_HELLO_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with ours:
        line = Line(theirs, limits.WORKER_HELLO_BYTES)
        with pytest.raises(BadFrame, match="in time"):
            await read_orders(line, SECRET)
        line.close()


async def test_who_reads_a_workers_log_when_it_is_let_go_of_in_that_very_turn_hears_no_more(tmp_path: Path) -> None:
    for _ in range(20):  # whose turn comes first is a matter of chance
        folder = trio.Path(tmp_path / secrets.token_hex(4))
        await folder.mkdir()
        worker = hire.start(str(folder), SECRET)
        again = os.dup(worker._stderr.fileno())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hear_out, worker)
            await trio.testing.wait_all_tasks_blocked()
            worker.kill()
            with trio.fail_after(60):
                await trio.lowlevel.wait_readable(again)
            worker.close()
        os.close(again)
        worker._process.wait()


async def test_who_waits_for_a_workers_log_when_it_is_let_go_of_hears_no_more(tmp_path: Path) -> None:
    worker = hire.start(str(tmp_path), SECRET)
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_hear_out, worker)
                await trio.testing.wait_all_tasks_blocked()
                worker.close()
    finally:
        worker.kill()
        worker._process.wait()


async def _hear_out(worker: Worker) -> None:
    while await worker.said() is not None:
        pass


@pytest.mark.parametrize("which", ["another secret", "over the small limit"])
async def test_a_wrong_hello_ends_the_worker_with_a_goodbye(tmp_path: Path, which: str) -> None:
    async with started(tmp_path) as here:
        stream = here.connect()
        await say(stream, wrong_hellos()[which])
        [said] = await messages(stream)
        assert said.keys() == {"bye"}
        assert await here.end() == 1
        assert b"the runner gives up" in here.log
        assert b"Traceback" not in here.log


WRONG = {
    "an unknown verb": {"id": 1, "verb": "dance", "at": 1, "arguments": {}},
    "a private name": {"id": 1, "verb": "__init__", "at": 1, "arguments": {}},
    "a verb that is no text": {"id": 1, "verb": [], "at": 1, "arguments": {}},
    "a number that is none": {"id": "1", "verb": "leftovers", "at": 1, "arguments": {"state_dir": None}},
    "a number that does not rise": {"id": 0, "verb": "leftovers", "at": 1, "arguments": {"state_dir": None}},
    "no time": {"id": 1, "verb": "leftovers", "at": None, "arguments": {"state_dir": None}},
    "one field more": {"id": 1, "verb": "leftovers", "at": 1, "arguments": {"state_dir": None}, "x": 1},
    "a cancel before its request": {"cancel": 5},
    "a cancel of nothing": {"cancel": None},
    "an unknown telling": {"tell": "spawn", "arguments": {}},
    "a second hello": hello(SECRET, "gateway", orders={}),
    "nothing": {},
}


class NoRunner:
    """Is never asked: what is wrong is refused before."""


async def served(sent: bytes) -> None:
    """Have a service hear `sent`; it is all that it hears."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        line = Line(theirs)
        try:
            await Service(line, cast(Runner, NoRunner()), Clock()).run()
        finally:
            line.close()


@pytest.mark.parametrize("which", WRONG)
async def test_a_request_that_is_not_as_it_must_be_ends_the_connection(which: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await served(pack(WRONG[which]))
    assert caught.group_contains(BadFrame)


@pytest.mark.parametrize("arguments", [{"state_dir": 5}, {}, [], {"state_dir": None, "more": 1}], ids=repr)
async def test_wrong_arguments_cost_their_own_request_and_no_other(arguments: Any) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(pack({"id": 1, "verb": "leftovers", "at": 1, "arguments": arguments}))
    ours.shutdown(socket.SHUT_WR)
    hearing, line = Line(ours), Line(theirs)
    await Service(line, cast(Runner, NoRunner()), Clock()).run()
    answer = await hearing.receive() or {}
    assert (answer["id"], answer["refusal"]["code"]) == (1, "INTERNAL")
    assert "Nothing was done" in answer["refusal"]["message"]
    hearing.close()
    line.close()


async def test_a_request_that_is_not_as_it_must_be_ends_the_worker_with_a_goodbye(tmp_path: Path) -> None:
    async with started(tmp_path) as here:
        stream = await here.greeted()
        await stream.send_all(pack(WRONG["an unknown verb"]))
        [said] = await messages(stream)
        assert said == {"bye": "there is no such verb"}
        assert await here.end() == 1


async def test_a_broken_frame_behind_the_hello_ends_the_worker_and_its_processes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with started(tmp_path) as here:
        stream = await here.greeted()
        await stream.send_all(pack(spawn(root, "sleep", "1000")))
        [answer, *_] = await messages(stream, 1)  # and what is told of it from then on
        assert answer["ok"]["sandbox"] == "none"
        below = processes.descendants(here.worker.pid)
        await say(stream, HEAD.pack(20) + b"{")
        assert [said for said in await messages(stream) if "bye" in said]
        assert await here.end() == 1
        assert not [pid for pid in below if processes.is_alive(pid)]


def spawn(root: Path, *argv: str) -> dict[str, Any]:
    verb = VERBS["spawn"]
    workspace = Workspace("main", str(root), profile="workspace-write")
    bound = verb.bind((workspace, SpawnRequest("proc-1", argv, ".", {}, 60)), {})
    return {"id": 1, "verb": "spawn", "at": 1.0, "arguments": verb.encode_arguments(bound)}


async def test_a_folder_that_cannot_be_used_is_told_in_the_goodbye(tmp_path: Path) -> None:
    async with started(tmp_path) as here:
        stream = here.connect()
        (tmp_path / "file").write_text("x")
        await stream.send_all(pack(hello(SECRET, "gateway", orders=orders(tmp_path / "file"))))
        [said] = await messages(stream)
        assert "directory" in said["bye"]
        assert await here.end() == 1


async def test_a_secret_that_is_cut_ends_it_before_it_listens(tmp_path: Path) -> None:
    worker = hire.start(str(tmp_path), SECRET[:-1])
    with pytest.raises(hire.NotHired), trio.fail_after(60):
        await worker.wait_listening()
    assert await worker.wait() == 1
    worker.close()


async def test_it_dies_with_its_parent_and_takes_its_processes_along(tmp_path: Path) -> None:
    """The parent is a program of its own here, killed without a chance to say anything."""
    code = (
        "import sys, tempfile, time, trio\n"
        "from codespace.contract import SpawnRequest, Workspace\n"
        "from codespace.runner.uds import open_runner\n"
        "async def main():\n"
        "    async with open_runner(state_dir=sys.argv[1], rg_path=None, bwrap_path=None, retention_seconds=60,\n"
        "                           wall_clock=time.time) as runner:\n"
        "        workspace = Workspace('main', sys.argv[2], profile='workspace-write')\n"
        "        argv = ('sh', '-c', 'setsid sleep 1000 & sleep 1000')\n"
        "        await runner.spawn(workspace, SpawnRequest('proc-1', argv, '.', {}, 600))\n"
        "        print('up', flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    for name in ("state", "root"):
        (tmp_path / name).mkdir()
    argv = [sys.executable, "-c", code, str(tmp_path / "state"), str(tmp_path / "root")]
    # Waited for below, in bounded time, and killed by its number.
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        try:
            with trio.fail_after(60):
                await trio.lowlevel.wait_readable(parent.stdout.fileno())
                while parent.stdout.readline() != b"up\n":
                    assert parent.poll() is None
                while len(below := processes.descendants(parent.pid)) < 5:  # worker, keeper, monitor, shell, sleeps
                    await trio.lowlevel.checkpoint()
        finally:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
    with trio.fail_after(60):
        await processes.wait_gone(below)


def test_a_program_whose_parent_is_gone_does_not_begin() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            harden(os.getpid())  # which is not its parent
        except Orphaned:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@settings(max_examples=100)
@given(
    sent=st.lists(
        st.binary(min_size=1, max_size=40)
        | st.dictionaries(
            st.sampled_from(["id", "verb", "at", "arguments", "cancel", "tell"]),
            st.none() | st.integers(-1, 3) | st.sampled_from(["spawn", "forget", "read"]) | st.just({}),
            max_size=4,
        ).map(pack),
        max_size=3,
    )
)
def test_whatever_is_sent_is_served_to_its_end_or_refused(sent: list[bytes]) -> None:
    async def play() -> None:
        with trio.fail_after(60):
            try:
                await served(b"".join(sent))
            except* BadFrame:
                pass

    trio.run(play)


def test_an_unpacker_takes_no_second_word_for_the_first() -> None:
    unpacker = Unpacker(8)
    unpacker.feed(pack({}) + HEAD.pack(9))
    assert unpacker.take() == {}
    with pytest.raises(BadFrame):
        unpacker.take()


def test_a_socket_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner").chmod(0o777)
    with pytest.raises(Refusal, match="by others"):
        hire.Place(str(tmp_path))
    (tmp_path / "runner").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runner").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal, match="no directory"):
        hire.Place(str(tmp_path))


def test_what_a_killed_daemon_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    first, second = hire.Place(str(tmp_path)), hire.Place(str(tmp_path))
    assert Path(first.path).stat().st_mode & 0o777 == 0o700
    left = tmp_path / "runner" / "0123456789abcdef"
    left.mkdir()
    (left / SOCKET).touch()
    third = hire.Place(str(tmp_path))
    assert not left.exists()
    assert Path(first.path).is_dir()
    for each in (first, second, third):
        each.close()
    assert list((tmp_path / "runner").iterdir()) == []


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    with listener, pytest.raises(OSError, match="too long"):
        listener.bind(str(deep / SOCKET))

    async def play() -> None:
        async with started(deep) as here:
            await (await here.greeted()).aclose()
            assert await here.end() == 0

    trio.run(play)
