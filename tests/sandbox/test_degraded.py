"""The lower rung: what Landlock alone keeps, for an operator who allows it, and that it is called what it is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from codespace.contract import SpawnRequest, Workspace
from codespace.runner.supervisor import Supervisor
from codespace.sandbox import landlock
from codespace.sandbox.box import Sandbox


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    (tmp_path / "root").mkdir()
    with trio.fail_after(60):
        async with Supervisor(str(tmp_path / "state"), sandbox=Sandbox(str(tmp_path / "no-bubblewrap"))) as opened:
            yield opened


async def run(supervisor: Supervisor, workspace: Workspace, script: str, name: str) -> tuple[str, str]:
    descriptor = os.open(workspace.root, os.O_PATH | os.O_DIRECTORY)
    try:
        request = SpawnRequest(name, ("sh", "-c", script), ".", {}, 30.0)
        spawned = await supervisor.spawn(workspace, request, descriptor)
    finally:
        os.close(descriptor)
    await supervisor.wait_exit(name)
    chunk = await supervisor.output(name, cursor=0, stream="combined", limit_bytes=65_536, encoding="text")
    return spawned.sandbox, chunk.text


async def test_reads_and_writes_stay_in_their_places_and_the_run_says_landlock(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("canary\n")
    script = (
        f"cat {tmp_path}/secret; echo x >{tmp_path}/new; echo in >file; cat file; "
        "echo h >$HOME/h && cat $HOME/h; git --version"
    )
    plain = Workspace("w", str(tmp_path / "root"), profile="workspace-write")
    sandbox, text = await run(supervisor, plain, script, "proc-1")
    assert sandbox == "none"
    assert "canary" in text  # nothing is in force, and it is said
    (tmp_path / "new").unlink()
    degraded = Workspace("w", str(tmp_path / "root"), profile="workspace-write", allow_degraded=True)
    sandbox, text = await run(supervisor, degraded, script, "proc-2")
    assert landlock.version(), "this kernel has no Landlock: the rung cannot be shown here"
    assert sandbox == "landlock"
    assert "canary" not in text
    assert "in\nh\ngit version" in text
    assert not (tmp_path / "new").exists()
