"""Nothing phones home: a daemon at work opens no connection of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from codespace.testing import processes
from codespace.testing.installed import script
from codespace.testing.site import Site
from codespace.testing.wire import Wire


def sockets_of(pids: frozenset[int]) -> set[str]:
    """Return the socket inodes that processes hold."""
    found = set()
    for pid in pids:
        for target in held_by(pid):
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def held_by(pid: int) -> Iterator[str]:
    """Give what the descriptors of a process lead to, as far as neither it nor they have gone meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def internet_sockets() -> set[str]:
    """Return the inodes of every TCP and UDP socket of this machine."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6", "udp", "udp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {row[9] for row in rows}


def looked_into() -> list[str]:
    """Return what to start a program with, so that what it and its own hold can be seen though they are not dumpable.

    Root sees it. Another account does as the owner of a user namespace in which they are; the network is the same.
    """
    if os.geteuid() == 0:
        return []
    namespace = ["unshare", "--user", "--map-root-user"]
    try:
        tried = subprocess.run([*namespace, "true"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"this account cannot look into processes that are not dumpable: {error}")
    if tried.returncode != 0:
        pytest.skip(f"this account cannot look into processes that are not dumpable: {tried.stderr.strip()}")
    return namespace


def test_a_daemon_at_work_opens_no_connection(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace("main", files={"a.txt": "a\n"})
    with Wire(site, command=[*looked_into(), script(), "serve", "--stdio"]) as wire:
        patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-a\n+b\n*** End Patch\n"
        wire.call("search", pattern="a")
        wire.call("apply_patch", patch=patch)
        wire.call("exec_command", command=["/bin/true"])
        mine = processes.descendants(wire.process.pid) | {wire.process.pid}
        assert sockets_of(mine) & internet_sockets() == set()
