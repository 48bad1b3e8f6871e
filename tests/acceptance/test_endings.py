"""How a daemon ends: on EOF, on SIGTERM, on SIGKILL. Nothing it started may outlive it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from mcp import MCPError

from codespace.testing import processes
from codespace.testing.installed import END_SECONDS, HttpDaemon, over_http
from codespace.testing.installed import script as program
from codespace.testing.site import Site
from codespace.testing.wire import Wire

TREE = "setsid sleep 1000 & (sleep 1000 & sleep 1000) & echo started; exec sleep 1000"
STUBBORN = (
    "trap '' TERM HUP INT; setsid sh -c \"trap '' TERM; sleep 1000; sleep 1000\" & echo started; sleep 1000; sleep 1000"
)

ATTEMPTS = 5


@pytest.fixture
def wire(site: Site) -> Iterator[Wire]:
    with Wire(site) as wire:
        yield wire


def start_tree(wire: Wire, script: str = TREE) -> frozenset[int]:
    """Start a command with a tree below it; return every process below the daemon, once all are there."""
    arguments = {"workspace_id": "main", "command": ["sh", "-c", script], "wait_seconds": 0}
    started = wire.call("exec_command", **arguments)["structuredContent"]
    chunk = started
    while not chunk["chunk"]:
        chunk = wire.call("read_process", process_id=started["process_id"], wait_seconds=20)["structuredContent"]
    assert chunk["chunk"] == "started\n"
    below = processes.descendants(wire.process.pid)
    assert any("sleep 1000" in processes.command_line(pid) for pid in below)
    return below


def seconds_to_end(process: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    process.wait(END_SECONDS)
    return time.monotonic() - began


def a_second() -> float:
    """Return one second, and ten times what a Python that does nothing takes on this machine just now.

    An end is a chain of some ten handovers between processes; on a machine that is busy with other
    things each waits for its turn. On an idle one this adds a tenth of a second.
    """
    with subprocess.Popen([sys.executable, "-I", "-c", ""]) as nothing:
        return 1.0 + 10 * seconds_to_end(nothing)


def hang_up(wire: Wire) -> None:
    wire.hang_up()


def send_sigterm(wire: Wire) -> None:
    wire.process.send_signal(signal.SIGTERM)


def take_seconds_to_end(
    site: Site, end: Callable[[Wire], None], script: str | None = None
) -> Iterator[tuple[float, float]]:
    """End daemons, each in order and with all that it started; give how long each took, and what a second is.

    One is as good as another: a machine that stands still for a second in the midst of one says nothing of daemons.
    """
    for _ in range(ATTEMPTS):
        with Wire(site) as wire:
            below = frozenset[int]() if script is None else start_tree(wire, script)
            end(wire)
            seconds = seconds_to_end(wire.process)
            assert wire.process.returncode == 0
            assert wire.rest() == []
            assert not [pid for pid in below if processes.is_alive(pid)]
        yield seconds, a_second()


def test_end_of_input_ends_an_idle_stdio_daemon_within_a_second(site: Site) -> None:
    assert any(took < second for took, second in take_seconds_to_end(site, hang_up))


def test_sigterm_ends_an_idle_stdio_daemon_within_a_second(site: Site) -> None:
    assert any(took < second for took, second in take_seconds_to_end(site, send_sigterm))


@pytest.mark.parametrize("end", [hang_up, send_sigterm], ids=["eof", "sigterm"])
def test_an_ordered_end_takes_every_command_with_it(site: Site, end: Callable[[Wire], None]) -> None:
    assert any(took < second for took, second in take_seconds_to_end(site, end, TREE))


def test_a_command_that_ignores_every_signal_does_not_hold_up_the_end(site: Site) -> None:
    assert any(took < 10.0 for took, _ in take_seconds_to_end(site, hang_up, STUBBORN))


@pytest.mark.parametrize("script", [TREE, STUBBORN], ids=["plain", "stubborn"])
def test_a_killed_stdio_daemon_leaves_no_process(wire: Wire, script: str) -> None:
    below = start_tree(wire, script)
    wire.process.kill()
    assert processes.still_alive_after(below, END_SECONDS) == frozenset()


def test_a_command_of_a_killed_daemon_is_not_told_as_one_that_runs(site: Site, wire: Wire) -> None:
    def say(*words: str) -> str:
        done = subprocess.run(
            [program(), *words], env=site.environ, capture_output=True, text=True, timeout=END_SECONDS
        )
        return done.stdout + done.stderr

    start_tree(wire)
    (before,) = map(json.loads, say("operations", "list", "--json").splitlines())
    assert (before["state"], before["daemon_ended"]) == ("running", False)
    assert "when its daemon" not in say("processes", "list") + say("operations", "show", before["id"])
    wire.process.kill()
    wire.process.wait()
    (behind,) = map(json.loads, say("processes", "list", "--json").splitlines())
    assert (behind["state"], behind["daemon_ended"]) == ("running", True)
    for words in (["processes", "list"], ["operations", "list", "--open"], ["operations", "show", behind["id"]]):
        assert "running when its daemon ended" in say(*words)
    settled = say("operations", "settle", behind["id"])
    assert "a command that was running when its daemon ended" in settled
    assert "Start a daemon" in settled


async def test_a_killed_http_daemon_leaves_no_process_and_its_successor_says_what_became_of_them(site: Site) -> None:
    daemon = HttpDaemon(site)
    with daemon:
        async with over_http(site, daemon.url, daemon.token) as visit:
            arguments = {"command": ["sh", "-c", TREE], "wait_seconds": 0, "operation_key": "lost"}
            started = await visit.call("exec_command", **arguments)
            await visit.call("read_process", process_id=started["process_id"], wait_seconds=20)
            below = processes.descendants(daemon.process.pid)
            assert any("sleep 1000" in processes.command_line(pid) for pid in below)
            daemon.process.kill()
            assert processes.still_alive_after(below, END_SECONDS) == frozenset()
    with Wire(site) as wire:
        status = wire.call("operation_status", operation_key="lost")["structuredContent"]
        assert (status["kind"], status["status"]) == ("exec", "lost")


async def test_an_http_daemon_ends_in_order_and_leaves_nothing(site: Site) -> None:
    daemon = HttpDaemon(site)
    daemon.start()
    async with over_http(site, daemon.url, daemon.token) as visit:
        await visit.call("exec_command", command=["sh", "-c", TREE], wait_seconds=0)
    below = processes.descendants(daemon.process.pid)
    assert daemon.stop() == 0
    assert not [pid for pid in below if processes.is_alive(pid)]


async def test_a_client_that_never_opens_another_session_goes_on_with_the_daemon_that_was_started_anew(
    site: Site,
) -> None:
    site.root().joinpath("a.txt").write_text("one\n")
    daemon = HttpDaemon(site)
    daemon.start()
    try:
        async with over_http(site, daemon.url, daemon.token) as visit:
            await visit.call("read", path="a.txt")
            daemon.stop()
            daemon.start()
            with pytest.raises(MCPError, match="This session is not known: the daemon was started anew"):
                await visit.call("read", path="a.txt")
            for _ in range(2):
                assert (await visit.call("read", path="a.txt"))["content"] == "one\n"
            ran = await visit.call("exec_command", command=["cat", "a.txt"])
            assert (ran["exit_code"], ran["chunk"]) == (0, "one\n")
    finally:
        daemon.stop()


def test_nothing_but_the_protocol_is_on_stdout_whatever_a_command_prints(wire: Wire) -> None:
    noise = ["sh", "-c", 'echo noise; echo noise >&2; printf \'{"jsonrpc":"2.0"}\\n\'; exit 1']
    for _ in range(3):
        answer = wire.call("exec_command", workspace_id="main", command=noise)
        assert answer["structuredContent"]["exit_code"] == 1
    wire.hang_up()
    assert wire.rest() == []


def test_garbage_on_the_wire_is_answered_or_ignored_and_the_daemon_goes_on(wire: Wire) -> None:
    assert wire.process.stdin is not None
    for line in (b"not json\n", b"[]\n", b'{"jsonrpc":"1.0"}\n', b"\xff\xfe\n", b'{"jsonrpc":"2.0","id":"x"}\n'):
        wire.process.stdin.write(line)
    wire.process.stdin.flush()
    number = wire.post("ping")
    while (message := wire.receive()).get("id") != number:
        assert "error" in message or "method" in message
    assert message["result"] == {}


def test_a_second_handshake_does_not_disturb_the_first(wire: Wire) -> None:
    wire.handshake()
    assert wire.call("workspace_info", workspace_id="main")["structuredContent"]["profile"] == "workspace-write"
