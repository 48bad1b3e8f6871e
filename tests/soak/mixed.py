"""A soak of every tool: clients of one HTTP daemon that call at random, cancel calls and hang up, for some minutes.

    python tests/soak/mixed.py [--runner uds] [--minutes 5] [--seed N]

What must be true all the time is looked at all the time. Each patcher has a workspace for itself and a model of it:
what the ledger says of each key decides whether the model moves, and the disk must be as the model is. No answer may
be a fault of the daemon, every command ends, and a granted hold is on disk. At the end nothing is left but files, and
the chain of events is sound. Memory and descriptors are printed every 20 seconds. Not a test: the same seed is not
the same run.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from codespace.errors import Refusal
from codespace.testing import processes
from codespace.testing.calls import Malformed
from codespace.testing.installed import HttpDaemon, Visit, over_http, script
from codespace.testing.site import RUNNER, Site, tree

FAULTS: Final = frozenset({"INTERNAL", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN", "SANDBOX_UNAVAILABLE"})
ENDED: Final = frozenset({"applied", "rejected", "failed_rolled_back"})
SAMPLE_SECONDS: Final = 20.0
CANCELLED: Final = 0.1
# Of all calls, within their first 50 ms.
UNDO_DEPTH: Final = 5
PROGRAMS: Final = (
    ["/bin/true"],
    ["sh", "-c", "echo hi; echo err >&2; exit 3"],
    ["sh", "-c", "yes | head -c 3000000"],
    ["sh", "-c", "sleep 100 & sleep 100 & exit 0"],
    ["sh", "-c", "(trap '' TERM; sleep 30) & wait"],
    ["sh", "-c", "kill -9 $$"],
    ["no-such-program"],
    ["git", "status"],
)
PATHS: Final = ("../../etc/passwd", "/etc/passwd", ".git/config", "nothing")
Answer = dict[str, Any] | Refusal | None
"""None: the call was cancelled."""


class Soak:
    """What all actors share: chance, the end, and what was seen."""

    def __init__(self, site: Site, daemon: HttpDaemon, minutes: float, seed: int) -> None:
        self.site = site
        self.daemon = daemon
        self.chance = random.Random(seed)
        self.until = time.monotonic() + minutes * 60
        self.answers = collections.Counter[tuple[str, str]]()
        self.lies = 0

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def complain(self, *about: object) -> None:
        self.lies += 1
        print("NOT TRUE:", *about, flush=True)

    async def call(self, visit: Visit, tool: str, /, **arguments: Any) -> Answer:
        """Call a tool, or begin to."""
        answer: Answer = None
        patience = self.chance.random() * 0.05 if self.chance.random() < CANCELLED else float("inf")
        with trio.move_on_after(patience):
            try:
                answer = await visit.call(tool, **arguments)
            except Refusal as refusal:
                answer = refusal
        told = "cancelled" if answer is None else answer.code if isinstance(answer, Refusal) else "ok"
        self.answers[tool, told] += 1
        if told in FAULTS:
            self.complain(tool, told, answer)
        return answer

    async def client(self, workspace_id: str, act: Callable[[Visit], Awaitable[None]]) -> None:
        """Act through one client after another, each of which hangs up in the middle of whatever it does."""
        while self.goes_on:
            try:
                with trio.move_on_after(self.chance.uniform(1, 20)):
                    await self._visit(workspace_id, act)
            except* Malformed as malformed:
                self.complain(malformed.exceptions)

    async def _visit(self, workspace_id: str, act: Callable[[Visit], Awaitable[None]]) -> None:
        mode = self.chance.choice(("legacy", "auto"))
        async with over_http(self.site, self.daemon.url, self.daemon.token, workspace_id, mode=mode) as visit:
            while self.goes_on:
                await act(visit)

    async def sample(self) -> None:
        while self.goes_on:
            pid = self.daemon.process.pid
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            below = len(processes.descendants(pid))
            print(f"{self.answers.total():8d} {resident / 1_048_576:9.1f} {descriptors:6d} {below:6d}", flush=True)
            await trio.sleep(SAMPLE_SECONDS)


class Patcher:
    """The only one who changes its workspace."""

    def __init__(self, soak: Soak, workspace_id: str) -> None:
        self._soak = soak
        self._root = soak.site.root(workspace_id)
        self._key = workspace_id
        self._number = 0
        self._model: dict[str, str] = {}
        self._done: list[tuple[str, dict[str, str], dict[str, str]]] = []
        """Applied operations, with the model before and after."""
        self._pending: tuple[str, dict[str, str] | None] | None = None
        """The key of what was asked for, and the model behind it; None: that it cannot be."""

    async def act(self, visit: Visit) -> None:
        """Patch or undo once; what a client before this one left open is settled first."""
        await self._settle(visit)
        self._number += 1
        key = f"{self._key}-{self._number}"
        if self._done and self._soak.chance.random() < 0.15:
            operation_id, before, after = self._done.pop()
            if after == self._model:
                self._pending = key, before
                await self._soak.call(visit, "operation_undo", operation_id=operation_id, operation_key=key)
        else:
            patch, behind = self._next()
            self._pending = key, behind
            told = await self._soak.call(visit, "apply_patch", patch=patch, operation_key=key)
            if isinstance(told, Refusal) and behind is not None:
                self._soak.complain("a patch that has its place was refused:", key, told)
        await self._settle(visit)

    def look(self) -> None:
        """Compare the disk with the model."""
        found = {path: content.decode() for path, content in tree(self._root).items()}
        if found != self._model:
            names = sorted(
                path for path in found.keys() | self._model.keys() if found.get(path) != self._model.get(path)
            )
            self._soak.complain("the disk is not as the ledger says:", self._key, names[:5])
            self._model, self._done = found, []

    async def _settle(self, visit: Visit) -> None:
        if self._pending is None:
            return
        key, behind = self._pending
        told = await self._status(visit, key)
        if told is not None and told["status"] == "applied":
            if behind is None:
                self._soak.complain("a patch without a place was applied:", key)
            self._done = [*self._done, (told["operation_id"], self._model, behind or {})][-UNDO_DEPTH:]
            self._model = behind or {}
        elif told is not None and told["status"] not in ENDED:
            self._soak.complain(key, told)
        self._pending = None
        self.look()

    async def _status(self, visit: Visit, key: str) -> dict[str, Any] | None:
        """Return what the ledger says once the operation has ended; None where there is none."""
        with trio.fail_after(30):
            while True:
                try:
                    told = await visit.call("operation_status", operation_key=key)
                except Refusal:
                    # A cancelled request may still be on its way: none of a key that is asked about twice.
                    await trio.sleep(0.2)
                    try:
                        told = await visit.call("operation_status", operation_key=key)
                    except Refusal:
                        return None
                if told.get("finished_at") is not None:
                    return told
                await trio.sleep(0.05)

    def _next(self) -> tuple[str, dict[str, str] | None]:
        """Return a patch, and the model behind it."""
        chance, model = self._soak.chance, dict(self._model)
        kind = chance.choice(("add", "update", "update", "delete", "move", "nowhere")) if model else "add"
        if kind == "add":
            path = f"d{chance.randrange(8)}/added{self._number}.txt"
            lines = [f"line {number} {chance.random()}" for number in range(chance.choice((1, 50, 20_000)))]
            model[path] = _text(lines)
            return _patch(f"*** Add File: {path}", *(f"+{line}" for line in lines)), model
        path = chance.choice(list(model))
        if kind == "delete":
            del model[path]
            return _patch(f"*** Delete File: {path}"), model
        lines = model[path].splitlines()
        number, line = chance.randrange(len(lines)), f"changed {chance.random()}"
        old = "it is nowhere" if kind == "nowhere" else lines[number]
        lines[number] = line
        head = [f"*** Update File: {path}"]
        if kind == "move":
            del model[path]
            path = f"d{chance.randrange(8)}/moved{self._number}.txt"
            head.append(f"*** Move to: {path}")
        model[path] = _text(lines)
        return _patch(*head, "@@", f"-{old}", f"+{line}"), None if kind == "nowhere" else model


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _patch(*lines: str) -> str:
    return _text(["*** Begin Patch", *lines, "*** End Patch"])


class Others:
    """Actors that keep nothing."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self._chance = soak.chance
        self._number = 0

    async def command(self, visit: Visit) -> None:
        """Start a command in one of all ways, and follow it to its end, or leave."""
        asked: dict[str, Any] = {
            "command": self._chance.choice(PROGRAMS),
            "wait_seconds": self._chance.choice((0, 0.1, 2)),
            "timeout_seconds": self._chance.choice((1, 5)),
        }
        kind = self._chance.choice(("pipes", "pipes", "pipes", "terminal", "stdin"))
        if kind == "terminal":
            asked["tty"] = True
        elif kind == "stdin":
            asked |= {"command": ["cat"], "open_stdin": True}
        started = await self._soak.call(visit, "exec_command", **asked)
        if not isinstance(started, dict):
            return
        process_id = started["process_id"]
        if kind == "terminal":
            await self._soak.call(visit, "resize_process", process_id=process_id, rows=30, cols=100)
        elif kind == "stdin":
            await self._soak.call(visit, "write_stdin", process_id=process_id, data="abc\n", eof=True)
        await self._follow(visit, process_id, started["cursor"])

    async def _follow(self, visit: Visit, process_id: str, cursor: int) -> None:
        patience = time.monotonic() + 30
        while self._chance.random() > 0.05:
            limit = self._chance.choice((100, 60_000))
            asked = {"process_id": process_id, "cursor": cursor, "wait_seconds": 1, "limit_bytes": limit}
            told = await self._soak.call(visit, "read_process", **asked)
            if isinstance(told, Refusal):
                self._soak.complain("read_process", told)
                return
            if told is not None and told["eof"] and told["state"] == "exited":
                return
            cursor = cursor if told is None else told["cursor"]
            if self._chance.random() < 0.2:
                await self._soak.call(visit, "terminate_process", process_id=process_id, grace_seconds=0.2)
            if time.monotonic() > patience:
                self._soak.complain("a command did not end", process_id)
                return

    async def read(self, visit: Visit) -> None:
        """Ask for what is there, and for what is not to be had."""
        some = [*list(tree(visit.root))[:100], *PATHS]
        path = self._chance.choice(some)
        tool, arguments = self._chance.choice(
            (
                ("find", {"glob": "**/*.txt", "limit": 50}),
                ("find", {"query": "added1"}),
                ("search", {"pattern": "line [0-9]", "limit": 20}),
                ("read", {"path": path}),
                ("read_many", {"paths": [path, self._chance.choice(some)]}),
                ("workspace_info", {}),
                ("list_processes", {}),
            )
        )
        await self._soak.call(visit, tool, **arguments)

    async def hold(self, visit: Visit) -> None:
        """Have a patch held, decide it, and resume it."""
        self._number += 1
        path = f"held{self._number}.txt"
        held = await self._soak.call(visit, "apply_patch", patch=_patch(f"*** Add File: {path}", "+x"))
        if not isinstance(held, Refusal) or held.approval_id is None:
            return
        named = {"approval_id": held.approval_id}
        await self._soak.call(visit, "approval_status", **named)
        await self._soak.call(visit, "approval_resolve", **named, decision=self._chance.choice(("grant", "deny")))
        if isinstance(await self._soak.call(visit, "operation_resume", **named), dict):
            if (visit.root / path).exists():
                (visit.root / path).unlink()
            else:
                self._soak.complain("a granted hold is not on disk:", path)


