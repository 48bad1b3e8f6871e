"""The operator's limits on real commands: each holds by what is reported to carry it, and the result names it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from codespace import limits
from codespace.contract import Workspace, WorkspaceLimits
from codespace.runner import quota
from codespace.sandbox.limits import Mechanisms, Overruns

from ..sandbox.until import PATIENCE_SECONDS
from .supervised import Bench, open_bench

NOTHING = Mechanisms(None, None, pid_max=False)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


def python(script: str) -> tuple[str, str, str]:
    return (sys.executable, "-c", script)


async def test_open_files_are_limited_in_each_process(bench: Bench) -> None:
    bench.limit(open_files=50)
    assert (await bench.run("sh", "-c", "ulimit -n; ulimit -Hn"))[1] == "50\n50\n"
    assert bench.supervisor.limits(bench.workspace)["open_files"] == "rlimit"


def test_a_command_may_open_half_of_what_its_daemon_may_and_begins_with_what_the_daemon_began_with(
    tmp_path: Path,
) -> None:
    look = (
        "import resource, trio, pathlib, sys\n"
        "from tests.runner.supervised import open_bench\n"
        "async def main():\n"
        "    async with open_bench(pathlib.Path(sys.argv[1])) as bench:\n"
        "        print((await bench.run('sh', '-c', 'ulimit -n; ulimit -Hn'))[1], end='')\n"
        "        print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "trio.run(main)\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", look, str(tmp_path)],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, 4096)),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for soft in (1024, 4096)
    ]
    assert told == [["1024", "2048", "4096", "4096"], ["2048", "2048", "4096", "4096"]]


async def test_a_file_that_grows_too_large_ends_its_writer_and_is_named(bench: Bench) -> None:
    bench.limit(command_file_bytes=100_000)
    state, _ = await bench.run("dd", "if=/dev/zero", "of=big", "bs=10000", "count=100")
    assert (state.termination, state.signal) == ("limit", "SIGXFSZ")
    assert "limits.file_bytes" in state.notes[0]
    assert (bench.folder / "big").stat().st_size == 100_000


async def test_the_default_for_the_file_tools_does_not_limit_commands(bench: Bench) -> None:
    script = f"import os; f = os.open('sparse', os.O_CREAT | os.O_RDWR); os.ftruncate(f, {2 * limits.FILE_BYTES})"
    assert (await bench.run(*python(script)))[0].exit_code == 0


async def test_cpu_time_that_is_used_up_ends_the_command_and_is_named(bench: Bench) -> None:
    bench.limit(cpu_seconds=1.0)
    state, _ = await bench.run("sh", "-c", "while :; do :; done")
    assert (state.termination, state.signal) == ("limit", "SIGXCPU")
    assert "limits.cpu_seconds" in state.notes[0]
    assert state.resources is not None
    assert state.resources["cpu_seconds"] >= 0.5


async def test_a_limit_reached_below_a_shell_is_named_though_the_shell_ends_by_itself(bench: Bench) -> None:
    bench.limit(command_file_bytes=1_000)
    state, _ = await bench.run("sh", "-c", "dd if=/dev/zero of=big bs=5000 count=1; exit $?")
    assert (state.termination, state.exit_code) == ("exited", 128 + 25)
    assert "limits.file_bytes" in state.notes[0]


async def test_a_limit_of_each_process_is_not_named_where_the_shell_swallows_its_childs_end(bench: Bench) -> None:
    bench.limit(command_file_bytes=1_000)
    state, text = await bench.run("sh", "-c", "dd if=/dev/zero of=big bs=5000 count=1; echo code $?")
    assert (state.termination, state.exit_code, state.notes) == ("exited", 0, ())
    assert "code 153" in text


async def test_memory_is_held_by_what_is_said_to_hold_it(bench: Bench) -> None:
    bench.limit(memory_bytes=64 * 1_048_576)
    carried = bench.supervisor.limits(bench.workspace)["memory"]
    state, text = await bench.run(*python("held = [bytearray(b'x' * 8_000_000) for _ in range(100)]"))
    if carried == "cgroup":
        assert (state.termination, state.signal) == ("limit", "SIGKILL")
        assert "limits.memory_bytes" in state.notes[0]
    else:
        assert carried == "rlimit"
        assert state.exit_code == 1
        assert "MemoryError" in text


async def test_without_a_cgroup_memory_is_limited_in_each_process(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.limit(memory_bytes=64 * 1_048_576)
        found = quota.hold(NOTHING, bench.workspace)
        assert (resource.RLIMIT_DATA, 64 * 1_048_576, 64 * 1_048_576) in found.rlimits
        assert not found.cage.members
        assert quota.carried(NOTHING, bench.workspace)["pids"] == "none"


async def test_a_fork_bomb_stays_within_the_limit_or_it_is_said_that_none_holds(bench: Bench) -> None:
    bench.limit(pids=30)
    carried = bench.supervisor.limits(bench.workspace)["pids"]
    assert carried in ("cgroup", "none")
    if carried == "cgroup":
        state, text = await bench.run("sh", "-c", "for i in $(seq 100); do sleep 600 & done; echo never")
        assert "never" not in text
        assert any("limits.pids" in note for note in state.notes)


async def test_a_whole_tree_shares_the_memory_limit(bench: Bench) -> None:
    bench.limit(memory_bytes=64 * 1_048_576)
    if bench.supervisor.limits(bench.workspace)["memory"] == "cgroup":
        each = "held = bytearray(b'x' * 30_000_000); __import__('time').sleep(600)"
        script = f'for i in 1 2 3 4; do {sys.executable} -c "{each}" & done; wait -n'
        state, _ = await bench.run("bash", "-c", script)
        assert any("limits.memory_bytes" in note for note in state.notes)


async def test_no_core_file_is_left_in_the_workspace(bench: Bench) -> None:
    await bench.run("sh", "-c", "grep core /proc/self/limits; kill -SEGV $$")
    said = (await bench.read("proc-1")).text
    assert said.split() == ["Max", "core", "file", "size", "1", "1", "bytes"], "where cores go to a program, 0 is none"
    assert os.listdir(bench.folder) == []


async def test_no_cgroup_stays_behind_a_command(bench: Bench) -> None:
    bench.limit(pids=50, memory_bytes=10**9)
    await bench.run("sh", "-c", "echo $$")
    mechanisms = quota.look()
    for controller in filter(None, (mechanisms.pids, mechanisms.memory)):
        with trio.fail_after(PATIENCE_SECONDS):
            while own_cgroups(controller.folder):  # the kernel has not done with it: then it goes with a later run's
                await bench.run("true")


def own_cgroups(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(f"codespace-run-{os.getpid()}-")]


async def test_an_inherited_harder_limit_is_kept(bench: Bench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bench.limit(open_files=hard + 1 if hard != resource.RLIM_INFINITY else 10**6)
    assert int((await bench.run("sh", "-c", "ulimit -n"))[1]) <= (hard if hard > 0 else 10**6)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


async def test_a_command_that_ended_well_is_not_said_to_have_been_ended_by_a_limit(bench: Bench) -> None:
    bench.limit(memory_bytes=10**9, cpu_seconds=50.0, open_files=100, pids=100)
    state, _ = await bench.run("true")
    assert (state.termination, state.notes) == ("exited", ())
    held = quota.hold(NOTHING, bench.workspace)
    assert not quota.is_reached(held, 0, 0.0, Overruns(killed=1))
    assert quota.is_reached(held, 1, 0.0, Overruns(killed=1))


def test_an_exit_code_that_only_may_be_a_childs_end_at_a_limit_is_told_as_one_that_may_be(tmp_path: Path) -> None:
    held = quota.hold(quota.look(), Workspace("w", str(tmp_path), limits=WorkspaceLimits(cpu_seconds=600)))
    try:
        [may_be] = quota.notes(held, 152, Overruns())
        [is_so] = quota.notes(held, -signal.SIGXCPU, Overruns())
    finally:
        held.cage.close()
    assert may_be == f"If its exit code 152 is a shell's for a child that SIGXCPU ended, then of that: {is_so}"
