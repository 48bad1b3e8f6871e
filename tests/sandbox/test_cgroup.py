"""A run's cgroup: entered before bubblewrap is bubblewrap, looked at before a sandbox is released, gone behind it.

With what this machine offers by itself, and in cgroups v2 as a user's manager hands a part of it to an account. Where
v2 has no controllers here, a limit that every v2 cgroup has stands for theirs: making, limiting, entering, looking and
removing are the same; what the controllers themselves do is tried where v2 has them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from codespace.contract import WorkspaceLimits
from codespace.sandbox import foreground, hierarchy, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.limits import Controller, Mechanisms, Overruns
from codespace.sandbox.plan import Quota
from codespace.testing import processes

from .cage import Cage

SECONDS = 20.0
ENV = {"PATH": "/usr/bin:/bin"}
MIB = 1_048_576


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
    pid = foreground.start(start, launch.env, {0: null, 1: null, 2: null, **launch.inherited})
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
        foreground.end(pid)
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
ANY_OTHER_LIMIT = "cgroup.max.depth"
# Numbers that every cgroup of v2 takes, whatever controllers there are.


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
        own = [folder for folder in told if folder.startswith(str(part))]  # it may be mounted at other places too
        assert own == [str(part / "daemon"), str(part)]
        assert cage.does(lambda: mechanisms._works(Controller(str(part), ANY_LIMIT))) is True
        assert cage.does(lambda: mechanisms._works(Controller(str(part), "no.such.controller.max"))) is False
        above = cage.does(lambda: mechanisms._works(Controller(str(part.parent), ANY_LIMIT)))
        assert above is (cage.uid == os.geteuid())
        assert folders(part) == ["daemon"], "what was tried is gone"


class Tree:
    """A process that, once told to, has a child and one more in a session of its own."""

    def __init__(self) -> None:
        reading, self._told = os.pipe()
        script = "read line; setsid sleep 987658 & sleep 987658; true"
        self.pid = foreground.start(["/bin/sh", "-c", script], ENV, {0: reading, 1: 2, 2: 2})
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


def test_limits_of_one_hierarchy_are_in_one_cgroup_for_a_process_is_in_no_two(part: Path, tree: Tree) -> None:
    two = Mechanisms(Controller(str(part), ANY_LIMIT), Controller(str(part), ANY_OTHER_LIMIT), pid_max=False)
    own = mechanisms.Cage(two, Quota(pids=100, memory_bytes=50))
    (entrance,) = own.members
    folder = Path(entrance).parent
    assert [(folder / name).read_text() for name in (ANY_LIMIT, ANY_OTHER_LIMIT)] == ["100\n", "50\n"]
    own.admit(tree.pid)
    assert own.holds(tree.pid)
    os.kill(tree.pid, signal.SIGKILL)
    os.waitpid(tree.pid, 0)
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


# --- v2 that has controllers ---


@contextmanager
def controlled(part: Path) -> Iterator[None]:
    """Hand the controllers of v2 down to `part` and to what is made in it; skip where v2 has none to hand down."""
    wanted = {"pids", "memory"}
    if not wanted <= set((part.parent / "cgroup.controllers").read_text().split()):
        pytest.skip("v2 has no such controllers on this machine: they are bound to v1, for as long as that is used")
    with ExitStack() as undo:
        for folder in (part.parent, part):
            control = folder / "cgroup.subtree_control"
            new = wanted - set(control.read_text().split())
            try:
                control.write_text(" ".join(f"+{name}" for name in new))
            except OSError as error:
                pytest.skip(f"the cgroup that the suite runs in hands no controller down here: {error.strerror}")
            # A cgroup that hands some down takes no process, and the suite has to go back to where it was.
            undo.callback(control.write_text, " ".join(f"-{name}" for name in new))
        yield


def in_cgroup(own: mechanisms.Cage, script: str) -> str:
    """Run a shell script of which every process is in a run's cgroup, and return what it complained of."""
    enter = "".join(f'echo 0 >"{path}"; ' for path in own.members)
    with tempfile.TemporaryFile() as complaint:  # what the script leaves running holds it open
        subprocess.run(["/bin/sh", "-c", enter + script], env=ENV, stderr=complaint, timeout=SECONDS, check=False)
        complaint.seek(0)
        return complaint.read().decode()


def end_all(own: mechanisms.Cage) -> None:
    """Kill what is left in a run's cgroup, and remove it."""
    folder = Path(own.members[0]).parent
    everybody = frozenset(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
    (folder / "cgroup.kill").write_text("1")
    assert processes.still_alive_after(everybody, SECONDS) == frozenset()
    own.close()


def test_v2_refuses_processes_over_the_limit_and_counts_them(part: Path) -> None:
    with controlled(part):
        found = mechanisms.look()
        assert found.pids == Controller(str(part), "pids.max")
        own = mechanisms.Cage(found, Quota(pids=10))
        assert "fork" in in_cgroup(own, "for i in $(seq 30); do sleep 987657 & done")
        assert own.overruns().refused > 0
        assert own.overruns().killed == 0
        end_all(own)


def test_v2_kills_what_takes_more_memory_than_the_limit_and_counts_it(part: Path) -> None:
    with controlled(part):
        found = mechanisms.look()
        assert found.memory == Controller(str(part), "memory.max")
        own = mechanisms.Cage(found, Quota(pids=None, memory_bytes=64 * MIB))
        folder = Path(own.members[0]).parent
        swap = folder / "memory.swap.max"
        assert not swap.exists() or swap.read_text() == "0\n"
        greedy = f"/usr/bin/perl -e 'my $x = q(x) x ({{}} * {MIB})'"
        assert in_cgroup(own, greedy.format(16)) == ""
        assert own.overruns() == Overruns()
        in_cgroup(own, greedy.format(200))
        assert own.overruns().killed > 0
        end_all(own)


def test_a_run_in_a_share_of_v2_gets_no_more_processes_or_memory_than_its_limits(cage: Cage) -> None:
    limited = cage.having(limits=WorkspaceLimits(pids=60, memory_bytes=64 * MIB))
    bomb = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++; last if $n > 300 } print $n"
    each = f"my $x = q(x) x (25 * {MIB}); print 1; sleep 600"
    tree = f"for (1..4) {{ if (!fork) {{ {each} }} }} wait; print 'one ended'; kill 9, -1"
    with share(cage.uid) as part, controlled(part):
        carried = cage.does(lambda: mechanisms.look().carried(Quota(pids=60, memory_bytes=64 * MIB)))
        assert (carried.pids, carried.memory) == ("cgroup", "cgroup")
        assert 40 < int(limited.perl(bomb).out) < 60
        assert cage.perl(bomb).out == "301"
        assert limited.perl(f"my $x = q(x) x (16 * {MIB}); print 'modest'").out == "modest"
        assert "one ended" in limited.perl(tree).out, "together they are over the limit, each alone is not"
        assert folders(part) == ["daemon"]
