"""Whom a sweep of sandboxes without an owner kills, and whom it never does."""

from __future__ import annotations

import subprocess
import sys

SECONDS = 60

REUSED = """
import ctypes, os, signal, subprocess, sys
from codespace.sandbox import orphans
from codespace.sandbox.argv import GATE

NEW_PIDS = 0x20000000
DUMPABLE, DROP_FROM_BOUNDING_SET, TRACING = 4, 24, 19
UNSEEN = sys.argv[1] == "owned by one that cannot be seen"
libc = ctypes.CDLL(None)

def orphan():
    # Process 1 of a namespace of its own, with bubblewrap's name and our mark; its parent is no bubblewrap.
    told, telling = os.pipe()
    parent = os.fork()
    if parent == 0:
        assert libc.unshare(NEW_PIDS) == 0
        said = "import signal; print(flush=True); signal.pause()"
        words = ["bwrap", "-c", said, GATE]
        child = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
        child.stdout.readline()
        if UNSEEN:
            assert libc.prctl(DUMPABLE, 0, 0, 0, 0) == 0
        os.write(telling, b"%d" % child.pid)
        child.wait()
        os._exit(0)
    return parent, int(os.read(told, 16))

def bystander(pid):
    # A process that answers what it hears, under the number of one that is gone.
    asked, asking = os.pipe()
    answered, answering = os.pipe()
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    child = os.fork()
    if child == 0:
        os.write(answering, os.read(asked, 16))
        os._exit(0)
    os.close(answering)
    assert child == pid, (child, pid)
    return asking, answered

def see_nothing_of_others():
    # What may be read by nobody who may not trace everything is to this process as another account's.
    assert libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=4") == 0
    lower, upper = 0xFFFFFFFF & ~(1 << TRACING), 0x1FF
    assert libc.capset((ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(lower, lower, 0, upper, upper, 0)) == 0

if UNSEEN:  # and so it is with what it starts, or that were out of its sight too
    assert libc.prctl(DROP_FROM_BOUNDING_SET, TRACING, 0, 0, 0) == 0
parent, pid = orphan()
if UNSEEN:
    see_nothing_of_others()
    swept = orphans.sweep()
    print(swept, os.path.exists(f"/proc/{parent}"), os.path.exists(f"/proc/{pid}"))
elif sys.argv[1] == "reused":
    pipes = []
    uid = os.getuid
    def reuse():
        if not pipes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(parent, 0)
            pipes.extend(bystander(pid))
        return uid()
    os.getuid = reuse
    swept = orphans.sweep()
    os.write(pipes[0], b"lives")
    print(swept, os.read(pipes[1], 16).decode())
else:
    swept = orphans.sweep()
    print(swept, os.waitpid(parent, 0)[0] == parent)
"""
"""With process numbers of its own, so that nobody else takes the one that is to be used again."""


def swept(case: str) -> str:
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    told = subprocess.run(
        [*words, sys.executable, "-c", REUSED, case], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def test_a_sandbox_without_an_owner_is_killed() -> None:
    assert swept("owned by nobody") == "1 True"


def test_a_sandbox_whose_owner_cannot_be_seen_lives() -> None:
    assert swept("owned by one that cannot be seen") == "0 False True"


def test_a_process_that_took_the_number_of_one_that_ended_during_the_look_lives() -> None:
    assert swept("reused") == "0 lives"
