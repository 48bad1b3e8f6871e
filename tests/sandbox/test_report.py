"""What the runner says of commands, with a sandbox and where nothing is known of one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio

from codespace.contract import Workspace
from codespace.runner.inprocess import open_runner
from codespace.sandbox.box import Sandbox
from codespace.testing import open_bench


async def described(tmp_path: Path, sandbox: Sandbox | None) -> dict[str, object]:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    workspace = Workspace("w", str(root), profile="workspace-write", hidden_paths=(".env",))
    with trio.fail_after(60):
        async with open_runner(
            state_dir=str(tmp_path / "state"),
            rg_path=None,
            bwrap_path=None,
            retention_seconds=60,
            wall_clock=time.time,
            sandbox=sandbox,
        ) as runner:
            return dict(await runner.describe(workspace))


async def test_with_a_sandbox_every_area_is_told(tmp_path: Path) -> None:
    facts = await described(tmp_path, Sandbox())
    assert facts["command_sandbox"] == "linux-sandbox"
    assert facts["network_enforcement"] == "enforced"
    sandbox = facts["sandbox"]
    assert isinstance(sandbox, dict)
    assert set(sandbox) == {"filesystem", "git", "syscalls", "limits", "process_tree", "runs_as_root", "degraded"}
    assert sandbox["filesystem"]["hidden"] == [".env"]
    assert sandbox["limits"]["pids"] in ("cgroup", "pid_max", "nproc", "none")
    assert facts["reasons"] == []


async def test_where_nothing_can_be_concluded_no_command_can_be_started(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text('#!/bin/sh\ncase "$1" in --version) echo bubblewrap 9.9.9; exit 0;; esac\nexit 1\n')
    broken.chmod(0o755)
    facts = await described(tmp_path, Sandbox(str(broken)))
    assert facts["exec_available"] is False
    assert facts["command_sandbox"] == "none"
    assert "There is no sandbox" in str(facts["reasons"])


async def test_without_one_it_is_said_loudly(tmp_path: Path) -> None:
    facts = await described(tmp_path, None)
    assert facts["exec_available"] is True
    assert "all rights" in str(facts["caveats"])


@pytest.mark.parametrize("git", ["commit", "read_only"])
async def test_the_repository_outside_that_commands_commit_into_is_told(tmp_path: Path, git: str) -> None:
    with trio.fail_after(60):
        async with open_bench(workspace={"git": git}) as bench:
            home = tmp_path / "home"
            for words in (
                ["init", "-q", str(home)],
                ["-C", str(home), "commit", "-q", "--allow-empty", "-m", "first"],
                ["-C", str(home), "worktree", "add", "-q", str(bench.root)],
            ):
                await trio.run_process(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words])
            told = (await bench.call("workspace_info"))["execution"]
            write = ["sh", "-c", 'echo x > "$0"', f"{home}/.git/refs/heads/made"]
            ran = await bench.call("exec_command", command=write, wait_seconds=30)
    writable = told["isolation"]["sandbox"]["filesystem"]["writable"]
    opened = ran["exit_code"] == 0
    assert opened is (git == "commit"), ran
    assert (f"{home}/.git" in writable) is opened
    assert any(f"{home}/.git" in each for each in told["caveats"]) is opened
