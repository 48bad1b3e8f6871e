"""Where neither a cgroup nor a pid_max carries the number of processes, a plain account's user namespace does."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from codespace.contract import WorkspaceLimits
from codespace.sandbox import foreground, nproc, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.limits import Carried, Mechanisms
from codespace.sandbox.plan import Quota
from codespace.testing import processes

from .cage import PATH, Cage
from .until import PATIENCE_SECONDS

MOST = 60
BOMB = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++; last if $n > 300 } print $n"
BESIDE = "for (1..200) { if (!fork) { sleep 987656; exit } } print 'there'; sleep 600"
NOTHING_ELSE = Mechanisms(None, None, pid_max=False, nproc=True)


def forked(cage: Cage, carried_by: Mechanisms, observe: Callable[[spawn.Launch], Any] | None = None) -> int:
    """Return how often a command of this account forks before it is refused, where these are all mechanisms."""
    prepared = cage.prepare(["/usr/bin/perl", "-e", BOMB], env={"PATH": PATH})
    equipment = replace(prepared.equipment, mechanisms=carried_by)
    with tempfile.TemporaryFile(dir=cage.base) as out, open(os.devnull, "r+b") as null:
        told = {"stdin": null.fileno(), "stdout": out.fileno(), "stderr": null.fileno()}
        foreground.run(equipment, prepared.plan, **told, seconds=60.0, observe=observe)
        out.seek(0)
        return int(out.read())


def test_a_fork_bomb_is_stopped_at_the_count_of_its_own_sandbox(cage: Cage) -> None:
    limited = cage.having(limits=WorkspaceLimits(pids=MOST))
    if not cage.does(nproc.is_per_namespace):
        assert cage.uid == 0, "this kernel is older than any that is supported here"
        assert cage.does(mechanisms.look).nproc is False
        assert forked(limited, Mechanisms(None, None, pid_max=False)) == 301
        return
    assert cage.does(mechanisms.look).nproc is True
    assert MOST - 10 < cage.does(lambda: forked(limited, NOTHING_ELSE)) < MOST
    assert cage.does(lambda: forked(limited, replace(NOTHING_ELSE, nproc=False))) == 301


def test_what_the_account_runs_elsewhere_is_not_counted(cage: Cage) -> None:
    if not cage.does(nproc.is_per_namespace):
        pytest.skip("the kernel counts no processes of its root")
    limited = cage.having(limits=WorkspaceLimits(pids=MOST))

    def beside() -> int:
        pid = foreground.start(["/usr/bin/perl", "-e", BESIDE], {}, {0: 0, 1: 2, 2: 2})
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (there := len(processes.descendants(pid))) < 200 and time.monotonic() < deadline:
                os.sched_yield()
            assert there == 200
            return forked(limited, NOTHING_ELSE)
        finally:
            for each in [pid, *processes.descendants(pid)]:
                os.kill(each, 9)
            os.waitpid(pid, 0)

    assert MOST - 10 < cage.does(beside) < MOST


def test_a_process_in_no_namespace_of_its_own_gets_no_limit_that_would_be_the_accounts(cage: Cage) -> None:
    def refused() -> bool:
        pid = foreground.start(["/bin/sleep", "987655"], {}, {0: 0, 1: 2, 2: 2})
        try:
            nproc.limit(pid, MOST)
        except OSError as error:
            return "no user namespace of its own" in str(error)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        return False

    assert cage.does(refused)


@pytest.mark.parametrize(
    ("pids", "pid_max", "nproc", "carried"),
    [(400, True, True, "pid_max"), (60, True, True, "nproc"), (400, False, True, "nproc"), (60, True, False, "none")],
)
def test_the_best_that_there_is_carries_it(pids: int, pid_max: bool, nproc: bool, carried: str) -> None:
    found = Mechanisms(None, None, pid_max=pid_max, nproc=nproc)
    assert found.carried(Quota(pids=pids)) == Carried(carried, "none", "none")  # type: ignore[arg-type]
    assert (found.pid_max_for(Quota(pids=pids)) is not None) is (carried == "pid_max")
    assert found.nproc_for(Quota(pids=pids)) == (pids if carried == "nproc" else None)
