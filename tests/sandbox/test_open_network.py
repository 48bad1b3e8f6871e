"""A networked command through the whole daemon: one way out, every decision told, and nothing where it is missing.

The registry is a pinned address on the host's loopback, which nothing but a pin can reach.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import connect
from codespace.testing import Bench, open_bench, processes

from ..worker.exchanged import exchange
from .until import PATIENCE_SECONDS, until

SECONDS = 60.0
ASK = r"""
use IO::Socket::INET;
for my $where (@ARGV) {
  my $proxy = IO::Socket::INET->new(PeerAddr => "127.0.0.1:3128") or do { print "no proxy\n"; next };
  print $proxy "GET http://$where/ HTTP/1.1\r\nHost: $where\r\nConnection: close\r\n\r\n";
  my $answer = join "", <$proxy>;
  print $answer =~ m{^HTTP/1.1 (\d+)} ? "$1 " : "nothing ", $answer =~ /hello/ ? "hello\n" : "\n";
}
"""


class Registry:
    """A server on the host's loopback; counts who came."""

    def __init__(self) -> None:
        self.visits = 0
        self.port = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._answer, [listener])

    async def _answer(self, visitor: trio.SocketStream) -> None:
        self.visits += 1
        await visitor.receive_some()
        await visitor.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await visitor.send_eof()


@asynccontextmanager
async def networked(**options: Any) -> AsyncIterator[tuple[Bench, Registry]]:
    registry = Registry()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(registry.serve)
            pin = {"host": "registry.test", "port": registry.port, "address": "127.0.0.1"}
            workspace = {"network": "enabled", "allowed_domains": [pin]}
            async with open_bench(workspace=workspace, **options) as bench:
                yield bench, registry
            nursery.cancel_scope.cancel()


async def run(bench: Bench, *command: str) -> dict[str, Any]:
    return await bench.call("exec_command", command=list(command), wait_seconds=50)


async def test_a_listed_host_is_reached_and_another_is_refused_with_what_to_add() -> None:
    async with networked() as (bench, registry):
        listed = f"registry.test:{registry.port}"
        ran = await run(bench, "perl", "-e", ASK, listed, "evil.example", listed)
        assert ran["chunk"] == "200 hello\n403 \n200 hello\n", ran
        assert registry.visits == 2
        assert (ran["sandbox"], ran["network"]["enforcement"]) == ("linux-sandbox", "enforced")
        told = {each["host"]: each for each in ran["network"]["decisions"]}
        assert (told["registry.test"]["allowed"], told["registry.test"]["times"]) == (True, 2)
        assert (told["evil.example"]["allowed"], told["evil.example"]["code"]) == (False, "not-listed")
        (note,) = [note for note in ran["notes"] if "evil.example" in note]
        assert "the operator adds `evil.example` to `allowed_domains`" in note


async def test_a_name_that_leads_to_no_public_address_is_refused_with_the_pin_that_would_allow_it() -> None:
    with trio.fail_after(SECONDS):
        async with open_bench(workspace={"network": "enabled", "allowed_domains": ["localhost"]}) as bench:
            ran = await run(bench, "perl", "-e", ASK, "localhost")
    assert [each["code"] for each in ran["network"]["decisions"]] == ["not-global"], ran
    (note,) = ran["notes"]
    assert (
        'adds a pin to its address to `allowed_domains`: `{"host": "localhost", "port": 80, "address": "..."}`' in note
    )


@pytest.mark.parametrize("kind", ["in-process", "uds"])
async def test_a_run_that_writes_nothing_and_goes_on_is_told_with_what_its_network_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODESPACE_RUNNER", kind)
    exchange(monkeypatch, "codespace.limits", "WORKER_STATE_SECONDS", 600.0)  # told when it comes, not at the next look
    async with networked() as (bench, _):
        command = ["perl", "-e", f"close STDOUT; {ASK} sleep 600", "evil.example"]
        process_id = (await bench.call("exec_command", command=command, wait_seconds=0))["process_id"]
        status: dict[str, Any] = {"network_decisions": []}
        while not status["network_decisions"]:
            status = await bench.call("process_status", process_id=process_id)
        (listed,) = (await bench.call("list_processes"))["processes"]
        for told in (status, listed):
            assert (told["state"], told["output_total"]) == ("running", 0)
            assert [each["host"] for each in told["network_decisions"]] == ["evil.example"]
            assert [note for note in told["notes"] if "the operator adds `evil.example`" in note]


