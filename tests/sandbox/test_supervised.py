"""Sandboxed commands under the supervisor: pipes and terminals, ends of every kind, and no trace of any.

(SANDBOX 5: 28 to 30, 33.) The daemon's own account only: the other one is played in test_files and its neighbours.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from codespace import limits
from codespace.contract import SpawnRequest, Workspace
from codespace.errors import Refusal
from codespace.runner.boxed import Boxed
from codespace.runner.supervisor import Supervisor
from codespace.sandbox.box import HOME, Sandbox
from codespace.testing import processes

from .test_endings import marked
from .until import PATIENCE_SECONDS

SECONDS = 60.0
MOMENTS = (0, 1, 2, 4, 8, 16, 32)
TIMES = int(os.environ.get("ATTACK_TIMES", "8"))
"""Of each moment; `ATTACK_TIMES=50 pytest tests/sandbox` gives 350 runs."""
_sandbox = Sandbox()


def sandboxes() -> list[int]:
    """Return the processes of our own sandboxes: those of others on this machine are none of a test's business."""
    below = processes.descendants(os.getpid())
    return [pid for pid in below if "codespace-gate" in processes.command_line(pid) and processes.is_alive(pid)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Bench:
    """A supervisor with a sandbox, and a workspace."""

    def __init__(self, supervisor: Supervisor, workspace: Workspace, descriptor: int) -> None:
        self.supervisor = supervisor
        self.workspace = workspace
        self._descriptor = descriptor
        self._count = 0

    async def spawn(self, *argv: str, timeout_seconds: float = 60.0, **how: object) -> str:
        self._count += 1
        env = how.pop("env", {})
        request = SpawnRequest(f"proc-{self._count}", argv, ".", env, timeout_seconds, **how)  # type: ignore[arg-type]
        spawned = await self.supervisor.spawn(self.workspace, request, self._descriptor)
        assert (spawned.sandbox, spawned.network) == ("linux-sandbox", "enforced")
        return request.process_id

    async def run(self, *argv: str, **how: object) -> tuple[object, str]:
        process_id = await self.spawn(*argv, **how)  # type: ignore[arg-type]
        state = await self.supervisor.wait_exit(process_id)
        return state, await self.text(process_id)

    async def text(self, process_id: str) -> str:
        chunk = await self.supervisor.output(
            process_id, cursor=0, stream="combined", limit_bytes=65_536, encoding="text"
        )
        return chunk.text

    async def wait_text(self, process_id: str, wanted: str) -> str:
        while wanted not in (text := await self.text(process_id)):
            await self.supervisor.wait_output(process_id, cursor=len(text.encode()), stream="combined")
            state = self.supervisor.process(process_id)
            assert state.state == "running" or wanted in await self.text(process_id), text
        return text


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    root = tmp_path / "root"
    root.mkdir()
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        with trio.fail_after(SECONDS):
            async with Supervisor(str(tmp_path / "state"), sandbox=_sandbox) as supervisor:
                yield Bench(supervisor, Workspace("w", str(root), profile="workspace-write"), descriptor)
    finally:
        os.close(descriptor)


async def test_a_command_runs_in_the_sandbox_and_its_end_is_told(bench: Bench) -> None:
    state, text = await bench.run("sh", "-c", 'exec 2>&1; echo "$HOME"; pwd; hostname; cat /etc/shadow; exit 3')
    assert state.exit_code == 3  # type: ignore[attr-defined]
    assert text.splitlines()[:2] == [HOME, bench.workspace.root]
    assert "sandbox" in text
    assert "root:" not in text


async def test_a_death_by_signal_is_told_from_an_exit_code_that_looks_like_one(bench: Bench) -> None:
    state, _ = await bench.run("sh", "-c", "kill -SEGV $$")
    assert (state.signal, state.exit_code) == ("SIGSEGV", None)  # type: ignore[attr-defined]
    state, _ = await bench.run("sh", "-c", "exit 7")
    assert (state.signal, state.exit_code) == (None, 7)  # type: ignore[attr-defined]


async def test_stdin_output_and_streams_work_as_outside(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "cat; echo end >&2", open_stdin=True)
    assert await bench.supervisor.write_stdin(process_id, b"in\n", eof=True) == 3
    state = await bench.supervisor.wait_exit(process_id)
    assert sorted((await bench.text(process_id)).split()) == ["end", "in"]
    assert state.output_total == {"combined": 7, "stdout": 3, "stderr": 4}


async def test_terminate_asks_the_command_first_and_then_kills_all(bench: Bench) -> None:
    polite = await bench.spawn("sh", "-c", "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.01; done")
    await bench.wait_text(polite, "up")
    state = await bench.supervisor.terminate(polite, 20.0)
    assert "asked" in await bench.text(polite)
    assert (state.exit_code, state.termination) == (5, "terminated")
    deaf = await bench.spawn("sh", "-c", "trap '' TERM; echo up; setsid sleep 987661 & sleep 987661")
    await bench.wait_text(deaf, "up")
    assert (await bench.supervisor.terminate(deaf, 0.05)).termination == "terminated"
    assert marked("987661") == []


async def test_a_time_limit_ends_the_tree(bench: Bench) -> None:
    state, _ = await bench.run("sh", "-c", "setsid sleep 987662 & sleep 987662", timeout_seconds=0.2)
    assert state.termination == "timeout"  # type: ignore[attr-defined]
    assert marked("987662") == []


async def test_a_command_outlives_the_thread_that_prepared_it(bench: Bench) -> None:
    process_id = await bench.spawn("sh", "-c", "echo up; read line; echo $line", open_stdin=True)
    await bench.wait_text(process_id, "up")
    (bubblewrap,) = [pid for pid in sandboxes() if " --unshare-all" in processes.command_line(pid)][:1]
    # What --die-with-parent follows: the one thread of the monitor, which lives as long as the run.
    parent = parent_of(bubblewrap)
    while "bwrap" in processes.command_line(parent).split(" ")[0]:
        parent = parent_of(parent)
    assert "helper/monitor/" in processes.command_line(parent)
    assert len(os.listdir(f"/proc/{parent}/task")) == 1
    await bench.supervisor.write_stdin(process_id, b"alive\n", eof=True)
    await bench.supervisor.wait_exit(process_id)
    assert "alive" in await bench.text(process_id)


async def test_a_spawn_that_is_cancelled_at_any_moment_leaves_no_process_and_no_command(bench: Bench) -> None:
    for moment in MOMENTS:
        for _ in range(TIMES):
            with trio.move_on_after(moment / 1000):
                process_id = await bench.spawn("sh", "-c", "echo $$ >>ran; exec sleep 987663")
                await bench.supervisor.terminate(process_id, 0)
    for process_id in list(bench.supervisor._processes):
        await bench.supervisor.terminate(process_id, 0)
    assert not processes.still_alive_after(marked("987663"), PATIENCE_SECONDS)
    # By the root: sandboxes of other daemons on this machine are none of this test's business.
    assert not processes.still_alive_after(marked(bench.workspace.root), PATIENCE_SECONDS)


async def test_the_end_of_the_supervisor_ends_its_sandboxes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        async with Supervisor(str(tmp_path / "state"), sandbox=_sandbox) as supervisor:
            bench = Bench(supervisor, Workspace("w", str(root)), descriptor)
            await bench.wait_text(await bench.spawn("sh", "-c", "trap '' TERM; echo up; sleep 987664"), "up")
        assert marked("987664") == []
    finally:
        os.close(descriptor)


async def test_a_killed_monitor_or_bubblewrap_ends_the_run_and_leaves_nothing(bench: Bench) -> None:
    for victim in ("monitor", "bubblewrap"):
        process_id = await bench.spawn("sh", "-c", "echo up; setsid sleep 987665 & sleep 987665")
        await bench.wait_text(process_id, "up")
        found = sandboxes()
        parents = {pid: parent_of(pid) for pid in found}
        ((outer, parent),) = [(pid, parent) for pid, parent in parents.items() if parent not in found]
        os.kill(parent if victim == "monitor" else outer, signal.SIGKILL)
        await bench.supervisor.wait_exit(process_id)
        assert not processes.still_alive_after(marked("987665"), PATIENCE_SECONDS)
        assert not processes.still_alive_after(sandboxes(), PATIENCE_SECONDS)


async def test_a_terminal_has_ctrl_c_job_control_and_an_exit_code(bench: Bench) -> None:
    # Perl says that it is there: a shell that is interrupted before it has a child waits for the child first.
    script = "test -t 0 && stty size; trap 'echo caught; exit 9' INT; perl -e '$| = 1; print qq(up\\n); <STDIN>'"
    process_id = await bench.spawn("sh", "-c", script, tty=True)
    text = await bench.wait_text(process_id, "up")
    assert "24 80" in text
    await bench.supervisor.write_stdin(process_id, b"\x03", eof=False)
    state = await bench.supervisor.wait_exit(process_id)
    assert "caught" in await bench.text(process_id)
    assert state.exit_code == 9


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(("name", "env"), [("./a=b", {"IFS": "x"}), ("a=b", {"IFS": "x"}), ("-w", {})])
async def test_the_program_that_runs_is_the_named_one_though_its_name_looks_like_a_variable_or_an_option(
    bench: Bench, name: str, env: dict[str, str], tty: bool
) -> None:
    program = Path(bench.workspace.root, name)
    program.write_text('#!/bin/sh\necho "named: $1"\n')
    program.chmod(0o755)
    bench.workspace = replace(bench.workspace, env={"PATH": f"{bench.workspace.root}:/usr/bin"})
    _, out = await bench.run(name, "/bin/false", env=env, tty=tty)  # IFS is set behind the gate
    assert out.split() == ["named:", "/bin/false"]


async def test_a_shell_in_a_terminal_stops_and_continues_jobs(bench: Bench) -> None:
    Path(bench.workspace.root, "job").write_text("$| = 1; print qq(up\\n); print qq(<$_>) while <STDIN>;")
    process_id = await bench.spawn("sh", "-i", tty=True, rows=30, cols=100)

    async def type_and_wait(keys: str, wanted: str) -> None:
        await bench.supervisor.write_stdin(process_id, keys.encode(), eof=False)
        await bench.wait_text(process_id, wanted)

    await type_and_wait("stty size\r", "30 100")
    await type_and_wait("perl job\r", "up\r\n")
    await type_and_wait("first\r", "<first")
    await type_and_wait("\x1a", "Stopped")
    await type_and_wait("fg\r", "perl job\r\n")
    await type_and_wait("second\r", "<second")
    await type_and_wait("\x03", "^C\r\n")
    await type_and_wait("echo code $?\r", "code 130")
    await bench.supervisor.resize(process_id, 40, 120)
    await type_and_wait("stty size\r", "40 120")
    await bench.supervisor.write_stdin(process_id, b"exit 4\r", eof=False)
    state = await bench.supervisor.wait_exit(process_id)
    assert state.exit_code == 4


async def test_what_a_run_planted_is_a_note_at_its_end(bench: Bench) -> None:
    state, _ = await bench.run("sh", "-c", "mkdir -p sub/.git .claude && echo {} >.mcp.json")
    (note,) = state.notes  # type: ignore[attr-defined]
    assert all(name in note for name in (".claude", ".mcp.json", "sub/.git"))
    assert (await bench.run("true"))[0].notes == ()  # type: ignore[attr-defined]


async def test_a_carriage_return_in_the_name_of_what_is_protected_refuses_no_command(bench: Bench) -> None:
    await bench.run("sh", "-c", "mkdir -p \"$(printf 'a\\rb')/.git\"")
    state, text = await bench.run("sh", "-c", "echo on")
    assert (state.exit_code, text) == (0, "on\n")  # type: ignore[attr-defined]


async def test_a_program_behind_a_link_and_the_directory_above_its_target_is_the_one_that_a_shell_runs(
    bench: Bench,
) -> None:
    root = Path(bench.workspace.root)
    (root / "deep").mkdir()
    (root / "other/in").mkdir(parents=True)
    (root / "l1").symlink_to("deep")
    (root / "deep/l2").symlink_to("../other/in")
    (root / "other/prog").write_text("#!/bin/sh\necho ran\n")
    (root / "other/prog").chmod(0o755)
    assert (await bench.run("./l1/l2/../prog"))[1] == "ran\n"


async def test_a_run_for_whose_last_look_no_time_is_left_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_SECONDS", "END_SECONDS", "DRAIN_SECONDS"):
        monkeypatch.setattr(limits, name, 0.2)
    monkeypatch.setattr(Boxed, "planted", lambda _: time.sleep(3))
    state, _ = await bench.run("sh", "-c", "echo {} >.mcp.json", timeout_seconds=1.0)
    (note,) = state.notes  # type: ignore[attr-defined]
    assert note.startswith("Whether the run left git directories or protected files is not known")


async def test_a_program_that_is_only_outside_is_named_and_nothing_is_started(bench: Bench, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    with pytest.raises(Refusal, match="not visible in the sandbox") as caught:
        await bench.spawn(str(tool))
    assert caught.value.code == "PROCESS_SPAWN_FAILED"
    assert "readable_paths" in str(caught.value.next_step)
    with pytest.raises(Refusal, match="no such program"):
        await bench.spawn("no-such-program")
    assert not processes.still_alive_after(sandboxes(), PATIENCE_SECONDS)


async def test_a_workspace_that_cannot_be_protected_is_refused_and_lives_on(bench: Bench) -> None:
    link = Path(bench.workspace.root, ".git")
    link.symlink_to("/etc")
    with pytest.raises(Refusal, match="symbolic link"):
        await bench.spawn("true")
    link.unlink()
    assert (await bench.run("true"))[0].exit_code == 0  # type: ignore[attr-defined]
