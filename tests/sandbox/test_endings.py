"""Attacks on the end of a run and on its limits (SANDBOX 5: 28, 29, 31, 32), and what is left afterwards: nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from codespace.contract import WorkspaceLimits
from codespace.sandbox import foreground, orphans, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.plan import HOME, Quota
from codespace.testing import processes

from .cage import PATH, PLAYED, Cage, become, fork
from .until import PATIENCE_SECONDS

MOMENTS = (0, 1, 2, 4, 8, 16, 32)
TIMES = int(os.environ.get("ATTACK_TIMES", "7"))
"""Of each moment; `ATTACK_TIMES=50 pytest tests/sandbox` gives 350 runs."""
ENV = {"PATH": PATH, "HOME": HOME}


def marked(mark: str) -> list[int]:
    """Return the processes below this one that have `mark` in their command line, zombies left out.

    A process that starts another one and ends while they are looked at is neither seen itself nor is its
    child, which was not there yet; so it is looked again until no process is new.
    """
    known: set[str] = set()
    while new := {name for name in os.listdir("/proc") if name.isdecimal()} - known:
        known |= new
        found = [int(n) for n in known if mark in processes.command_line(int(n)) and processes.is_alive(int(n))]
    return [pid for pid in found if pid != os.getpid() and is_ours(pid)]


def is_ours(pid: int) -> bool:
    """Return whether a process is below this one, which is handed all orphans: another run has the same marks."""
    while processes.is_alive(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # one above it ended meanwhile: it has another parent now
            above = pid
            while above > 1 and above != os.getpid():
                above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
            return above == os.getpid()
    return False


def gone(mark: str) -> bool:
    return not processes.still_alive_after(marked(mark), PATIENCE_SECONDS)


def cgroups() -> set[str]:
    """Return the folders of runs that this process started, itself or by one that it forked; others' are theirs."""
    found = mechanisms.look()
    folders = {controller.folder for controller in (found.pids, found.memory) if controller is not None}
    return {name for folder in folders for name in os.listdir(folder) if name.startswith(tuple(PLAYED))}


def left_cgroups() -> set[str]:
    """Return what is left of our runs for good.

    What the kernel had not done with when a run ended goes with a later one of the same daemon, or with the next
    daemon's start.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := cgroups()) and time.monotonic() < deadline:
        mechanisms.Cage(mechanisms.look(), Quota(pids=10, memory_bytes=1_048_576)).close()
        mechanisms.sweep()
    return left


def test_a_daemon_of_two_forks_ends_with_its_command(cage: Cage) -> None:
    script = "use POSIX; if (!fork) { setsid; if (!fork) { exec 'sleep', '987650' } exit } wait; print 'left'"
    assert cage.perl(script).out == "left"
    assert marked("987650") == []


def test_a_command_over_its_time_is_ended_with_all_that_it_started(cage: Cage) -> None:
    result = cage.sh("trap '' TERM INT HUP; for i in 1 2 3; do setsid sleep 987651 & done; wait", seconds=0.3)
    assert result.cut
    assert marked("987651") == []
    assert left_cgroups() == set()


def test_a_run_that_is_given_up_at_any_moment_leaves_no_process_cgroup_mount_or_file(cage: Cage) -> None:
    before = sorted(map(str, cage.base.rglob("*")))

    def give_up() -> None:
        for moment in MOMENTS:
            for _ in range(TIMES):
                launch = cage.prepare(["sleep", "987652"], env=ENV).launch()
                null = os.open(os.devnull, os.O_RDWR)
                pid = foreground.start(launch.argv, launch.env, {0: null, 1: null, 2: null, **launch.inherited})
                launch.let_go()
                os.close(null)
                select.select([], [], [], moment / 1000)
                foreground.end(pid)
                os.waitpid(pid, 0)
                launch.close()

    cage.does(give_up)
    assert gone("987652")
    assert left_cgroups() == set()
    assert sorted(map(str, cage.base.rglob("*"))) == before
    assert str(cage.base) not in Path("/proc/self/mountinfo").read_text()


def test_a_run_that_is_ended_at_any_moment_after_its_release_leaves_nothing(cage: Cage) -> None:
    def cut() -> list[bool]:
        prepared = cage.prepare(["/bin/sh", "-c", "sleep 987653 & setsid sleep 987653"], env=ENV)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return [
                foreground.run(
                    prepared.equipment, prepared.plan, stdin=null, stdout=null, stderr=null, seconds=moment / 1000
                ).cut
                for moment in MOMENTS
            ]
        finally:
            os.close(null)

    assert cage.does(cut) == [True] * len(MOMENTS)
    assert gone("987653")
    assert left_cgroups() == set()


def living(before: frozenset[int]) -> list[int]:
    """Return what lives below this process and did not before; by descent, since what is about to be bubblewrap has
    another's command line yet. Looked at twice: what is adopted during a look may be in neither place."""
    for _ in range(2):
        found = [pid for pid in processes.descendants(os.getpid()) - before if processes.is_alive(pid)]
        if found:
            return found
    return []


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_starter_that_is_killed_releases_nothing_it_had_not_released(cage: Cage, moment: int) -> None:
    prepared = cage.does(lambda: cage.prepare(["/bin/sh", "-c", "echo ran >>ran; exec sleep 987654"], env=ENV))
    before = processes.descendants(os.getpid())
    child = fork()
    if child == 0:
        if cage.uid != os.geteuid():
            become(cage.uid)
        null = os.open(os.devnull, os.O_RDWR)
        launch = prepared.launch()
        foreground.start(launch.argv, launch.env, {0: null, 1: null, 2: null, **launch.inherited})
        launch.let_go()
        select.select([], [], [], 60)
        os._exit(0)
    select.select([], [], [], moment / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    processes.still_alive_after(living(before), 0.2)  # most end by themselves: the kernel tells them
    deadline = time.monotonic() + PATIENCE_SECONDS
    while living(before) and time.monotonic() < deadline:  # one that is still being made is no orphan yet
        cage.does(orphans.sweep)
        processes.still_alive_after(living(before), 0.2)
    assert living(before) == []
    assert not (cage.root / "ran").exists()
    assert left_cgroups() == set()


def test_a_fork_bomb_is_stopped_at_its_limit_and_the_host_is_left_alone(cage: Cage) -> None:
    bomb = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++; last if $n > 2000 } print $n"
    limited = cage.having(limits=WorkspaceLimits(pids=400))
    result = limited.perl(bomb)
    carried = cage.does(lambda: mechanisms.look().carried(Quota(pids=400)))
    assert carried.pids in ("cgroup", "pid_max", "nproc"), "this kernel and account have nothing that carries the limit"
    assert 300 < int(result.out) < 400
    assert int(Path("/proc/sys/kernel/pid_max").read_text()) > 2000


