"""What is replaced under a run takes its protection along: the run is ended, and that is told."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from codespace import limits
from codespace.contract import ProcessState, SpawnRequest, Workspace
from codespace.errors import Refusal
from codespace.runner.supervisor import Supervisor
from codespace.sandbox.box import Sandbox
from codespace.testing import open_bench

SECONDS = 60.0
REPLACED = "Something outside this run replaced"
_sandbox = Sandbox()


class Bench:
    """A supervisor, and a workspace with something to hide and something to protect."""

    def __init__(self, supervisor: Supervisor, root: Path, descriptor: int) -> None:
        self.root = root
        self._supervisor = supervisor
        self._descriptor = descriptor
        self._workspace = Workspace("w", str(root), profile="workspace-write", hidden_paths=("secret", "folder"))

    async def start(self, script: str) -> None:
        """Start a command, and return once it has said `up`."""
        request = SpawnRequest("p", ("/bin/sh", "-c", script), ".", {}, SECONDS, open_stdin=True)
        spawned = await self._supervisor.spawn(self._workspace, request, self._descriptor)
        assert spawned.sandbox == "linux-sandbox"
        cursor = 0
        while not (await self.text()).endswith("up\n"):
            await self._supervisor.wait_output("p", cursor=cursor, stream="stdout")
            cursor = len(await self.text())

    async def text(self) -> str:
        chunk = await self._supervisor.output("p", cursor=0, stream="stdout", limit_bytes=60_000, encoding="text")
        return chunk.text

    async def say(self) -> None:
        await self._supervisor.write_stdin("p", b"on\n", eof=False)

    async def end(self) -> ProcessState:
        return await self._supervisor.wait_exit("p")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    root = tmp_path / "root"
    root.mkdir()
    (root / "plain").write_text("plain\n")
    (root / "secret").write_text("old\n")
    (root / ".envrc").write_text("true\n")
    (root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(root / "socket"))
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        with trio.fail_after(SECONDS):
            async with Supervisor(str(tmp_path / "state"), sandbox=_sandbox) as supervisor:
                yield Bench(supervisor, root, descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path) -> None:
    """Put a new file in a file's place, as git and many editors do."""
    new = path.with_name("new")
    new.write_text("new\n")
    new.replace(path)


def set_aside(path: Path) -> None:
    """Do as those editors that keep what there was; of another name the kernel tells nothing."""
    path.rename(path.with_name("aside"))
    path.write_text("new\n")


def make_again(path: Path) -> None:
    path.rmdir()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "act"), [("secret", replace), ("secret", set_aside), (".envrc", replace), ("folder", make_again)]
)
async def test_a_run_is_ended_once_what_is_kept_from_it_is_replaced_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[Path], None]
) -> None:
    if act is not set_aside:  # the kernel tells of it: nobody waits for another look
        monkeypatch.setattr(limits, "SANDBOX_WATCH_SECONDS", SECONDS)
    await bench.start("trap '' TERM HUP; echo up; while :; do sleep 1; done")
    act(bench.root / name)
    state = await bench.end()
    assert (state.signal, state.termination) == ("SIGKILL", "terminated")
    (told,) = [note for note in state.notes if REPLACED in note]
    assert str(bench.root / name) in told


async def test_a_command_that_waits_for_a_secret_and_ends_at_once_is_told_of_all_the_same(bench: Bench) -> None:
    await bench.start("echo up; until cat secret 2>/dev/null; do :; done")
    set_aside(bench.root / "secret")
    state = await bench.end()
    assert any(REPLACED in note for note in state.notes), state


async def test_a_run_goes_on_where_nothing_that_is_kept_from_it_can_be_reached(bench: Bench) -> None:
    await bench.start("echo up; read line; cat plain; cat secret 2>/dev/null; echo end")
    replace(bench.root / "plain")
    (bench.root / "secret").write_text("written in place\n")
    (bench.root / "folder").rmdir()
    (bench.root / ".envrc").rename(bench.root / "aside")
    (bench.root / "socket").unlink()
    with socket.socket(socket.AF_UNIX) as again:
        again.bind(str(bench.root / "socket"))
    await bench.say()
    state = await bench.end()
    assert (await bench.text(), state.exit_code) == ("up\nnew\nend\n", 0)
    assert not any(REPLACED in note for note in state.notes)


SWAPPING = """
import ctypes, os, sys, time
os.mkdir("d"); os.mkfifo("d/PLANTED"); os.symlink(sys.argv[1], "l")
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"d", -100, b"l", 2)
    time.sleep(0.002)
"""


async def test_a_command_that_leads_the_start_of_another_astray_has_nothing_made_outside(tmp_path: Path) -> None:
    """While bubblewrap mounts, the host's own tree is below /oldroot, and it makes what is missing where it mounts."""
    outside = tmp_path / "outside"
    outside.mkdir()
    async with open_bench(workspace={"occupancy": "shared"}) as bench:
        swapping = ["python3", "-I", "-c", SWAPPING, f"/oldroot{outside}"]
        await bench.call("exec_command", command=swapping, wait_seconds=1)
        refused = []
        for _ in range(12):
            try:
                assert (await bench.call("exec_command", command=["true"]))["exit_code"] == 0
            except Refusal as problem:
                refused.append(problem)
        assert os.listdir(outside) == []
        assert all("replaced" in problem.message for problem in refused), refused
