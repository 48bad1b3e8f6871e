"""Covers over /etc and /proc: laid by hand they hold what bubblewrap's hold, and one that is missing is seen."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from codespace.sandbox import foreground, pidinfo, spawn, system
from codespace.sandbox.covers import Covers, covers, may_come_last
from codespace.sandbox.plan import HOME, Plan
from codespace.sandbox.system import Etc
from helper.monitor.covers import Coverer
from helper.monitor.line import Line

from .cage import CALLS, PATH, SECONDS, Cage, accounts, bubblewraps, caged

CHECKOUT = Path(__file__).parents[2]
LOOK = """
for path; do
    can_list=- can_enter=-
    [ -d "$path" ] && { ls "$path" >/dev/null 2>&1; can_list=$?; (cd "$path") 2>/dev/null; can_enter=$?; }
    head -c 1 "$path" >/dev/null 2>&1; can_read=$?
    (: >"$path/made") 2>/dev/null; can_make=$?
    (: >>"$path") 2>/dev/null; can_write=$?
    echo "$path $can_list $can_enter $can_read $can_make $can_write" \\
        $(awk -v place="$path" '$5 == place {found = $6} END {print found}' /proc/self/mountinfo)
done
"""
"""Says of each place what can be done with it, and how what is on it is mounted."""


@pytest.fixture(params=[(uid, number) for uid in accounts() for number in range(len(bubblewraps()))], ids=str)
def cage(request: pytest.FixtureRequest) -> Iterator[Cage]:
    uid, number = request.param
    with caged(uid, bubblewraps()[number]) as cage:
        yield cage


def laid(cage: Cage, *command: str, lay: bool = True) -> str:
    """Run a command behind covers that are laid by hand, as a monitor lays them; returns what it wrote."""

    def inside() -> str:
        prepared = cage.prepare(command, env={"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8"})
        launch = prepared.launch(by_hand=True)
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            bubblewrap = foreground.start(
                launch.argv, launch.env, {0: null, 1: writing, 2: writing, **launch.inherited}
            )
            launch.let_go()
            os.close(writing)
            try:
                for step in (launch.started(bubblewrap), launch.ready()):
                    for descriptor in step:
                        assert select.select([descriptor], [], [], SECONDS)[0]
                if lay:
                    assert launch.covers is not None
                    assert told(bubblewrap, launch.covers) == {"event": "covered", "errno": 0, "masking": True}
                launch.seal()
                launch.release()
                with open(reading, closefd=False) as output:
                    return output.read()
            finally:
                foreground.end(bubblewrap)
                os.waitpid(bubblewrap, 0)
        finally:
            launch.close()
            os.close(reading)
            os.close(null)

    said: str = cage.does(inside)
    return said


def told(bubblewrap: int, wanted: Covers) -> object:
    """Have covers laid, and return what is told of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        coverer = Coverer(bubblewrap, asdict(wanted), Line(theirs))
        coverer.go()
        os.waitpid(coverer.pid, 0)
        return json.loads(ours.recv(4096))


def test_covers_that_are_laid_by_hand_hold_what_those_of_bubblewrap_hold(cage: Cage) -> None:
    wanted = cage.does(lambda: covers(cage.prepare(["true"], env={}).plan))
    assert wanted.files
    assert wanted.read_only
    command = ["/bin/sh", "-c", LOOK, "look", *wanted]
    by_bubblewrap = cage.run(command)
    assert by_bubblewrap.code == 0, by_bubblewrap
    lines = by_bubblewrap.out.splitlines()
    assert len(lines) == len(list(wanted))
    assert all(" ro," in line for line in lines)
    by_hand = laid(cage, *command).splitlines()
    assert [line.replace(",noexec", "") for line in by_hand] == [line.replace(",noexec", "") for line in lines]
    assert all(",noexec" in line for line in by_hand)


def test_what_is_covered_by_hand_could_be_read_without(cage: Cage) -> None:
    places = ("/proc/key-users", *(("/etc/shadow", "/proc/timer_list") if cage.uid == 0 else ()))
    read = ["/bin/sh", "-c", 'for path; do head -c 1 "$path" >/dev/null 2>&1 && echo "$path"; done; true', "-", *places]
    assert cage.plainly(read).out.split() == list(places)
    assert laid(cage, *read) == ""


def test_a_secret_that_is_gone_is_not_to_be_covered(tmp_path: Path) -> None:
    kept, lock = tmp_path / "shadow", tmp_path / "shadow.lock"
    for path in (kept, lock):
        path.touch(mode=0o600)
    etc = Etc(str(tmp_path))
    assert etc.masks().files == (str(kept), str(lock))
    lock.unlink()
    assert etc.masks().files == (str(kept),)


def test_a_secret_that_came_is_covered_at_once_and_nothing_is_looked_at_where_none_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssl" / "private").mkdir(parents=True)
    os.chmod(tmp_path / "ssl" / "private", 0o755)
    monkeypatch.setattr(system, "SETTLED_NANOSECONDS", -60_000_000_000)  # as a minute later
    etc = Etc(str(tmp_path))
    assert etc.masks().files == ()
    new = tmp_path / "ssl" / "private" / "new.key"
    new.touch(mode=0o600)
    assert etc.masks().files == (str(new),)
    monkeypatch.setattr(system, "_secrets", lambda *_: pytest.fail("looked through again"))
    assert etc.masks().files == (str(new),)


