"""A whole daemon whose worker is killed: what was not seen is not claimed, and the next request is served."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from codespace.errors import Refusal
from codespace.runner.worker import hire
from codespace.testing import Bench, open_bench, processes
from codespace.testing.faulty import Faults
from codespace.testing.shortage import descriptors
from codespace.testing.site import RUNNER, tree

from ..sandbox.until import until
from ..spooled import kept_bytes
from .exchanged import exchange

PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n-old\n+new\n*** Add File: b.txt\n+b\n*** End Patch\n"
OLD, NEW = {"a.txt": b"old\n"}, {"a.txt": b"new\n", "b.txt": b"b\n"}
FREE = "*** Begin Patch\n*** Add File: free.txt\n+free\n*** End Patch\n"


@pytest.fixture(autouse=True)
def _uds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(RUNNER, "uds")
    with structlog.testing.capture_logs():
        yield


def worker(bench: Bench) -> int:
    pid = bench.daemon.tools._runner.worker  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


@asynccontextmanager
async def bench_with(faults: Faults | None = None, **options: Any) -> AsyncIterator[Bench]:
    runner = None if faults is None else faults.open_runner
    async with open_bench(files=OLD, runner=runner, sandbox=False, **options) as bench:
        yield bench


async def refused(bench: Bench, tool: str, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value


async def test_workspace_info_names_the_runner() -> None:
    async with bench_with() as bench:
        info = await bench.call("workspace_info", workspace_id="main")
        assert info["execution"]["isolation"]["runner"] == "uds"


async def test_a_killed_worker_takes_its_processes_along_and_they_are_lost() -> None:
    async with bench_with() as bench:
        command = ["sh", "-c", "echo before; setsid sleep 1000 & sleep 1000"]
        begun = await bench.call("exec_command", command=command, wait_seconds=0, operation_key="k")
        await bench.call("read_process", process_id=begun["process_id"], wait_seconds=20)
        await until(lambda: kept_bytes(bench.site.state) == len("before\n"))
        below = processes.descendants(worker(bench))
        os.kill(worker(bench), signal.SIGKILL)
        with trio.fail_after(60):
            ended = await bench.call("read_process", process_id=begun["process_id"], cursor=7, wait_seconds=20)
        assert (ended["state"], ended["termination"], ended["eof"]) == ("exited", "lost", True)
        assert not [pid for pid in below if processes.is_alive(pid)]
        again = await bench.call("read_process", process_id=begun["process_id"], cursor=0)
        assert again["chunk"] == "before\n", "what lies on disk can still be read"
        recorded = await bench.call("operation_status", operation_key="k")
        assert recorded["status"] == "lost"
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied", "the root is free"
        assert (await bench.call("process_status", process_id=begun["process_id"]))["termination"] == "lost"
        stdin = await refused(bench, "write_stdin", process_id=begun["process_id"], data="x")
        assert stdin.code == "PROCESS_EXITED"
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0


async def test_output_that_nobody_was_told_of_yet_counts_as_far_as_it_lies_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange(monkeypatch, "codespace.limits", "WORKER_NEWS_SECONDS", 600.0)
    async with bench_with() as bench:
        command = ["sh", "-c", "echo told; read _; echo untold; echo as well >&2; sleep 1000"]
        begun = await bench.call("exec_command", command=command, open_stdin=True, wait_seconds=0, operation_key="k")
        process_id, whole = begun["process_id"], "told\nuntold\nas well\n"
        known = bench.daemon.tools._runner.process  # type: ignore[attr-defined]
        await until(lambda: kept_bytes(bench.site.state) == len("told\n"))
        await bench.call("read_process", process_id=process_id)
        await bench.call("write_stdin", process_id=process_id, data="\n")
        await until(lambda: kept_bytes(bench.site.state) == len(whole))
        assert known(process_id).output_total["combined"] == len("told\n")
        os.kill(worker(bench), signal.SIGKILL)
        with trio.fail_after(60):
            ended = await bench.call("read_process", process_id=process_id, wait_seconds=20)
        assert (ended["termination"], ended["output_total"]) == ("lost", len(whole))
        assert sorted(ended["chunk"].splitlines()) == sorted(whole.splitlines()), "two pipes have no order"
        totals = {"combined": len(whole), "stdout": len("told\nuntold\n"), "stderr": len("as well\n")}
        recorded = await bench.call("operation_status", operation_key="k")
        assert recorded["outcome"]["output_total"] == totals


async def test_output_that_was_seen_and_is_not_on_the_disk_is_lost_with_its_worker_and_told_so() -> None:
    async with bench_with() as bench:
        command = ["sh", "-c", "echo before; sleep 1000"]
        begun = await bench.call("exec_command", command=command, wait_seconds=0)
        await bench.call("read_process", process_id=begun["process_id"], wait_seconds=20)
        await until(lambda: kept_bytes(bench.site.state) == len("before\n"))
        for segment in bench.site.state.glob("spool/*/*/*"):
            segment.unlink()
        os.kill(worker(bench), signal.SIGKILL)
        with trio.fail_after(60):
            ended = await bench.call("read_process", process_id=begun["process_id"], cursor=7, wait_seconds=20)
        assert ended["termination"] == "lost"
        again = await bench.call("read_process", process_id=begun["process_id"], cursor=0)
        assert (again["chunk"], again["output_lost"], again["cursor"], again["eof"]) == ("", 7, 7, True)


async def read_later(bench: Bench) -> str:
    """Read a file, also where the first call hears how a start went that had begun before it."""
    try:
        return str((await bench.call("read", path="a.txt"))["content"])
    except Refusal:
        return str((await bench.call("read", path="a.txt"))["content"])


async def test_a_worker_that_descriptors_are_short_for_is_told_as_not_there_and_started_by_a_later_call() -> None:
    async with bench_with() as bench:
        ends: list[str] = []
        for left in (0, 1, 2, 6, 12):
            dead = worker(bench)
            os.kill(dead, signal.SIGKILL)
            await until(lambda dead=dead: not processes.is_alive(dead))
            with descriptors(left):
                try:
                    ends.append((await bench.call("read", path="a.txt"))["content"])
                except Refusal as refusal:
                    ends.append(refusal.message)
            assert await read_later(bench) == "old\n"
        assert (ends[0][:33], ends[-1]) == ("The runner's process is not there", "old\n")
        assert not [end for end in ends if "fault of CodeSpace" in end], ends


async def test_input_that_was_on_its_way_when_the_worker_was_killed_is_not_said_to_be_unwritten() -> None:
    async with bench_with() as bench:
        begun = await bench.call("exec_command", command=["sleep", "1000"], open_stdin=True, wait_seconds=0)
        process_id, dead = begun["process_id"], worker(bench)

        async def write() -> None:
            refusal = await refused(bench, "write_stdin", process_id=process_id, data="x" * 1_000_000)
            assert refusal.code == "PROCESS_EXITED"
            assert "was not seen" in refusal.message
            assert refusal.details is not None
            assert "bytes_written" not in refusal.details

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            [sleeping] = [pid for pid in processes.descendants(dead) if _is(pid, "sleep")]
            await until(lambda: _unread(sleeping))
            os.kill(dead, signal.SIGKILL)
        after = await refused(bench, "write_stdin", process_id=process_id, data="x")
        assert after.details is not None
        assert after.details["bytes_written"] == 0


def _is(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def _unread(pid: int) -> int:
    """Return how many bytes wait in the pipe that is the stdin of a process."""
    descriptor = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(descriptor)


async def test_an_idle_worker_that_was_killed_is_replaced_without_a_word() -> None:
    async with bench_with() as bench:
        for _ in range(2):
            dead = worker(bench)
            os.kill(dead, signal.SIGKILL)
            assert (await bench.call("read", path="a.txt"))["content"] == "old\n"
            assert worker(bench) != dead


def killing(faults: Faults, verb: str, bench: list[Bench]) -> None:
    """Have the worker killed as soon as it has taken `verb`: stopped first, so that it cannot answer."""

    async def stop() -> None:
        os.kill(worker_of(bench[0]), signal.SIGSTOP)

        async def kill() -> None:
            await trio.testing.wait_all_tasks_blocked()
            os.kill(worker_of(bench[0]), signal.SIGKILL)

        trio.lowlevel.spawn_system_task(kill)

    faults.order("before", verb, stop)


def worker_of(bench: Bench) -> int:
    return int(bench.daemon.tools._runner._real.worker)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("verb", "status", "after"),
    [
        ("plan", "rejected", OLD),
        ("stage", "rejected", OLD),
        ("install", "failed_rolled_back", OLD),
        ("verify", "applied", NEW),
        ("finish", "applied", NEW),
    ],
)
async def test_a_patch_whose_worker_is_killed_ends_as_the_disk_says(
    verb: str, status: str, after: dict[str, bytes]
) -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        killing(faults, verb, [bench])
        try:
            told = str((await bench.call("apply_patch", patch=PATCH, operation_key="k"))["status"])
        except Refusal as refusal:
            told = str((refusal.details or {})["status"])
        assert faults.met == [("before", verb)]
        assert told == status
        assert (await bench.call("operation_status", operation_key="k"))["status"] == status
        assert tree(bench.root) == after
        assert (await bench.call("apply_patch", patch=FREE))["status"] == "applied"


async def test_a_start_that_was_lost_with_its_worker_is_unknown_to_the_caller_and_never_repeated() -> None:
    faults = Faults()
    async with bench_with(faults) as bench:
        killing(faults, "spawn", [bench])
        first = await refused(bench, "exec_command", command=["sh", "-c", "echo x >> ran"], operation_key="k")
        assert first.code == "OUTCOME_UNKNOWN"
        assert (first.details or {})["dispatch_status"] == "unknown"
        recorded = await bench.call("operation_status", operation_key="k")
        assert recorded["status"] == "lost"
        assert [event["event"] for event in recorded["events"]][-2:] == ["sight_lost", "found_lost"]
        again = await bench.call("exec_command", command=["sh", "-c", "echo x >> ran"], operation_key="k")
        assert (again["replayed"], again["dispatch_status"], again["termination"]) == (True, "unknown", "lost")
        assert not (bench.root / "ran").exists()
        assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0


async def test_a_worker_that_cannot_be_started_refuses_and_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench_with() as bench:
        monkeypatch.setattr(hire, "PROGRAM", ("/nonexistent",))
        os.kill(worker(bench), signal.SIGKILL)
        read = await refused(bench, "read", path="a.txt")
        assert (read.code, read.retryable) == ("INTERNAL", True)
        assert "Nothing was done" in read.message
        monkeypatch.undo()
        assert (await bench.call("read", path="a.txt"))["content"] == "old\n"


async def test_nothing_of_the_gateways_secrets_is_in_the_worker() -> None:
    canary = "canary-0123456789-secret"
    environ = {"CODESPACE_HTTP_TOKEN": canary + "-http", "CODESPACE_OPERATOR_TOKEN": canary + "-operator"}
    async with bench_with(environ=environ, approvals="confirm", options={"approval_expiry_seconds": 777}) as bench:
        held = await refused(bench, "exec_command", command=["echo", canary + "-held"])
        assert held.approval_id is not None
        await bench.call("read", path="a.txt")
        pid = worker(bench)
        if os.geteuid() != 0:  # it is not dumpable: nobody of its own account can look into it, which is as good
            with pytest.raises(PermissionError):
                Path(f"/proc/{pid}/environ").read_bytes()
            return
        for where, found in inside(pid):
            # The command that was held went through the worker to be looked at; the hold and its id never do.
            found = found.replace(canary.encode() + b"-held", b"")
            for secret in (canary, held.approval_id, "approval_expiry", "CODESPACE_"):
                assert secret.encode() not in found, (secret, where)
        names = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        mapped = {line.split(maxsplit=5)[5].strip() for line in maps(pid) if len(line.split(maxsplit=5)) == 6}
        for path in (*names, *mapped):
            assert "operations.sqlite" not in path
            assert "config" not in path.removeprefix(str(bench.site.state))
            assert "http-token" not in path


def maps(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


def inside(pid: int) -> Iterator[tuple[str, bytes]]:
    """Yield the environment, the command line and all memory of a process that may be written to."""
    for name in ("environ", "cmdline"):
        yield name, Path(f"/proc/{pid}/{name}").read_bytes()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps(pid):
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, stop = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                try:
                    yield line, memory.read(stop - start)
                except OSError:
                    assert line not in maps(pid)  # given back meanwhile, as by a thread that ended
