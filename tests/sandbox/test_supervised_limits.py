"""A sandboxed command with a limit of its processes and one of its memory at once, under the supervisor.

In cgroups v2 one cgroup has both, in v1 each hierarchy has its own; a command is in whatever there is of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from codespace.contract import WorkspaceLimits
from codespace.sandbox import limits as mechanisms
from codespace.sandbox import plan

from .test_supervised import Bench, bench

__all__ = ["bench"]

SPIN = "1 while 1"
PIDS = 400
MEMORY_BYTES = 100 * 1_048_576
BOMB = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++; last if $n > 600 } print $n"
TREE = "for (1..5) { if (!fork) { my $x = q(x) x (40 * 1048576); sleep 600 } } wait; print 'one ended'"


@pytest.fixture
def limited(bench: Bench) -> Bench:
    bench.workspace = replace(bench.workspace, limits=WorkspaceLimits(pids=PIDS, memory_bytes=MEMORY_BYTES))
    return bench


async def test_a_command_with_both_limits_is_started_and_kept_to_either(limited: Bench) -> None:
    carried = mechanisms.look().carried(plan.quota(limited.workspace))
    state, told = await limited.run("/bin/echo", "started")
    assert (told, state.notes) == ("started\n", ())
    if carried.memory == "cgroup":
        state, told = await limited.run("/usr/bin/perl", "-e", TREE)
        assert told == "one ended", "together they are over the limit, each alone is not"
        assert any("limits.memory_bytes" in note for note in state.notes)
    state, told = await limited.run("/usr/bin/perl", "-e", BOMB)
    assert (PIDS - 100 < int(told) < PIDS) is (carried.pids != "none")
    if carried.pids == "cgroup":
        assert any("limits.pids" in note for note in state.notes)


@pytest.mark.parametrize("tty", [False, True])
async def test_processor_time_that_is_used_up_ends_the_command_and_is_named(bench: Bench, tty: bool) -> None:
    bench.workspace = replace(bench.workspace, limits=WorkspaceLimits(cpu_seconds=1.0))
    state, _ = await bench.run("/usr/bin/perl", "-e", SPIN, tty=tty)
    assert (state.termination, state.signal) == ("limit", "SIGXCPU")
    assert any("limits.cpu_seconds" in note for note in state.notes)


async def test_a_command_that_catches_the_end_of_its_processor_time_has_a_little_more_of_it(bench: Bench) -> None:
    bench.workspace = replace(bench.workspace, limits=WorkspaceLimits(cpu_seconds=1.0))
    state, told = await bench.run("/usr/bin/perl", "-e", "$SIG{XCPU} = sub { print q(told); exit 3 }; " + SPIN)
    assert (told, state.exit_code, state.termination) == ("told", 3, "exited")


async def test_memory_that_is_only_asked_for_is_no_use_where_a_cgroup_counts_what_is_used(limited: Bench) -> None:
    carried = mechanisms.look().carried(plan.quota(limited.workspace))
    state, told = await limited.run("/bin/sh", "-c", "ulimit -d")
    assert state.exit_code == 0
    assert told == ("unlimited\n" if carried.memory == "cgroup" else f"{MEMORY_BYTES // 1024}\n")
