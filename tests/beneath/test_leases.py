"""A file that another program has a lease on (fcntl F_SETLEASE): waited for a moment, and never as long as it likes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.sight import OTHER, see

HOLDER = """
import errno, fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as error:
    if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
        raise
    print("no leases", flush=True)
else:
    print("leased", flush=True)
sys.stdin.read()
"""
# SIGIO asks it to let go. What it does then is its own business.
SOON = 30.0
# The kernel itself takes a lease away after 45 s.


@contextmanager
def leased(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said == b"no leases\n":
            pytest.skip("this filesystem gives no leases")
        assert said == b"leased\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_a_lease_that_is_kept_is_a_refusal_in_time(root: Root, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.1)
    with leased(tree / "a/b/file"):
        began = time.monotonic()
        for ask in (lambda: root.read("a/b/file", 100), lambda: root.version("a/b/file")):
            with pytest.raises(Refusal, match="has a lease on a/b/file") as caught:
                ask()
            assert (caught.value.code, caught.value.retryable) == ("FILE_OPERATION_FAILED", True)
        assert see(root, "a/b/file").version == OTHER
        assert time.monotonic() - began < SOON


def test_a_lease_that_is_given_up_delays_a_read_and_no_more(
    root: Root, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEASE_SECONDS", SOON)
    with leased(tree / "a/b/file") as holder:
        assert holder.stdin is not None
        with ThreadPoolExecutor() as threads:
            reading = threads.submit(root.read, "a/b/file", 100)
            holder.stdin.close()  # it ends, and its lease with it
            assert reading.result(SOON)[0] == b"content\n"