def test_memory_over_the_limit_is_not_to_be_had(cage: Cage) -> None:
    limited = cage.having(limits=WorkspaceLimits(memory_bytes=100 * 1_048_576))
    greedy = "my $x = 'x' x (300 * 1048576); print length $x"
    assert cage.perl(greedy).out == str(300 * 1_048_576)
    assert limited.perl(greedy).out == ""
    assert limited.perl("print 'modest'").out == "modest"


def test_processor_time_open_files_and_tmp_are_limited(cage: Cage) -> None:
    limited = cage.having(limits=WorkspaceLimits(cpu_seconds=1, open_files=32, tmp_bytes=1_048_576))
    ended = limited.sh("while :; do :; done")
    assert ended.code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
    assert not ended.cut, "the kernel ended it, not the time limit of the run"
    opens = "my @f; for (1..100) { open my $f, '<', '/dev/null' or last; push @f, $f } print scalar @f"
    assert int(limited.perl(opens).out) < 32
    assert cage.perl(opens).out == "100"
    for folder in ("/tmp", "/dev/shm", "$HOME"):
        assert limited.sh(f"head -c 2000000 /dev/zero >{folder}/x; wc -c <{folder}/x").out.strip() == str(1_048_576)


def test_no_core_file_is_left_by_a_crash(cage: Cage) -> None:
    said = cage.sh("grep core /proc/self/limits; kill -SEGV $$").out
    assert said.split() == ["Max", "core", "file", "size", "1", "1", "bytes"], "where cores go to a program, 0 is none"
    assert list(cage.root.iterdir()) == []


def test_exit_codes_come_through(cage: Cage) -> None:
    assert cage.sh("exit 0").code == 0
    assert cage.sh("exit 7").code == 7
    assert cage.sh("kill -TERM $$").code == 128 + signal.SIGTERM
    assert cage.run(["/no/such/program"]).code == 127


def test_a_program_that_is_not_inside_is_known_before_the_gate_opens(cage: Cage) -> None:
    tool = cage.base / "home" / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    cage.put("own", "#!/bin/sh\necho own\n", mode=0o755)
    os.symlink("/usr/bin/env", cage.root / "linked")
    os.symlink("loop", cage.root / "loop")
    programs = [str(tool), "env", "/bin/sh", "./own", "./linked", "./loop", "nothing"]
    seen = cage.base / "seen"

    def note(launch: spawn.Launch) -> None:
        seen.write_text(str(launch.missing_program()))

    missing = []
    for program in programs:
        cage.run([program], observe=note)
        if seen.read_text() == "True":
            missing.append(program)
        seen.unlink()
    assert missing == [str(tool), "./loop", "nothing"]


def test_a_sweep_removes_what_a_killed_daemon_left_and_nothing_that_lives() -> None:
    found = mechanisms.look()
    controller = found.pids or found.memory
    if controller is None:
        pytest.skip("this account can make no cgroup here, so none can be left")
    dead = Path(controller.folder, f"codespace-run-{os.getpid()}-1-0")  # of the same pid, started at another time
    dead.mkdir()
    living = mechanisms.Cage(found, Quota(pids=10, memory_bytes=1_048_576))
    try:
        mechanisms.sweep()  # how many it removed is not asked: any daemon that starts here sweeps too
        assert not dead.exists()
        assert cgroups() != set()
    finally:
        living.close()
        with suppress(FileNotFoundError):
            dead.rmdir()
    assert left_cgroups() == set()
