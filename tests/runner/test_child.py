"""A child that only writes ends with all that it started, whatever it is in the middle of."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys

import pytest

from codespace.runner.search import child
from codespace.testing import processes

SECONDS = 60.0
TRIES = 8
FORKS = r"""
import mmap
import os
import signal

held = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(held), mmap.PAGESIZE):
    held[page] = 1

def fork():
    if os.fork() == 0:
        while True:
            signal.pause()

for _ in range(300):
    os.posix_spawn("/bin/sleep", ["sleep", "987654"], {})
os.write(1, b"ready\n")
while True:
    fork()
"""
# Much memory makes each fork take milliseconds, and children that are there already make killing them take some:
# so a fork is under way at nearly any moment, and one that a stop does not wait for ends before the kill.


def forking() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-I", "-c", FORKS], stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], SECONDS)[0]
    assert process.stdout.read(6) == b"ready\n"
    return process


def test_a_child_that_was_forking_leaves_no_child_of_its_own_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespace.limits.REAP_SECONDS", SECONDS)  # how long three hundred take is not the question
    before = processes.children()  # such as the browser of a suite that ran before
    for _ in range(TRIES):
        with forking() as process:
            child.end(process)
        left = list(filter(processes.is_alive, processes.children() - before))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert processes.still_alive_after(left, SECONDS) == frozenset()
        assert not left, "they outlived their parent"


def test_a_child_is_ended_in_a_process_that_has_more_than_a_thousand_descriptors_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_048:
        pytest.skip("no process may have so many here")
    before = processes.children()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    held = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(1_024)]
    try:
        with subprocess.Popen(["/bin/sh", "-c", "sleep 987654 & echo; wait"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            descriptors = os.listdir("/proc/self/fd")
            child.end(process)
            assert os.listdir("/proc/self/fd") == descriptors
        assert not any(map(processes.is_alive, processes.children() - before))
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
