"""The process verbs on real commands: what they answer, and that nothing outlives its end."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.runner import environment
from codespace.testing import processes
from helper.monitor.line import Line

from .supervised import DEADLINE_SECONDS, Bench, open_bench, refused

STUBBORN = "trap '' TERM; echo $$; while :; do sleep 600; done"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def keeper_pid() -> int:
    (pid,) = [pid for pid in processes.children() if "helper/monitor/" in processes.command_line(pid)]
    return pid


async def wait_gone_but_one(pids: Collection[int]) -> None:
    left = set(pids)
    async with trio.open_nursery() as nursery:

        async def watch(pid: int) -> None:
            await processes.wait_gone([pid])
            left.discard(pid)
            if len(left) <= 1:
                nursery.cancel_scope.cancel()

        for pid in pids if len(left) > 1 else ():
            nursery.start_soon(watch, pid)


# --- how a command runs and ends ---


async def test_exit_code_output_and_times_are_told(bench: Bench) -> None:
    state, text = await bench.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (state.state, state.exit_code, state.signal, state.termination) == ("exited", 3, None, "exited")
    assert sorted(text.split()) == ["err", "out"]
    assert state.ended_at is not None
    assert state.ended_at >= state.started_at
    assert state.output_total == {"combined": 8, "stdout": 4, "stderr": 4}


async def test_a_death_by_signal_is_named(bench: Bench) -> None:
    state, _ = await bench.run("sh", "-c", "kill -SEGV $$")
    assert (state.exit_code, state.signal, state.termination) == (None, "SIGSEGV", "exited")


async def test_use_of_cpu_and_memory_is_known_at_the_end(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "head -c 50000000 /dev/zero | sha256sum")
    await bench.supervisor.wait_exit(process_id)
    assert bench.supervisor.usage(process_id)["cpu_seconds"] > 0


async def test_no_descriptor_of_the_daemon_reaches_a_command(bench: Bench) -> None:
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    for descriptor in held:
        os.set_inheritable(descriptor, True)
    try:
        probe = "import os; print([n for n in range(4096) if os.path.exists(f'/proc/self/fd/{n}')])"
        assert (await bench.run(sys.executable, "-c", probe))[1] == "[0, 1, 2]\n"
    finally:
        for descriptor in held:
            os.close(descriptor)


async def test_a_command_starts_with_default_signals_and_none_blocked(bench: Bench) -> None:
    _, text = await bench.run("cat", "/proc/self/status")
    masks = dict(line.split(":\t") for line in text.splitlines() if line.startswith("Sig"))
    for mask in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(masks[mask], 16) & ~0x1_8000_0000 == 0  # 32 and 33 are glibc's own: no program can have them


async def test_the_directory_is_the_one_that_was_opened_even_if_it_is_renamed(bench: Bench) -> None:
    bench.folder.rename(bench.folder.with_name("moved"))
    bench.folder.symlink_to("/etc")
    assert (await bench.run("pwd", "-P"))[1] == f"{bench.folder.with_name('moved')}\n"


async def test_the_environment_holds_nothing_of_the_daemon_s(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPACE_HTTP_TOKEN", "canary")
    _, text = await bench.run("env", env={"CI": "1"})
    found = dict(line.split("=", 1) for line in text.splitlines())
    home = found.pop("HOME")
    assert found == {"PATH": environment.PATH, "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"}
    assert home.startswith(str(bench.folder.parent / "state"))


async def test_home_is_private_writable_and_gone_afterwards(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        script = "touch $HOME/file && stat -c %a $HOME && echo $HOME"
        _, text = await bench.run("sh", "-c", script)
        mode, home = text.split()
        assert mode == "700"
    assert str(tmp_path) in home
    assert os.listdir(tmp_path / "state/homes") == []


async def test_files_get_the_umask_that_was_given(tmp_path: Path) -> None:
    async with open_bench(tmp_path, umask=0o027) as bench:
        await bench.run("sh", "-c", "touch made")
        assert stat.S_IMODE((bench.folder / "made").stat().st_mode) == 0o640


@pytest.mark.parametrize("argv", [("./tool",), ("sub/../tool",)])
async def test_a_program_with_a_slash_is_relative_to_the_directory(bench: Bench, argv: tuple[str, ...]) -> None:
    (bench.folder / "sub").mkdir()
    tool = bench.folder / "tool"
    tool.write_text("#!/bin/sh\necho ran $0\n")
    tool.chmod(0o755)
    assert (await bench.run(*argv))[1] == f"ran {argv[0]}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [("no interpreter line\n", "ENOEXEC"), ("#!/no/such/interpreter\n", "ENOENT")],
)
async def test_a_program_that_the_system_refuses_starts_nothing_and_says_why(
    bench: Bench, text: str, says: str
) -> None:
    tool = bench.folder / "tool"
    tool.write_text(text)
    tool.chmod(0o755)
    failed = await refused("PROCESS_SPAWN_FAILED", bench.spawn("./tool"))
    assert says in failed.message
    assert "interpreter" in failed.next_step
    await refused("PROCESS_NOT_FOUND", bench.supervisor.wait_exit("proc-1"))


async def test_an_unknown_program_starts_nothing(bench: Bench) -> None:
    failed = await refused("PROCESS_SPAWN_FAILED", bench.spawn("no-such-program"))
    assert environment.PATH in failed.message


async def test_a_refused_variable_starts_nothing(bench: Bench) -> None:
    await refused("INVALID_COMMAND", bench.spawn("true", env={"LD_PRELOAD": "/x.so"}))


async def test_commands_run_side_by_side_and_keep_their_output_apart(bench: Bench) -> None:
    results: dict[int, str] = {}

    async def one(number: int) -> None:
        results[number] = (await bench.run("sh", "-c", f"cat; echo {number}", stdin=b"go "))[1]

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(one, number)
    assert results == {number: f"go {number}\n" for number in range(40)}


# --- output ---


async def test_streams_come_apart_and_merged_as_they_arrived(bench: Bench) -> None:
    script = "while read word; do echo o-$word; read word; echo e-$word >&2; done"
    process_id = await bench.spawn("sh", "-c", script, open_stdin=True)
    merged = ""
    for word, shown in (("1", "o-1\n"), ("2", "e-2\n"), ("3", "o-3\n"), ("4", "e-4\n")):
        await bench.supervisor.write_stdin(process_id, f"{word}\n".encode(), eof=False)
        merged += shown
        assert await bench.wait_text(process_id, shown) == merged
    await bench.supervisor.write_stdin(process_id, b"", eof=True)
    await bench.supervisor.wait_exit(process_id)
    assert (await bench.read(process_id, stream="stdout")).text == "o-1\no-3\n"
    assert (await bench.read(process_id, stream="stderr")).text == "e-2\ne-4\n"
    assert (await bench.read(process_id)).eof


async def test_what_is_found_on_both_streams_at_once_is_stdouts_first(bench: Bench) -> None:
    process_id = await bench.spawn(
        "sh", "-c", "while read word; do echo o; echo e >&2; echo x > $word; done", open_stdin=True
    )
    for count in range(1, 13):
        done = bench.folder / f"done-{count}"
        await bench.supervisor.write_stdin(process_id, f"{done.name}\n".encode(), eof=False)
        while not done.exists():  # and nobody reads meanwhile
            time.sleep(0.001)  # noqa: ASYNC251
        await bench.wait_text(process_id, count * "o\ne\n")


async def test_a_pipe_that_keeps_each_write_apart_holds_up_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, reads, read = [0], [0], os.read

    def counted(descriptor: int, size: int) -> bytes:
        reads[0] += 1
        return read(descriptor, size)

    class Count(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            turns.append(reads[0])

    monkeypatch.setattr(os, "read", counted)
    packets = (
        "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)\n"
        "for _ in range(5000): os.write(1, b'x')"
    )
    trio.lowlevel.add_instrument(count := Count())
    state, text = await bench.run(sys.executable, "-I", "-c", packets)
    trio.lowlevel.remove_instrument(count)
    assert (state.exit_code, text) == (0, 5000 * "x")
    assert max(after - before for before, after in pairwise(turns)) <= 4 * limits.PIPE_READS


async def test_a_flood_that_nobody_reads_ends_in_bounded_memory_with_its_loss_counted(tmp_path: Path) -> None:
    async with open_bench(tmp_path, process_spool_bytes=0) as bench:
        size = 20_000_000
        state, _ = await bench.run("head", "-c", str(size), "/dev/zero")
        assert state.output_total["stdout"] == size
        chunk = await bench.read("proc-1")
        assert chunk.retained_from == chunk.output_lost == size - limits.OUTPUT_RING_BYTES


async def test_a_flood_costs_bounded_memory_and_disk_and_keeps_how_it_began_and_ended(tmp_path: Path) -> None:
    async with open_bench(tmp_path, process_spool_bytes=4_000_000) as bench:
        await bench.run("true")
        before = resident_bytes()
        state, text = await bench.run("sh", "-c", "echo first; yes | head -c 500000000; echo; echo last")
        assert resident_bytes() - before < 40_000_000
        spool = tmp_path / "state/spool"
        assert sum(path.stat().st_size for path in spool.rglob("*.spool")) <= 4_000_000
        assert text.startswith("first\ny\ny\n")
        total = state.output_total["combined"]
        chunk = await bench.read("proc-2", total - 10)
        assert chunk.text.endswith("y\n\nlast\n")
        behind = await bench.read("proc-2", chunk.retained_head)
        assert behind.output_lost == behind.retained_from - behind.retained_head > 400_000_000
        assert behind.retained_head > 200_000
        assert total - behind.retained_from >= limits.OUTPUT_RING_BYTES


async def test_a_flood_leaves_others_their_turn(bench: Bench) -> None:
    flood = await bench.spawn("yes")
    await bench.wait_text(flood, "y")
    with trio.fail_after(30):
        assert (await bench.run("echo", "in between"))[1] == "in between\n"
    assert bench.supervisor.process(flood).state == "running"
    await bench.supervisor.terminate(flood, 0.0)


async def test_readers_never_take_from_each_other(bench: Bench) -> None:
    process_id = await bench.spawn("echo", "for everyone")
    await bench.supervisor.wait_exit(process_id)
    assert {(await bench.read(process_id)).text for _ in range(3)} == {"for everyone\n"}


async def test_cancelled_waits_consume_nothing(bench: Bench) -> None:
    process_id = await bench.spawn("cat", open_stdin=True)
    for wait in (
        lambda: bench.supervisor.wait_output(process_id, cursor=0, stream="combined"),
        lambda: bench.supervisor.wait_exit(process_id),
    ):
        with trio.move_on_after(0) as patience:
            await wait()
        assert patience.cancelled_caught
    await bench.supervisor.write_stdin(process_id, b"still here", eof=True)
    await bench.supervisor.wait_exit(process_id)
    assert (await bench.read(process_id)).text == "still here"


async def test_who_reads_the_end_of_the_output_hears_how_it_ended(bench: Bench) -> None:
    for number in range(20):
        process_id = await bench.spawn("sh", "-c", f"read go; echo last; exit {number}", open_stdin=True)
        await bench.supervisor.write_stdin(process_id, b"\n", eof=True)
        while not (chunk := await bench.read(process_id)).eof:
            assert (chunk.state.exit_code, chunk.state.ended_at) == (None, None)
            await bench.supervisor.wait_output(process_id, cursor=chunk.cursor, stream="combined")
        assert (chunk.state.state, chunk.state.exit_code, chunk.text) == ("exited", number, "last\n")


async def test_a_command_that_has_closed_its_output_and_goes_on_runs(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "echo last; exec sleep 600 >&- 2>&-")
    while not (chunk := await bench.read(process_id)).eof:
        await trio.testing.wait_all_tasks_blocked()
    assert (chunk.state.state, chunk.state.exit_code, chunk.text) == ("running", None, "last\n")
    await bench.supervisor.terminate(process_id, 0.0)


async def test_an_outsider_that_holds_the_pipe_does_not_hold_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_SECONDS", 0.05)
    process_id = await bench.spawn("sh", "-c", "echo $$; read line", open_stdin=True)
    outside = os.open(f"/proc/{await bench.first_pid(process_id)}/fd/1", os.O_WRONLY)
    try:
        await bench.supervisor.write_stdin(process_id, b"\n", eof=True)
        state = await bench.supervisor.wait_exit(process_id)
        assert state.exit_code == 0
        assert (await bench.read(process_id)).eof
    finally:
        os.close(outside)


# --- stdin ---


async def test_stdin_is_empty_unless_asked(bench: Bench) -> None:
    state, text = await bench.run("cat")
    assert (state.exit_code, text) == (0, "")
    process_id = await bench.spawn("sleep", "600")
    await refused("INVALID_ARGUMENT", bench.supervisor.write_stdin(process_id, b"x", eof=False))


async def test_given_bytes_are_all_sent_then_closed(bench: Bench) -> None:
    assert (await bench.run("wc", "-c", stdin=bytes(3_000_000)))[1].strip() == "3000000"


async def test_given_bytes_come_before_written_ones(bench: Bench) -> None:
    first = b"a" * 200_000
    process_id = await bench.spawn("md5sum", stdin=first, open_stdin=True)
    assert await bench.supervisor.write_stdin(process_id, b"end", eof=True) == 3
    await bench.supervisor.wait_exit(process_id)
    expected = hashlib.md5(first + b"end", usedforsecurity=False).hexdigest()
    assert (await bench.read(process_id)).text.split()[0] == expected


async def test_a_command_that_ends_without_reading_its_stdin_is_no_fault(bench: Bench) -> None:
    assert (await bench.run("true", stdin=bytes(3_000_000)))[0].exit_code == 0


async def test_too_much_for_stdin_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STDIN_BYTES", 10)
    found = await refused("LIMIT_REACHED", bench.spawn("cat", stdin=bytes(11)))
    assert "Nothing was started" in found.message
    assert "`open_stdin`" in found.next_step, "of a process that is not there nothing can be sent to stdin"
    process_id = await bench.spawn("cat", open_stdin=True)
    found = await refused("LIMIT_REACHED", bench.supervisor.write_stdin(process_id, bytes(11), eof=False))
    assert "Nothing was written" in found.message


async def test_a_process_that_does_not_read_takes_what_the_pipe_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STDIN_SECONDS", 0.1)
    process_id = await bench.spawn("sleep", "600", open_stdin=True)
    taken = await bench.supervisor.write_stdin(process_id, bytes(1_000_000), eof=True)
    assert 0 < taken < 1_000_000


async def test_writing_after_the_end_says_how_it_ended(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "exit 5", open_stdin=True)
    await bench.supervisor.wait_exit(process_id)
    found = await refused("PROCESS_EXITED", bench.supervisor.write_stdin(process_id, b"x", eof=False))
    assert found.details is not None
    assert found.details["exit_code"] == 5


async def test_a_writer_that_waits_hears_of_the_end(bench: Bench) -> None:
    process_id = await bench.spawn("sleep", "600", open_stdin=True)
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            await refused("PROCESS_EXITED", bench.supervisor.write_stdin(process_id, bytes(1_000_000), eof=False))

        nursery.start_soon(write)
        await bench.supervisor.terminate(process_id, 5.0)


async def test_writing_after_eof_is_refused_while_the_process_lives(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "cat; sleep 600", open_stdin=True)
    await bench.supervisor.write_stdin(process_id, b"last", eof=True)
    await refused("INVALID_ARGUMENT", bench.supervisor.write_stdin(process_id, b"more", eof=False))


# --- ends that somebody else decides ---


async def test_the_time_limit_ends_the_tree_and_is_named(bench: Bench) -> None:
    state, _ = await bench.run("sh", "-c", "sleep 600 & sleep 600", timeout_seconds=0.1)
    assert (state.termination, state.signal) == ("timeout", "SIGTERM")


async def test_the_time_limit_holds_for_one_that_ignores_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_SECONDS", 0.05)
    for seconds in (0.3, 1.0, 3.0, 9.0):
        state, text = await bench.run("sh", "-c", STUBBORN, timeout_seconds=seconds)
        if text:  # else the machine was slow, and the shell did not come to ignore anything
            break
    assert text
    assert (state.termination, state.signal) == ("timeout", "SIGKILL")


async def test_terminate_waits_for_the_tree_and_is_named(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", STUBBORN)
    pid = await bench.first_pid(process_id)
    below = processes.descendants(pid) | {pid}
    state = await bench.supervisor.terminate(process_id, 0.05)
    assert (state.state, state.termination, state.signal) == ("exited", "terminated", "SIGKILL")
    assert not any(processes.is_alive(pid) for pid in below)
    assert await bench.supervisor.terminate(process_id, 0.0) == state


async def test_terminate_after_the_end_does_not_change_how_it_ended(bench: Bench) -> None:
    state, _ = await bench.run("true")
    assert (await bench.supervisor.terminate("proc-1", 0.0)) == state


async def test_a_terminate_that_comes_too_late_leaves_the_exit_its_own(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "echo $$; read line; exit 6", open_stdin=True)
    pid = await bench.first_pid(process_id)
    keeper = keeper_pid()
    (owner,) = [other for other in processes.children(keeper) if pid in processes.children(other)]
    os.kill(keeper, signal.SIGSTOP)  # it would wake the monitor
    os.kill(owner, signal.SIGSTOP)  # so that both are news to it at the same moment
    await bench.supervisor.write_stdin(process_id, b"\n", eof=True)
    await processes.wait_gone([pid])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.supervisor.terminate, process_id, 0.0)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(owner, signal.SIGCONT)
    os.kill(keeper, signal.SIGCONT)
    state = bench.supervisor.process(process_id)
    assert (state.exit_code, state.termination) == (6, "exited")


async def test_a_cancelled_terminate_still_ends_the_tree(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", STUBBORN)
    await bench.first_pid(process_id)
    with trio.move_on_after(0):
        await bench.supervisor.terminate(process_id, 0.05)
    assert (await bench.supervisor.wait_exit(process_id)).termination == "terminated"


async def test_a_child_in_the_background_does_not_outlive_its_command(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "setsid sleep 600 & echo $!")
    left = await bench.first_pid(process_id)
    state = await bench.supervisor.wait_exit(process_id)
    assert (state.exit_code, state.termination) == (0, "exited")
    assert not processes.is_alive(left)


async def test_a_killed_monitor_makes_it_lost_and_leaves_nothing(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "echo $PPID; setsid sleep 600 & sleep 600")
    owner = await bench.first_pid(process_id)
    below = processes.descendants(owner)
    os.kill(owner, signal.SIGKILL)
    state = await bench.supervisor.wait_exit(process_id)
    assert (state.termination, state.exit_code, state.signal) == ("lost", None, None)
    assert state.notes
    await processes.wait_gone(below)


async def test_a_killed_keeper_is_replaced_and_its_monitors_go_on(bench: Bench) -> None:
    running = await bench.spawn("sh", "-c", "echo $PPID; read line; exit 4", open_stdin=True)
    owner = await bench.first_pid(running)
    keeper = keeper_pid()
    assert owner in processes.children(keeper)
    os.kill(keeper, signal.SIGKILL)
    assert (await bench.run("echo", "next"))[1] == "next\n"
    await bench.supervisor.write_stdin(running, b"\n", eof=True)
    assert (await bench.supervisor.wait_exit(running)).exit_code == 4


async def test_a_stopped_keeper_is_replaced_and_still_ends_what_its_monitors_leave(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishing = await bench.spawn("sh", "-c", "read line; exit 4", open_stdin=True)
    left = await bench.spawn("sh", "-c", "echo $PPID; setsid sleep 600 & sleep 600")
    owner = await bench.first_pid(left)
    below = processes.descendants(owner)
    keeper = keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    spare = bench.supervisor._keeper.resident.take()
    assert spare is not None
    spare.close()
    monkeypatch.setattr(limits, "MONITOR_SECONDS", 0.1)
    refusal = await refused("PROCESS_SPAWN_FAILED", bench.spawn("touch", "happened"))
    assert "was replaced" in refusal.message
    monkeypatch.undo()
    assert (await bench.run("echo", "next"))[1] == "next\n"
    await bench.supervisor.write_stdin(finishing, b"\n", eof=True)
    assert (await bench.supervisor.wait_exit(finishing)).exit_code == 4
    os.kill(owner, signal.SIGKILL)
    assert (await bench.supervisor.wait_exit(left)).termination == "lost"
    await processes.wait_gone({*below, keeper})  # woken, it swept up, and had nothing more to wait for
    assert os.listdir(bench.folder) == []


async def test_a_spare_monitor_that_could_not_fork_when_it_was_made_costs_no_command(bench: Bench) -> None:
    await bench.run("true")
    resident = bench.supervisor._keeper._resident
    spare = resident.take()
    assert spare is not None
    spare.close()
    resident._spare, monitor = socket.socketpair()
    resident._spare.setblocking(False)
    with monitor:
        Line(monitor).tell(event="failed", stage="monitor", errno=errno.EAGAIN)
    assert (await bench.run("echo", "next"))[1] == "next\n"


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 8, 16])
async def test_a_cancelled_start_leaves_nothing_or_a_whole_process(bench: Bench, milliseconds: int) -> None:
    await bench.run("true")
    keeper = keeper_pid()
    for _ in range(20):
        with trio.move_on_after(milliseconds / 1000) as scope:
            process_id = await bench.spawn("sleep", "600")
        if scope.cancelled_caught:
            await refused("PROCESS_NOT_FOUND", bench.supervisor.wait_exit(f"proc-{bench._count}"))
        else:
            await bench.supervisor.terminate(process_id, 5.0)
    await wait_gone_but_one(processes.children(keeper))  # a monitor ends after its tree; one is the spare


def send(number: signal.Signals, pids: Collection[int]) -> None:
    """Send a signal to processes, of which some may have ended by themselves: a monitor outlives its run a little."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def test_a_start_that_hangs_is_given_up_and_does_not_happen_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.run("true")
    keeper = keeper_pid()
    hanging: set[int] = set()
    fresh = frozenset({keeper})
    while fresh:  # a spare monitor may just be forking its command's fork
        send(signal.SIGSTOP, fresh)
        hanging |= fresh
        while not {processes.state(pid) for pid in hanging} <= {"T", "Z", None}:  # a fork that has begun is finished
            await trio.lowlevel.checkpoint()
        fresh = processes.descendants(keeper) - hanging
    monkeypatch.setattr(limits, "SPAWN_SECONDS", 0.1)
    try:
        await refused("PROCESS_SPAWN_FAILED", bench.spawn("touch", "happened"))
    finally:
        send(signal.SIGCONT, hanging)
    await processes.wait_gone(hanging - {keeper})
    assert not os.listdir(bench.folder)
    monkeypatch.undo()
    assert (await bench.run("echo", "well again"))[1] == "well again\n"


