"""The monitor program itself, driven over its sockets: whatever a tree does, none of it is left."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from codespace.testing import processes
from helper.monitor import __main__ as program
from helper.monitor import tree as family
from helper.monitor.tree import parent_of

CHECKOUT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0
# Nothing here takes a second, except on a slow machine; a hang must fail and not stall the run.
READY = "import os; os.write(1, b'ready\\n')"
# Said by the last process of a tree: then the whole tree is there.

TREES = {
    "a lone process": f"{READY}; import time; time.sleep(600)",
    "one that ignores SIGTERM": f"import signal, time; signal.signal(15, 1); {READY}; time.sleep(600)",
    "a double fork": f"""
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        {READY}
        time.sleep(600)
    os._exit(0)
time.sleep(600)""",
    "a daemon with its own session": f"""
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {READY}
        time.sleep(600)
    os._exit(0)
time.sleep(600)""",
    "a stopped child": f"""
import os, signal, time
child = os.fork()
if child == 0:
    time.sleep(600)
os.kill(child, signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
{READY}
time.sleep(600)""",
    "one that stops its monitor": f"""
import os, signal, time
os.kill(os.getppid(), signal.SIGSTOP)
{READY}
time.sleep(600)""",
    "a parent that replaces its children": f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        time.sleep(600)
{READY}
while True:
    os.wait()
    if os.fork() == 0:
        time.sleep(600)""",
    "a bomb of 256 that all ignore SIGTERM": f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reading, writing = os.pipe()
for _ in range(8):
    os.fork()
os.write(writing, b'.')
if os.getpgrp() == os.getpid():
    for _ in range(256):
        os.read(reading, 1)
    {READY}
time.sleep(600)""",
    "a chain that forks and ends for ever": f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    time.sleep(600)
{READY}
while True:
    if os.fork():
        os._exit(0)""",
    "a chain that changes session each time": f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    time.sleep(600)
{READY}
while True:
    if os.fork():
        os._exit(0)
    os.setsid()""",
}


class Line:
    """The test's end of one monitor."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        control.settimeout(DEADLINE_SECONDS)
        self._lines = control.makefile("rb")

    def event(self) -> dict[str, Any] | None:
        line = self._lines.readline()
        return json.loads(line) if line else None

    def expect(self, name: str) -> dict[str, Any]:
        event = self.event()
        assert event is not None, f"the monitor ended before it said {name}"
        assert event["event"] == name, event
        return event

    def terminate(self, grace: float) -> None:
        self.control.sendall(json.dumps({"verb": "terminate", "grace": grace}).encode() + b"\n")

    def cover(self) -> None:
        self.control.sendall(b'{"verb": "cover"}\n')

    def close(self) -> None:
        self._lines.close()
        self.control.close()


class Keeper:
    """A real keeper and what was asked of it."""

    def __init__(self, closed: str = "") -> None:
        """Args: closed: In a shell's words, which of its descriptors it gets closed."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f'exec "$@" {closed}', "keeper", sys.executable, "-I", "-S", program.__file__],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self.lines: list[Line] = []

    def monitor(self) -> Line:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"monitor"], [theirs.fileno()])
        self.lines.append(Line(ours))
        return self.lines[-1]

    def ask(
        self,
        *argv: str,
        folder: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        covers: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[Line, int]:
        """Ask for a command; returns its line and the reading end of its output."""
        line = self.monitor()
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        directory = os.open(folder, os.O_PATH)
        order = {"program": argv[0], "argv": argv, "env": dict(env or {}), "umask": 0o027}
        order |= {"terminal": "none", "cgroups": [], "rlimits": [], "covers": covers}
        try:
            data = json.dumps(order).encode() + b"\n"
            sent = socket.send_fds(line.control, [data], [null, writing, writing, directory])
            if sent < len(data):  # a command may have ended by now: nobody would take even nothing
                line.control.sendall(data[sent:])
        finally:
            for descriptor in (null, writing, directory):
                os.close(descriptor)
        line.expect("ready")
        return line, reading

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.control.close()
        assert self.process.wait(DEADLINE_SECONDS) in (0, -signal.SIGKILL)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    try:
        yield keeper
    finally:
        keeper.close()


@contextmanager
def grown(keeper: Keeper, tree: str) -> Iterator[tuple[Line, frozenset[int]]]:
    """A whole tree: its line, and the pids of keeper, monitor and everything below."""
    line, output = keeper.ask(sys.executable, "-I", "-S", "-c", tree)
    try:
        line.expect("started")
        assert os.read(output, 64) == b"ready\n"
        yield line, processes.descendants(keeper.process.pid)
    finally:
        os.close(output)


def read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize("name", TREES)
def test_terminate_leaves_nothing_of(keeper: Keeper, name: str) -> None:
    with grown(keeper, TREES[name]) as (line, pids):
        line.terminate(0.05)
        names = []
        while event := line.event():
            names.append(event["event"])
    assert names == ["exited", "gone"]
    assert not processes.still_alive_after(pids, DEADLINE_SECONDS)


@pytest.mark.parametrize("name", TREES)
def test_a_cut_lifeline_leaves_nothing_of(keeper: Keeper, name: str) -> None:
    with grown(keeper, TREES[name]) as (line, pids):
        line.close()
        assert not processes.still_alive_after(pids, DEADLINE_SECONDS)


@pytest.mark.parametrize("name", TREES)
def test_a_killed_monitor_leaves_nothing_of(keeper: Keeper, name: str) -> None:
    with grown(keeper, TREES[name]) as (line, pids):
        (owner,) = processes.children(keeper.process.pid)
        os.kill(owner, signal.SIGKILL)
        assert line.event() is None
        assert not processes.still_alive_after(pids, DEADLINE_SECONDS)
    line, output = keeper.ask("/bin/true")
    os.close(output)
    line.expect("started")


def test_the_end_of_the_main_command_ends_what_it_left_in_the_background(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/sh", "-c", "setsid sleep 600 & echo $!; exit 3")
    line.expect("started")
    left = int(read_all(output))
    assert line.expect("exited")["code"] == 3
    line.expect("gone")
    assert not processes.is_alive(left)
    assert line.event() is None


def test_a_polite_tree_ends_within_its_grace_and_in_its_own_way(keeper: Keeper) -> None:
    polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); " + READY + "; time.sleep(600)"
    with grown(keeper, polite) as (line, _):
        line.terminate(DEADLINE_SECONDS)
        assert line.expect("exited")["code"] == 7
        line.expect("gone")


def test_an_exit_before_the_request_to_end_is_told_as_its_own(keeper: Keeper) -> None:
    with grown(keeper, TREES["a lone process"]) as (line, _):
        (owner,) = processes.children(keeper.process.pid)
        os.kill(keeper.process.pid, signal.SIGSTOP)  # it would wake the monitor
        os.kill(owner, signal.SIGSTOP)
        (command,) = processes.children(owner)
        os.kill(command, signal.SIGKILL)
        assert not processes.still_alive_after([command], DEADLINE_SECONDS)
        line.terminate(0.0)
        os.kill(owner, signal.SIGCONT)
        assert line.expect("exited")["asked"] is False
        os.kill(keeper.process.pid, signal.SIGCONT)
    with grown(keeper, TREES["a lone process"]) as (line, _):
        line.terminate(DEADLINE_SECONDS)
        assert line.expect("exited")["asked"] is True


def test_a_child_may_use_the_grace_when_the_main_command_ended_first(keeper: Keeper) -> None:
    tree = """
import os, signal, sys, time
go, say = os.pipe()
def leave(*_):
    os.read(go, 1)  # until the parent is gone
    os.write(1, b'tidied\\n')
    os._exit(0)
if os.fork() == 0:
    os.close(say)
    signal.signal(15, leave)
    os.write(1, b'ready\\n')
    while True:
        time.sleep(600)
time.sleep(600)
"""
    line, output = keeper.ask(sys.executable, "-I", "-S", "-c", tree)
    line.expect("started")
    assert os.read(output, 64) == b"ready\n"
    line.terminate(DEADLINE_SECONDS)
    assert line.expect("exited")["code"] == -signal.SIGTERM
    line.expect("gone")
    assert read_all(output) == b"tidied\n"


def test_a_stopped_tree_hears_a_polite_end(keeper: Keeper) -> None:
    with grown(keeper, TREES["a stopped child"]) as (line, _):
        line.terminate(DEADLINE_SECONDS)  # without SIGCONT this would last as long as the grace
        assert line.expect("exited")["code"] == -signal.SIGTERM
        line.expect("gone")


def test_a_later_terminate_may_shorten_the_grace_but_not_lengthen_it(keeper: Keeper) -> None:
    with grown(keeper, TREES["one that ignores SIGTERM"]) as (line, _):
        line.terminate(600.0)
        line.terminate(0.0)
        with contextlib.suppress(BrokenPipeError):  # it may be gone by now, which is what was asked
            line.terminate(600.0)
        assert line.expect("exited")["code"] == -signal.SIGKILL


def test_the_command_gets_default_signals_three_descriptors_and_the_asked_umask(keeper: Keeper) -> None:
    probe = """
import os
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
open_ones = []
for number in range(4096):
    try:
        os.fstat(number)
    except OSError:
        continue
    open_ones.append(number)
print(int(status['SigBlk'], 16), open_ones, status['Umask'].strip(), os.getcwd())
print(os.getsid(0) == os.getpid(), sorted(os.environ))
"""
    line, output = keeper.ask(
        sys.executable, "-I", "-S", "-c", probe, folder=Path("/usr"), env={"ONLY": "this", "LC_ALL": "C.UTF-8"}
    )
    line.expect("started")
    assert read_all(output).decode().splitlines() == ["0 [0, 1, 2] 0027 /usr", "True ['LC_ALL', 'ONLY']"]
    line, output = keeper.ask("/bin/cat", "/proc/self/status")
    line.expect("started")
    (ignored,) = [line for line in read_all(output).decode().splitlines() if line.startswith("SigIgn:")]
    assert int(ignored.split()[1], 16) & ~OF_THE_LIBRARY == 0


def test_few_descriptors_are_enough_to_start_a_command(keeper: Keeper) -> None:
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, (32, 32))
    line, output = keeper.ask("/bin/echo", "here")
    line.expect("started")
    assert read_all(output) == b"here\n"


@pytest.mark.parametrize("few", range(8, 16))
def test_a_rehearsal_that_has_too_few_descriptors_ends_no_monitor(keeper: Keeper, few: int) -> None:
    line, output = keeper.ask("/bin/true")  # so it is up
    line.close()
    os.close(output)
    assert not processes.still_alive_after(processes.descendants(keeper.process.pid), DEADLINE_SECONDS)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while processes.children(keeper.process.pid):
        assert time.monotonic() < deadline
    resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE, (few, few))
    _, _, fork = waiting(keeper)
    while (state := processes.state(fork)) in ("R", "D"):  # a page of it may come from the disk
        assert time.monotonic() < deadline
    assert state == "S"


@pytest.mark.parametrize("closed", ["2>&-", "1>&- 2>&-"])
def test_a_keeper_whose_descriptors_came_closed_starts_commands_as_any_other(closed: str) -> None:
    keeper = Keeper(closed)
    line, output = keeper.ask("/bin/sh", "-c", "echo out; echo err >&2")
    line.expect("started")
    assert sorted(read_all(output).split()) == [b"err", b"out"]
    keeper.close()


def test_bytes_that_are_not_utf8_arrive_as_they_were(keeper: Keeper) -> None:
    line, output = keeper.ask("/usr/bin/printf", "%s", os.fsdecode(b"\xff\n\x80 'x'"))
    line.expect("started")
    assert read_all(output) == b"\xff\n\x80 'x'"


@pytest.mark.parametrize(
    ("argv", "number"),
    [(("/nonesuch",), errno.ENOENT), (("/etc",), errno.EACCES), (("/bin/true", "x" * 300_000), errno.E2BIG)],
)
def test_a_failed_start_tells_its_errno_and_ends(keeper: Keeper, argv: tuple[str, ...], number: int) -> None:
    line, output = keeper.ask(*argv)
    assert line.expect("failed") == {"event": "failed", "stage": "program", "errno": number}
    assert line.event() is None
    assert read_all(output) == b""


def test_a_directory_that_is_none_is_told_apart_from_the_program(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/true", folder=Path("/etc/passwd"))
    assert line.expect("failed") == {"event": "failed", "stage": "directory", "errno": errno.ENOTDIR}
    os.close(output)


OF_THE_LIBRARY = 0x1_8000_0000
"""Signals 32 and 33, which no program can have and Python cannot set; glibc uses them for itself."""
NOTHING_COVERED = dict.fromkeys(("directories", "files", "read_only", "masked_directories", "masked_files"), ())


def test_covers_for_a_program_that_is_no_sandbox_are_refused_and_it_goes_on(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/sh", "-c", "echo up; exec sleep 600", covers=NOTHING_COVERED)
    line.expect("started")
    line.cover()
    assert line.expect("covered") == {"event": "covered", "errno": errno.ESRCH, "masking": False}
    line.terminate(0)
    assert line.expect("exited")["asked"]
    line.expect("gone")
    assert read_all(output) == b"up\n"


def test_a_word_to_cover_that_comes_again_or_too_late_is_nothing(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/sh", "-c", "read line; sleep 600", covers=NOTHING_COVERED)
    line.expect("started")
    for _ in range(3):
        line.cover()
    assert line.expect("covered")["errno"] == errno.ESRCH
    line.cover()
    line.terminate(0)
    line.expect("exited")
    line.expect("gone")
    assert read_all(output) == b""


def test_who_waits_to_lay_covers_ends_with_a_command_that_ended_before(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/true", covers=NOTHING_COVERED)
    for name in ("started", "exited"):
        line.expect(name)
    assert line.expect("gone")["usage"]["cpu_seconds"] < 5  # it was ended with the tree, of which nobody is told
    assert read_all(output) == b""


def test_who_was_to_lay_covers_and_was_killed_is_told_of(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/sleep", "600", covers=NOTHING_COVERED)
    command = line.expect("started")["pid"]
    owner = parent_of(command)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (forks := [pid for pid in processes.children(owner) if pid != command]):
        assert time.monotonic() < deadline
    os.kill(forks[0], signal.SIGKILL)
    assert line.expect("covered") == {"event": "covered", "errno": errno.EIO, "masking": False}
    line.close()
    assert not processes.still_alive_after([owner, command], DEADLINE_SECONDS)
    read_all(output)


def test_use_of_the_whole_tree_is_added_up(keeper: Keeper) -> None:
    line, output = keeper.ask("/bin/sh", "-c", "head -c 60000000 /dev/zero | sha256sum")
    line.expect("started")
    read_all(output)
    usage = line.expect("exited")["usage"]
    assert usage["cpu_seconds"] > 0.01
    assert usage["memory_bytes"] > 500_000


def test_orphans_are_reaped_while_the_command_still_runs(keeper: Keeper) -> None:
    tree = f"""
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
owner = os.getppid()
while open(f'/proc/{{owner}}/task/{{owner}}/children').read().split() != [str(os.getpid())]:
    os.sched_yield()  # zombies are children too
{READY}
time.sleep(600)
"""
    with grown(keeper, tree) as (line, _):
        line.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_for_the_daemon_s_group_does_not_end_the_owners_of_trees(keeper: Keeper, number: int) -> None:
    with grown(keeper, TREES["a lone process"]) as (line, _):
        (owner,) = processes.children(keeper.process.pid)
        for pid in (keeper.process.pid, owner):
            os.kill(pid, number)
        line.terminate(DEADLINE_SECONDS)
        line.expect("exited")
        line.expect("gone")


def test_the_end_of_the_daemon_ends_every_tree_and_the_keeper() -> None:
    keeper = Keeper()
    with grown(keeper, TREES["one that ignores SIGTERM"]), grown(keeper, TREES["a double fork"]) as (_, pids):
        keeper.close()
        assert not processes.still_alive_after(pids, DEADLINE_SECONDS)


def test_a_closed_line_without_a_request_ends_its_monitor(keeper: Keeper) -> None:
    keeper.monitor().close()
    line, output = keeper.ask("/bin/true")
    line.expect("started")
    line.expect("exited")
    line.expect("gone")
    assert read_all(output) == b""


def waiting(keeper: Keeper) -> tuple[Line, int, int]:
    """A monitor that nobody has asked: its line, its pid, and the fork of it that would become the command."""
    line = keeper.monitor()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for owner in processes.children(keeper.process.pid):
            for fork in processes.children(owner):
                return line, owner, fork
    raise AssertionError("no monitor has forked")


@pytest.mark.parametrize("victim", ["monitor", "fork"])
def test_a_monitor_that_is_killed_before_it_is_asked_says_nothing_and_leaves_nothing(
    keeper: Keeper, victim: str
) -> None:
    line, owner, fork = waiting(keeper)
    os.kill(owner if victim == "monitor" else fork, signal.SIGKILL)
    assert line.event() is None
    assert not processes.still_alive_after([owner, fork], DEADLINE_SECONDS)


def test_a_spare_monitor_ends_with_its_line(keeper: Keeper) -> None:
    line, owner, fork = waiting(keeper)
    line.close()
    assert not processes.still_alive_after([owner, fork], DEADLINE_SECONDS)


def test_the_slow_way_to_list_children_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a process of its own: this one may have other children, which come and go."""
    script = "sleep 600 & echo $!; sh -c 'sleep 600 & echo $!; echo $$; wait' & wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as tree:
        assert tree.stdout is not None
        below = {int(tree.stdout.readline()) for _ in range(3)}
        for listed in (family.LISTS_CHILDREN, False):
            monkeypatch.setattr(family, "LISTS_CHILDREN", listed)
            assert set(family.descendants([tree.pid])) == {tree.pid, *below}
            assert tree.pid in family.children(os.getpid())
        os.killpg(tree.pid, signal.SIGKILL)


UNSEEN = """
import os, sys
from helper.monitor import tree
root = os.getpid()
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    tree.LISTS_CHILDREN = sys.argv[1] == "listed"
    seen = [pid for pid in tree.descendants([root]) if pid != os.getpid()]
    print(seen, tree.parent_of(root), flush=True)
    os._exit(0)
os.wait()
"""
"""Says what an ordinary account sees of a process of root's, as of a setuid program in its own tree."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts /proc so that it hides the processes of others")
@pytest.mark.parametrize("way", ["listed", "looked through"])
def test_a_process_that_may_not_be_looked_at_ends_nobody(way: str) -> None:
    hidden = 'mount -t proc -o hidepid=1 proc /proc && exec "$0" -c "$1" "$2"'
    argv = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", hidden, sys.executable, UNSEEN, way]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS, cwd=CHECKOUT)
    assert (done.stdout, done.stderr) == ("[1] 0\n", "")
