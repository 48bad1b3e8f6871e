"""A caller's cgroup: bubblewrap enters it before it is bubblewrap, and a sandbox that is not in it is not released."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from codespace.sandbox import limits as mechanisms
from codespace.sandbox import spawn
from codespace.sandbox.plan import Quota

from .cage import Cage

SECONDS = 20.0
ENV = {"PATH": "/usr/bin:/bin"}


def wait(steps: Iterator[int]) -> None:
    for descriptor in steps:
        assert select.select([descriptor], [], [], SECONDS)[0]


def is_released(cage: Cage, *, enters: bool) -> bool:
    """Set a sandbox up whose cgroup is ours, as the supervisor does; return whether `limit` lets it go on."""
    prepared = cage.prepare(["sleep", "987659"], env=ENV)
    own = mechanisms.Cage(prepared.equipment.mechanisms, Quota(pids=100))
    launch = prepared.launch(own)
    null = os.open(os.devnull, os.O_RDWR)
    enter = [f'echo 0 >"{path}"; ' for path in own.members] if enters else []
    start = ["/bin/sh", "-c", "".join(enter) + 'exec "$@"', "sh", *launch.argv]
    pid = spawn.start(start, launch.env, {0: null, 1: null, 2: null, **launch.inherited})
    try:
        launch.let_go()
        wait(launch.started(pid))
        wait(launch.ready())
        try:
            launch.seal()
        except spawn.NotStarted:
            return False
        return True
    finally:
        spawn.end(pid)
        os.waitpid(pid, 0)
        os.close(null)
        select.select([launch.pidfd], [], [], SECONDS)
        launch.close()
        own.close()


@pytest.mark.parametrize("enters", [True, False])
def test_a_sandbox_is_released_only_inside_the_cgroup_that_was_made_for_it(cage: Cage, enters: bool) -> None:
    carried = cage.does(lambda: mechanisms.look().carried(Quota(pids=100)))
    released = cage.does(lambda: is_released(cage, enters=enters))
    assert released == (enters or carried.pids != "cgroup")
