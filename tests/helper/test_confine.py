"""The patch helper is kept to its root and its journals, and finds out by itself whether it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codespace.sandbox import landlock

PROGRAM = Path(__file__).with_name("breakout.py")
NOBODY = 65534
ALLOWED = ("write in the root", "move across the root", "write in the journal", "read in the root")

needs_landlock = pytest.mark.skipif(landlock.version() < 4, reason="this kernel has no Landlock for TCP")


@pytest.fixture(params=[0, NOBODY] if os.geteuid() == 0 else [0], ids=lambda user: f"user {user}")
def told(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return what a confined process could do; as root, also for an account without rights."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # where another account can get to
    for name in ("root/deep", "state/journal", "outside"):
        (folder / name).mkdir(parents=True)
    (folder / "outside/file").write_text("theirs")
    if request.param:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, request.param, request.param)
    argv = [str(folder / "root"), str(folder / "state/journal"), str(folder / "outside"), str(request.param)]
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(PROGRAM), *argv], capture_output=True, check=True, timeout=60, env={}, cwd="/"
        )
        yield json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)


@needs_landlock
def test_only_the_root_and_the_journals_can_be_read_and_written(told: dict[str, Any]) -> None:
    went = [name for name, outcome in told["went"].items() if outcome == "went"]
    assert went == list(ALLOWED)
    assert told["told"]["files"] is True
    assert told["told"]["reason"] is None


def test_no_socket_can_be_made_and_no_program_started(told: dict[str, Any]) -> None:
    for name in ("TCP", "UDP", "Unix", "netlink", "pair", "program"):
        assert told["went"][name] == "PermissionError"
    assert told["told"]["network"] is True
    assert (told["no_new_privs"], told["seccomp"]) == ("1", "2")