async def act(soak: Soak) -> None:
    """Let all actors act until the time is over."""
    others = Others(soak)
    patchers = [Patcher(soak, name) for name in ("one", "two")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(soak.sample)
        for name, patcher in zip(("one", "two"), patchers, strict=True):
            nursery.start_soon(soak.client, name, patcher.act)
            nursery.start_soon(soak.client, name, others.read)
        for name in ("boxed", "shared", "shared"):
            nursery.start_soon(soak.client, name, others.command)
        nursery.start_soon(soak.client, "held", others.hold)


def site(folder: Path, runner: str) -> Site:
    """Return the workspaces that the actors act in."""
    made = Site(folder)
    made.extra_environ[RUNNER] = runner
    for name in ("one", "two", "boxed"):
        made.add_workspace(name)
    made.add_workspace("shared", occupancy="shared")
    made.add_workspace("held", approvals="confirm")
    return made


def is_over(soak: Soak) -> bool:
    """End the daemon; return whether nothing is left of it and the chain of its events is sound."""
    below = processes.descendants(soak.daemon.process.pid)
    soak.daemon.process.send_signal(signal.SIGTERM)
    code = soak.daemon.process.wait(30)
    left = [processes.command_line(pid) for pid in below if Path(f"/proc/{pid}").exists()]
    verified = subprocess.run([script(), "audit", "verify"], env=soak.site.environ, capture_output=True, text=True)
    print(f"ended with {code}, left {left}; {verified.stdout}{verified.stderr}")
    return code == 0 and not left and verified.returncode == 0


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--runner", choices=("in-process", "uds"), default="in-process")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="codespace-soak-") as folder,
        HttpDaemon(site(Path(folder), options.runner)) as daemon,
    ):
        soak = Soak(daemon.site, daemon, options.minutes, options.seed)
        print(f"seed {options.seed}\n{'calls':>8} {'MiB':>9} {'fds':>6} {'procs':>6}")
        trio.run(act, soak)
        over = is_over(soak)
    for (tool, told), count in sorted(soak.answers.items()):
        print(f"{count:8d} {tool}: {told}")
    print(f"{soak.lies} answers were not true")
    sys.exit(not over or soak.lies > 0)


if __name__ == "__main__":
    main()