def test_a_directory_that_has_just_changed_is_looked_through_again_whatever_its_time_says(tmp_path: Path) -> None:
    etc = Etc(str(tmp_path))
    etc.masks()
    (tmp_path / "new.key").touch(mode=0o600)
    etc._stamps = {str(tmp_path): system._stamp(str(tmp_path))}  # as where the clock had not gone on
    assert etc.masks().files == (str(tmp_path / "new.key"),)


def test_a_sandbox_without_its_covers_is_never_released(cage: Cage) -> None:
    with pytest.raises(spawn.NotStarted, match="is not covered"):
        laid(cage, "/bin/true", lay=False)


def test_nothing_is_covered_where_there_is_no_sandbox(cage: Cage) -> None:
    """A program that is no bubblewrap: its children see what we see, and nothing of that is to be covered."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo up; wait"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        before = Path("/proc/self/mountinfo").read_text()
        answer = told(program.pid, Covers(("/etc/ssh",), ("/etc/shadow",), ()))
        assert answer == {"event": "covered", "errno": 3, "masking": False}
        assert Path("/proc/self/mountinfo").read_text() == before
        subprocess.run(["pkill", "-P", str(program.pid)], check=True)


def test_of_a_sandbox_that_has_ended_nobody_says_that_a_program_is_missing(cage: Cage) -> None:
    def inside() -> None:
        launch = cage.prepare(["/bin/true"], env={}).launch()
        null = os.open(os.devnull, os.O_RDWR)
        bubblewrap = foreground.start(launch.argv, launch.env, {0: null, 1: null, 2: null, **launch.inherited})
        launch.let_go()
        try:
            for step in (launch.started(bubblewrap), launch.ready()):
                for descriptor in step:
                    assert select.select([descriptor], [], [], SECONDS)[0]
            assert not launch.missing_program()
            foreground.end(bubblewrap)
            os.waitpid(bubblewrap, 0)
            assert select.select([launch.pidfd], [], [], SECONDS)[0]
            launch.missing_program()
        finally:
            launch.close()
            os.close(null)

    with pytest.raises(spawn.NotStarted, match="ended"):
        cage.does(inside)


def test_a_kernel_that_lists_no_children_runs_commands_too(cage: Cage, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "exec 3<&0; cat <&3 & echo up; wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        listed = pidinfo.children(parent.pid)
        monkeypatch.setattr(pidinfo, "LISTS_CHILDREN", False)
        assert sorted(pidinfo.children(parent.pid)) == sorted(listed) != []
    assert cage.run(["/bin/echo", "here"]).out == "here\n"


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"root": "/home/me"}, True),
        ({"root": "/etcetera"}, True),
        ({"root": "/etc/project"}, False),
        ({"root": "/"}, False),
        ({"root": "/home/me", "readable": ("/opt", "/etc/pki")}, False),
        ({"root": "/home/me", "writable": ("/etc/repository/.git",)}, False),
    ],
)
def test_what_a_run_is_given_in_etc_stays_above_the_covers(given: dict[str, object], last: bool) -> None:
    plan = Plan(cwd=str(given["root"]), command=("true",), env={}, **given)  # type: ignore[arg-type]
    assert may_come_last(plan) == last


REFUSED = r"""
import ctypes, json, os, struct, sys, trio
from codespace.contract import SpawnRequest, Workspace
from codespace.runner.supervisor import Supervisor
from codespace.sandbox.box import Sandbox
root, state, number, reason = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))
# Of every call its number, and of setns what is to be entered: mounts are refused, all else is allowed.
look = ((0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 24), (0x15, 0, 1, 0x20000))
lines = (*look, (0x06, 0, 0, 0x00050000 | reason), (0x06, 0, 0, 0x7FFF0000))
code = b"".join(struct.pack("=HBBI", *line) for line in lines)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, ctypes.byref(Program(len(lines), code)), 0, 0)
SCRIPT = '''
exec 2>/dev/null
head -c 1 /etc/shadow; head -c 1 /proc/keys; test -t 0 && echo terminal
perl -MIO::Socket::INET -e 'print IO::Socket::INET->new("127.0.0.1:3128") ? "door\n" : "alone\n"'
'''
async def main():
    sandbox = Sandbox()
    descriptor = os.open(root, os.O_PATH)
    async with Supervisor(state, sandbox=sandbox, networked=True) as supervisor:
        for name, network, tty in (("1", "restricted", False), ("2", "restricted", True), ("3", "enabled", False)):
            workspace = Workspace("w", root, profile="workspace-write", network=network)
            request = SpawnRequest(name, ("/bin/sh", "-c", SCRIPT), ".", {}, 60.0, tty=tty)
            spawned = await supervisor.spawn(workspace, request, descriptor)
            await supervisor.wait_exit(name)
            chunk = await supervisor.output(name, cursor=0, stream="combined", limit_bytes=100, encoding="text")
            print(json.dumps([spawned.sandbox, chunk.text.split(), sandbox.by_hand]))
trio.run(main)
"""


@pytest.mark.parametrize(("reason", "is_lasting"), [(errno.EPERM, True), (errno.ENOMEM, False)])
def test_where_a_sandbox_is_not_entered_bubblewrap_lays_the_covers_for_as_long_as_that_lasts(
    tmp_path: Path, reason: int, is_lasting: bool
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, str(root), str(tmp_path / "state"), str(CALLS["setns"]), str(reason)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")] == [
        ["linux-sandbox", ["alone"], not is_lasting],
        ["linux-sandbox", ["terminal", "alone"], not is_lasting],
        ["linux-sandbox", ["door"], not is_lasting],
    ]
    times = done.stdout.count("sandbox_covers_by_bubblewrap") + done.stderr.count("sandbox_covers_by_bubblewrap")
    assert times == (1 if is_lasting else 3)
