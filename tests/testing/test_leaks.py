"""The guard finds each kind of leak, forgives only what is named, and cleans up after a leaked process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import trio

from codespace.testing import leaks, processes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be guarded; what leaks here does so for good, so nothing is won by waiting for it."""
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.01)
    return tmp_path


def test_a_block_that_leaves_nothing_passes(folder: Path) -> None:
    with leaks.guard(folder), tempfile.TemporaryDirectory(dir=folder):
        subprocess.run(["/bin/true"], check=True)


def test_an_open_descriptor_is_named_with_its_target(folder: Path) -> None:
    descriptor = -1
    with pytest.raises(leaks.Leak, match=r"descriptor \d+: /dev/zero"), leaks.guard(folder):
        descriptor = os.open("/dev/zero", os.O_RDONLY)
    os.close(descriptor)


def test_a_live_child_is_named_and_killed(folder: Path) -> None:
    reading, writing = os.pipe()
    with pytest.raises(leaks.Leak, match=r"process \d+: cat"), leaks.guard(folder):
        child = _spawn_cat(reading)
    os.close(reading)
    os.close(writing)
    assert not processes.is_alive(child)


def _spawn_cat(reading: int) -> int:
    child = os.posix_spawnp("cat", ["cat"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)])
    while processes.command_line(child) != "cat":  # in the midst of an exec a process has no argv
        time.sleep(0.001)
    return child


def test_an_orphan_of_an_ended_child_is_found(folder: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid)"
    with pytest.raises(leaks.Leak, match="sleep 1000"), leaks.guard(folder):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, check=True)
    assert not processes.is_alive(int(done.stdout))


def test_what_still_ends_is_waited_for_with_the_children_that_it_hands_on(tmp_path: Path) -> None:
    script = 'sh -c "read line; sleep 0.05" <&0 & exec sleep 0.05'
    reading, writing = os.pipe()
    with leaks.guard(tmp_path):
        argv = ["sh", "-c", script]
        os.posix_spawnp("sh", argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)])
        threading.Timer(0.1, os.close, [writing]).start()
    os.close(reading)


def test_a_thread_that_goes_on_is_named(folder: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    with pytest.raises(leaks.Leak, match="thread forgotten"), leaks.guard(folder):
        thread.start()
    stop.set()
    thread.join()


def test_a_temporary_file_is_named(folder: Path) -> None:
    with pytest.raises(leaks.Leak, match="file litter"), leaks.guard(folder):
        (folder / "litter").touch()


def test_trios_idle_worker_threads_are_forgiven(folder: Path) -> None:
    async def both_at_once() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.to_thread.run_sync, os.getpid)

    with leaks.guard(folder):
        trio.run(both_at_once)


def test_a_worker_thread_of_trio_that_still_works_is_a_leak(folder: Path) -> None:
    stop = threading.Event()

    async def abandon() -> None:
        async with trio.open_nursery() as nursery:
            started = trio.Event()
            token = trio.lowlevel.current_trio_token()

            def work() -> None:
                token.run_sync_soon(started.set)
                stop.wait()

            nursery.start_soon(lambda: trio.to_thread.run_sync(work, abandon_on_cancel=True))
            await started.wait()
            nursery.cancel_scope.cancel()

    with pytest.raises(leaks.Leak, match=r"thread .*work"), leaks.guard(folder):
        trio.run(abandon)
    stop.set()
