"""A run's cgroup: entered before bubblewrap is bubblewrap, looked at before a sandbox is released, gone behind it.

With what this machine offers by itself, and in cgroups v2 as a user's manager hands a part of it to an account. Where
v2 has no controller for processes here, a limit that every v2 cgroup has stands for it: making, limiting,
entering, looking and removing are the same.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from codespace.sandbox import hierarchy, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.limits import Controller, Mechanisms, Overruns
from codespace.sandbox.plan import Quota
from codespace.testing import processes

from .cage import Cage

SECONDS = 20.0
ENV = {"PATH": "/usr/bin:/bin"}


def wait(steps: Iterator[int]) -> None:
    for descriptor in steps:
        assert select.select([descriptor], [], [], SECONDS)[0]


def is_released(cage: Cage, found: Mechanisms | None, *, enters: bool) -> bool:
    """Set a sandbox up whose cgroup is ours, as the supervisor does; return whether `seal` lets it go on."""
    prepared = cage.prepare(["sleep", "987659"], env=ENV)
    own = mechanisms.Cage(found or prepared.equipment.mechanisms, Quota(pids=100))
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
    released = cage.does(lambda: is_released(cage, None, enters=enters))
    assert released == (enters or carried.pids != "cgroup")


# --- v2 ---

ANY_LIMIT = "cgroup.max.descendants"
# A number that every cgroup of v2 takes, whatever controllers there are.


def own_v2() -> Path:
    """Return our own cgroup of v2."""
    second = [place.folder for place in hierarchy.places("pids") if place.is_second]
    if not second or not os.access(second[0], os.W_OK):
        pytest.skip("no cgroup of v2 can be written to by this account: none is mounted, or it is another's")
    return Path(second[0])


@contextmanager
def share(uid: int) -> Iterator[Path]:
    """Hand a part of v2 to an account, with this process in a cgroup of its own below it, as a user's manager does."""
    before = own_v2()
    part = Path(tempfile.mkdtemp(prefix="codespace-tests-", dir=before))
    try:
        (part / "daemon").mkdir()
        for path in (part, part / "cgroup.procs", part / "cgroup.subtree_control", part / "daemon"):
            os.chown(path, uid, uid)
        (part / "daemon" / "cgroup.procs").write_text(str(os.getpid()))
        yield part
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        for path in (part / "daemon", part):
            path.rmdir()  # fails where a run left a folder behind


def having(folder: Path) -> Mechanisms:
    return Mechanisms(Controller(str(folder), ANY_LIMIT), None, pid_max=False)


def folders(part: Path) -> list[str]:
    return sorted(entry.name for entry in part.iterdir() if entry.is_dir())


@pytest.mark.parametrize("enters", [True, False])
def test_a_sandbox_is_released_only_inside_its_cgroup_of_v2_too(cage: Cage, enters: bool) -> None:
    with share(cage.uid) as part:
        assert cage.does(lambda: is_released(cage, having(part), enters=enters)) == enters
        assert folders(part) == ["daemon"]


def test_a_share_of_v2_is_found_beside_the_own_cgroup_and_the_rest_is_not_to_be_had(cage: Cage) -> None:
    with share(cage.uid) as part:
        told = cage.does(lambda: [place.folder for place in hierarchy.places("pids") if place.is_second])
        assert told == [str(part / "daemon"), str(part)]
        assert cage.does(lambda: mechanisms._works(Controller(str(part), ANY_LIMIT))) is True
        assert cage.does(lambda: mechanisms._works(Controller(str(part), "no.such.controller.max"))) is False
        above = cage.does(lambda: mechanisms._works(Controller(str(part.parent), ANY_LIMIT)))
        assert above is (cage.uid == 0)
        assert folders(part) == ["daemon"], "what was tried is gone"