# --- what is kept ---


async def test_an_unknown_process_is_not_found_by_any_verb(bench: Bench) -> None:
    supervisor = bench.supervisor
    await refused("PROCESS_NOT_FOUND", supervisor.wait_exit("proc-none"))
    await refused("PROCESS_NOT_FOUND", supervisor.terminate("proc-none", 0.0))
    await refused("PROCESS_NOT_FOUND", supervisor.write_stdin("proc-none", b"", eof=False))
    await refused("PROCESS_NOT_FOUND", supervisor.wait_output("proc-none", cursor=0, stream="combined"))
    await refused("PROCESS_NOT_FOUND", bench.read("proc-none"))
    supervisor.forget("proc-none")


async def test_forget_drops_an_ended_process_and_spares_a_live_one(bench: Bench) -> None:
    await bench.run("true")
    bench.supervisor.forget("proc-1")
    await refused("PROCESS_NOT_FOUND", bench.read("proc-1"))
    live = await bench.spawn("sleep", "600")
    bench.supervisor.forget(live)
    assert bench.supervisor.process(live).state == "running"


async def test_an_ended_process_is_dropped_after_its_retention(tmp_path: Path) -> None:
    async with open_bench(tmp_path, retention_seconds=0.0) as bench:
        process_id = await bench.spawn("true")
        await bench.supervisor.wait_exit(process_id)
        await refused("PROCESS_NOT_FOUND", bench.read(process_id))


