"""Daemons that die: imports everything once, then forks one for each order, a JSON line on stdin.

An order: {"environ": {...}, "key": ..., "patch": ..., "at": N, "both": bool, "workspace_id": ...}; `at` 0 counts
and kills nowhere, None only asks what became of the key and sends the patch again. The reply, one line of JSON:
{"killed": bool, "count": N, "status": ..., "again": ...}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from codespace.contract import Caller
from codespace.daemon import open_daemon
from codespace.drive import Motion
from codespace.errors import Refusal
from codespace.gateway.store import Store
from codespace.runner.patch.channel import Channel
from codespace.sandbox import orphans
from codespace.settings import load
from codespace.testing import processes

sys.path.insert(0, str(Path(__file__).parent))

from counting import Kill, kill

CALLER = Caller("memory")
AROUND = (Motion.move.__code__, Store.write.__code__, Channel.call.__code__, Channel._send.__code__)


def main() -> None:
    processes.adopt_orphans()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the log of the daemons is not what is asked for
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), file=replies, flush=True)
        reap()


def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    """Fork a daemon for one order and return what it said before it ended or died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)
        end = 1
        try:
            trio.run(live, order, writing)
            end = 0
        finally:
            os._exit(end)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, how = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(how) and os.WTERMSIG(how) == signal.SIGKILL
    if not killed and how != 0:
        return {"killed": False, "fault": how}
    return {"killed": killed, **(json.loads(said) if said else {})}


def reap() -> None:
    """Wait for helpers that outlived their daemon: each ends with its stdin.

    A sandbox that a daemon's first look made, and that lost its starter in its first moments, waits for the sweep of
    the next daemon.
    """
    while left := processes.children():
        for pid in left:
            descriptor = os.pidfd_open(pid)
            if not select.select([descriptor], [], [], 10)[0]:
                orphans.sweep()
            os.close(descriptor)
            os.waitpid(pid, 0)


async def live(order: Mapping[str, Any], pipe: int) -> None:
    """Be a daemon for one patch."""
    at = order["at"]
    point = Kill(at, lambda: die(both=order["both"]), AROUND)
    async with open_daemon(load(order["environ"])) as daemon:
        told: dict[str, Any] = {}
        if at is None:
            told["status"] = await recorded(daemon.tools, order["key"])
        else:
            point.begin()
        told["again"] = await apply(daemon.tools, order)
        point.end()
    os.write(pipe, json.dumps(told | {"count": point.count}).encode())


def die(*, both: bool) -> None:
    """End this daemon where it stands, its helpers first where both are to die."""
    kill(*(processes.children() if both else ()), os.getpid())


async def apply(tools: Any, order: Mapping[str, Any]) -> str:
    try:
        done = await tools.apply_patch(
            CALLER,
            workspace_id="main",
            patch=order["patch"],
            expected_versions=None,
            operation_key=order["key"],
            check_only=False,
            work_id=None,
        )
    except Refusal as refusal:
        return str((refusal.details or {}).get("status", refusal.code))
    return str(done["status"])


async def recorded(tools: Any, key: str) -> str | None:
    try:
        return str((await tools.operation_status(CALLER, operation_id=None, operation_key=key))["status"])
    except Refusal as refusal:
        if refusal.code != "OPERATION_NOT_FOUND":
            raise
        return None


if __name__ == "__main__":
    main()