async def test_decisions_stand_in_the_audit_chain() -> None:
    async with networked() as (bench, _):
        ran = await run(bench, "perl", "-e", ASK, "evil.example")
        status = await bench.call("operation_status", operation_id=ran["operation_id"])
        started, *_ = [event for event in status["events"] if event["event"] == "started"]
        network = {"policy": "enabled", "enforcement": "enforced"}
        assert started["details"] == {"sandbox": "linux-sandbox", "network": network}
        told = [event for event in status["events"] if "network_decisions" in (event.get("details") or {})]
        assert told[-1]["event"] == "drained"  # the last word is the record of the end
        assert told[-1]["details"]["network_decisions"][0]["host"] == "evil.example"
        with connect(bench.daemon.settings.database) as db:
            assert audit.verify(db).ok


async def test_what_was_in_force_and_decided_is_told_after_a_restart() -> None:
    async with networked() as (bench, _):
        command = {"command": ["perl", "-e", ASK, "evil.example"], "operation_key": "once", "wait_seconds": 30}
        ran = await bench.call("exec_command", **command)
        await bench.restart()
        again = await bench.call("exec_command", **command)
        assert (again["replayed"], again["sandbox"], again["network"]) == (True, ran["sandbox"], ran["network"])


async def test_programs_are_told_the_way_out_and_there_is_no_other() -> None:
    async with networked() as (bench, registry):
        ran = await run(bench, "sh", "-c", 'echo "$http_proxy $HTTPS_PROXY"; cat /proc/net/route | wc -l')
        assert ran["chunk"] == "http://127.0.0.1:3128 http://127.0.0.1:3128\n1\n"
        direct = f'use IO::Socket::INET; print IO::Socket::INET->new("127.0.0.1:{registry.port}") ? "in" : "no way"'
        assert (await run(bench, "perl", "-e", direct))["chunk"] == "no way"
        assert registry.visits == 0


def doors() -> list[int]:
    return [pid for pid in processes.descendants(os.getpid()) if "helper.proxy" in processes.command_line(pid)]


async def test_a_proxy_that_dies_leaves_the_run_without_a_network_and_it_is_said() -> None:
    async with networked() as (bench, registry):
        script = f'print "up\\n"; $| = 1; <STDIN>; {ASK}'
        listed = f"registry.test:{registry.port}"
        command = ["perl", "-e", f"$| = 1; {script}", listed]
        started = await bench.call("exec_command", command=command, open_stdin=True, wait_seconds=0)
        process_id = started["process_id"]
        while (await bench.call("read_process", process_id=process_id, wait_seconds=20))["chunk"] != "up\n":
            await trio.lowlevel.checkpoint()
        gone = doors()
        for pid in gone:
            with suppress(ProcessLookupError):  # a door ends with its keeper
                os.kill(pid, signal.SIGKILL)
        assert processes.still_alive_after(gone, SECONDS) == frozenset()
        await bench.call("write_stdin", process_id=process_id, data="go\n", eof=True)
        while (ended := await bench.call("read_process", process_id=process_id, wait_seconds=20))["state"] == "running":
            await trio.lowlevel.checkpoint()
        assert "200" not in ended["chunk"]
        assert registry.visits == 0
        assert [note for note in ended["notes"] if "network door of this run ended before" in note]
        again = await run(bench, "perl", "-e", ASK, listed)
        assert again["chunk"] == "200 hello\n"


async def test_the_door_ends_with_its_run() -> None:
    async with networked() as (bench, registry):
        listed = f"registry.test:{registry.port}"
        await run(bench, "perl", "-e", ASK, listed)
        resting = set(doors())
        await run(bench, "perl", "-e", ASK, listed)
        await until(lambda: len(doors()) <= len(resting))
    assert not processes.still_alive_after(doors(), PATIENCE_SECONDS)


async def test_the_proxy_is_there_before_the_first_networked_command_comes() -> None:
    async with networked() as (bench, registry):
        found = await until(doors)  # nothing was asked for yet
        (keeper,) = set(found).difference(*map(processes.children, found))  # beside it, its spare
        assert (await run(bench, "perl", "-e", ASK, f"registry.test:{registry.port}"))["chunk"] == "200 hello\n"
        assert keeper in doors()


async def test_no_proxy_is_started_where_no_command_has_a_network() -> None:
    with trio.fail_after(SECONDS):
        async with open_bench() as bench:
            # Behind the probe, which a command waits for, the proxy would be started at once.
            assert (await run(bench, "true"))["sandbox"] == "linux-sandbox"
            assert (await run(bench, "true"))["sandbox"] == "linux-sandbox"
            assert doors() == []


async def test_without_the_sandbox_a_networked_command_is_refused_before_it_starts() -> None:
    async with networked(sandbox=False) as (bench, _):
        with pytest.raises(Refusal) as caught:
            await run(bench, "touch", "made")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert not (bench.root / "made").exists()


async def test_a_proxy_that_cannot_be_started_starts_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange(monkeypatch, "codespace.runner.network.proxy", "_ARGV", ["/bin/false"])
    async with networked() as (bench, _):
        with pytest.raises(Refusal) as caught:
            await run(bench, "touch", "made")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert not (bench.root / "made").exists()