async def test_only_the_newest_ended_processes_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETAINED_PROCESSES", 2)
    live = await bench.spawn("sleep", "600")
    for _ in range(3):
        await bench.run("true")
    await refused("PROCESS_NOT_FOUND", bench.read("proc-2"))
    for kept in (live, "proc-3", "proc-4"):
        bench.supervisor.process(kept)


# --- the end of the daemon ---


async def test_the_end_of_the_supervisor_ends_every_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE_SECONDS", 0.05)
    async with open_bench(tmp_path) as bench:
        pids = [await bench.first_pid(await bench.spawn("sh", "-c", STUBBORN)) for _ in range(3)]
        polite = await bench.spawn("sleep", "600")
    assert not any(processes.is_alive(pid) for pid in pids)
    assert bench.supervisor.process(polite).termination == "terminated"
    await refused("SHUTTING_DOWN", bench.spawn("true"))


async def test_a_cancelled_supervisor_ends_every_tree_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE_SECONDS", 20.0)  # for a shell that does not get the processor at once
    monkeypatch.setattr(limits, "STOP_END_SECONDS", 30.0)
    with trio.CancelScope() as scope:
        async with open_bench(tmp_path) as bench:
            process_id = await bench.spawn("sh", "-c", "trap 'exit 9' TERM; echo $$; while :; do sleep 0.01; done")
            await bench.first_pid(process_id)
            scope.cancel()
            await trio.sleep_forever()
    assert bench.supervisor.process(process_id).exit_code == 9


DAEMON = """
import os, sys, trio
from codespace.contract import SpawnRequest, Workspace
from codespace.runner.supervisor import Supervisor

async def main():
    root = sys.argv[1]
    async with Supervisor(root + '/state') as supervisor:
        argv = ('sh', '-c', sys.argv[2])
        request = SpawnRequest('proc-1', argv, '.', {}, 600.0)
        await supervisor.spawn(Workspace('w', root), request, os.open(root, os.O_PATH))
        await supervisor.wait_output('proc-1', cursor=0, stream='combined')
        print('ready', flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_a_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600 & sleep 600' & sleep 600 & echo up; wait"
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(tmp_path), script], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == b"ready\n"
    below = processes.descendants(daemon.pid)
    assert len(below) >= 4  # keeper, monitor, sh and its children
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    assert not processes.still_alive_after(below, DEADLINE_SECONDS)