class Tree:
    """A process that, once told to, has a child and one more in a session of its own."""

    def __init__(self) -> None:
        reading, self._told = os.pipe()
        script = "read line; setsid sleep 987658 & sleep 987658; true"
        self.pid = spawn.start(["/bin/sh", "-c", script], ENV, {0: reading, 1: 2, 2: 2})
        os.close(reading)

    def grow(self) -> None:
        os.write(self._told, b"\n")
        deadline = time.monotonic() + SECONDS
        while len(self._asleep) < 2 and time.monotonic() < deadline:
            os.sched_yield()
        assert len(self._asleep) == 2

    @property
    def all(self) -> list[int]:
        return [self.pid, *processes.descendants(self.pid)]

    @property
    def _asleep(self) -> list[int]:
        """Those that are what they are going to be: in the midst of an exec a process has no argv to look at."""
        return [pid for pid in self.all if processes.command_line(pid) == "sleep 987658"]

    def close(self) -> None:
        os.close(self._told)
        everybody = self.all
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        processes.still_alive_after(everybody, SECONDS)


@pytest.fixture
def tree() -> Iterator[Tree]:
    grown = Tree()
    yield grown
    grown.close()


@pytest.fixture
def part() -> Iterator[Path]:
    with share(os.geteuid()) as lent:
        yield lent


@pytest.mark.parametrize("frozen", [False, True])
def test_all_that_a_run_starts_is_in_its_cgroup_and_goes_with_it_frozen_or_not(
    part: Path, tree: Tree, frozen: bool
) -> None:
    own = mechanisms.Cage(having(part), Quota(pids=100))
    (entrance,) = own.members
    folder = Path(entrance).parent
    assert Path(entrance).name == "cgroup.procs"
    assert (folder / ANY_LIMIT).read_text() == "100\n"
    assert not own.holds(tree.pid)
    own.admit(tree.pid)
    tree.grow()
    assert all(own.holds(pid) for pid in tree.all)
    assert own.overruns() == Overruns()
    if frozen:
        (folder / "cgroup.freeze").write_text("1")
    everybody = tree.all
    (folder / "cgroup.kill").write_text("1")
    os.waitpid(tree.pid, 0)
    assert processes.still_alive_after(everybody, SECONDS) == frozenset()
    own.close()
    assert folders(part) == ["daemon"]


def test_a_cgroup_that_still_holds_somebody_goes_with_a_later_run(part: Path, tree: Tree) -> None:
    first = mechanisms.Cage(having(part), Quota(pids=100))
    first.admit(tree.pid)
    first.close()
    (held,) = set(folders(part)) - {"daemon"}
    os.kill(tree.pid, signal.SIGKILL)
    os.waitpid(tree.pid, 0)
    second = mechanisms.Cage(having(part), Quota(pids=100))
    assert held in folders(part)
    second.close()
    assert folders(part) == ["daemon"]


def test_a_sweep_finds_in_v2_what_a_killed_daemon_left_and_leaves_what_lives(part: Path) -> None:
    for folder in (part, part / "daemon"):
        (folder / "codespace-run-1-999999999999-0").mkdir()
    living = mechanisms.Cage(having(part), Quota(pids=100))
    try:
        assert mechanisms.sweep() >= 2
        assert len(folders(part)) == 2
        assert folders(part / "daemon") == []
        assert Path(living.members[0]).exists()
    finally:
        living.close()


def test_v2_refuses_processes_over_the_limit_and_counts_them(part: Path) -> None:
    if "pids" not in (part.parent / "cgroup.controllers").read_text().split():
        pytest.skip(
            "v2 has no controller for processes on this machine: it is bound to v1, for as long as that is used"
        )
    try:
        for folder in (part.parent, part):
            (folder / "cgroup.subtree_control").write_text("+pids")
    except OSError as error:
        pytest.skip(f"the cgroup that the suite runs in hands no controller down here: {error.strerror}")
    found = mechanisms.look()
    assert found.pids == Controller(str(part), "pids.max")
    own = mechanisms.Cage(found, Quota(pids=10))
    script = 'echo 0 >"$1"; for i in $(seq 30); do sleep 987657 & done; kill $(jobs -p)'
    done = subprocess.run(["/bin/sh", "-c", script, "sh", own.members[0]], env=ENV, capture_output=True, check=False)
    assert b"fork" in done.stderr
    assert own.overruns().refused > 0
    own.close()
