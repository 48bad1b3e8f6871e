"""How one process ends: also while it still starts, and though nobody reads what it says."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from codespace import limits
from codespace.testing.installed import END_SECONDS, script
from codespace.testing.site import Site
from codespace.testing.wire import Wire

HANGING_STOP = """
import sys
import threading
from codespace import limits
limits.WATCHDOG_SECONDS = 0.1
from codespace.service import _Watchdog
watchdog = _Watchdog()
if "no-thread" in sys.argv:
    threading.Thread.start = None
watchdog.start()
threading.Event().wait()
"""


def instances(site: Site) -> dict[int, str]:
    """Return the ids of the daemons that the database knows, by pid."""
    with closing(sqlite3.connect(site.state / "operations.sqlite")) as db:
        return dict(db.execute("SELECT pid, id FROM instances"))


def leave_a_daemon_whose_lock_does_not_answer(site: Site) -> None:
    lock = site.folder / "lock"
    os.mkfifo(lock)  # opened for reading it waits for a writer, as a dead network disk for its server
    with closing(sqlite3.connect(site.state / "operations.sqlite")) as db:
        db.execute(
            "INSERT INTO instances (id, pid, started_at, state_dir, lock_path, roots) VALUES (?, 1, 1.0, ?, ?, '[]')",
            ("inst-hung", str(site.state), str(lock)),
        )
        db.commit()


def test_a_signal_ends_a_start_that_waits(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    with Wire(site):
        pass
    leave_a_daemon_whose_lock_does_not_answer(site)
    wire = Wire(site)
    wire.start()
    try:
        until = time.monotonic() + END_SECONDS
        while wire.process.pid not in instances(site):
            assert time.monotonic() < until, wire.said
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(limits.RECOVERY_SECONDS / 2) == 0
    finally:
        wire.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_daemon_that_shall_outlive_its_terminal_does(tmp_path: Path, number: signal.Signals) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    command = ["/bin/sh", "-c", f'trap "" {number:d}; exec "$@"', "sh", script(), "serve", "--stdio"]
    with Wire(site, command=command) as wire:
        wire.process.send_signal(number)
        ask = ["grep", "SigIgn", "/proc/self/status"]
        told = wire.call("exec_command", workspace_id="main", command=ask, wait_seconds=END_SECONDS)
        hears = int(told["structuredContent"]["chunk"].split()[1], 16) & 1 << number - 1 == 0
        assert hears, "a command outlives its own terminal as well"
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(END_SECONDS) == 0
    assert [line for line in wire.log.read_text().splitlines() if number.name in line] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_more_signal_changes_nothing_of_how_a_stop_ends(tmp_path: Path, number: signal.Signals) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    with Wire(site) as wire:
        until = time.monotonic() + END_SECONDS
        while wire.process.poll() is None:
            assert time.monotonic() < until, wire.said
            wire.process.send_signal(number)
    assert wire.process.returncode == 0
    assert "Traceback" not in wire.said


@contextmanager
def stderr_of(read: bool) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Give a reader and a standard error, which is full where nobody shall have `read` it."""
    reader, writer = os.pipe()
    with open(reader, "rb") as said, open(writer, "wb", buffering=0) as stderr:
        os.set_blocking(writer, False)
        while not read and stderr.write(b"x" * limits.LOG_WRITE_BYTES):
            pass
        os.set_blocking(writer, True)
        yield said, stderr


@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
def test_a_daemon_that_cannot_start_ends_whether_or_not_the_reason_is_read(tmp_path: Path, read: bool) -> None:
    site = Site(tmp_path)
    site.add_workspace()
    site.extra_environ["CODESPACE_OPERATIONS_DB"] = "/dev/null"
    argv = [script(), "serve", "--stdio"]
    with stderr_of(read) as (said, stderr):
        with subprocess.Popen(argv, env=site.environ, stdin=subprocess.PIPE, stderr=stderr) as process:
            try:
                assert process.wait(END_SECONDS) == 1
            finally:
                process.kill()
        stderr.close()
        assert (b"codespace: /dev/null is not a regular file" in said.read()) == read


@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
def test_a_stop_that_hangs_is_cut_off_whether_or_not_its_last_word_is_read(read: bool) -> None:
    with stderr_of(read) as (said, stderr):
        with subprocess.Popen([sys.executable, "-c", HANGING_STOP], stderr=stderr) as process:
            try:
                assert process.wait(END_SECONDS) == os.EX_SOFTWARE
            finally:
                process.kill()
        stderr.close()
        assert (b"was cut off" in said.read()) == read


def test_a_stop_that_hangs_is_cut_off_also_where_no_thread_is_left_to_be_had() -> None:
    argv = [sys.executable, "-c", HANGING_STOP, "no-thread"]
    done = subprocess.run(argv, stderr=subprocess.PIPE, timeout=END_SECONDS, check=False)
    assert (done.returncode, b"was cut off" in done.stderr) == (os.EX_SOFTWARE, True)
