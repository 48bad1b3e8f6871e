"""What the host mounts below a root while a command runs there stays outside, on a machine that shares its mounts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MOUNTING = """
import subprocess
import trio
from codespace.testing import open_bench

async def main():
    async with open_bench(workspace={"hidden_paths": [".env"]}) as bench:
        place = bench.root / "place"
        place.mkdir()
        script = "echo begun; while [ ! -e go ]; do sleep 0.02; done; ls -A place; echo x > place/mine"
        began = await bench.call("exec_command", command=["sh", "-c", script], wait_seconds=0)
        while "begun" not in began["chunk"]:
            began = await bench.call("read_process", process_id=began["process_id"], wait_seconds=10)
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        try:
            (place / ".env").write_text("SECRET")
            (bench.root / "go").touch()
            await bench.call("read_process", process_id=began["process_id"], cursor=6, wait_seconds=10)
            status = await bench.call("process_status", process_id=began["process_id"], wait_seconds=10)
            seen = await bench.call("read_process", process_id=began["process_id"], cursor=6)
            left = sorted(path.name for path in place.iterdir())
        finally:
            subprocess.run(["umount", place], check=True)
        print("told:", [status["state"], seen["chunk"], left, (place / "mine").exists()])

trio.run(main)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_mount_that_comes_while_a_command_runs_is_not_seen_by_it() -> None:
    shared = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh"]
    ran = subprocess.run([*shared, sys.executable, "-c", MOUNTING], capture_output=True, text=True, timeout=120)
    assert "told: ['exited', '', ['.env'], True]" in ran.stdout.splitlines(), ran.stdout + ran.stderr
