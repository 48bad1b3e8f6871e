"""What a command that is killed leaves behind is removed by the next one of its kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from codespace.sandbox.probefolder import open_folder
from codespace.testing import processes

SECONDS = 60

KILLED = """
import os, signal, sys
from codespace import beneath
from codespace.__main__ import main
from codespace.cli import init

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

init.check = beneath.renameat2 = die  # what each of them calls while its folder is there
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("words", "prefix", "place"),
    [(["init", "project"], "codespace-init-", "tmp"), (["doctor"], "doctor-", "state")],
)
def test_the_folder_of_a_command_that_was_killed_goes_with_the_next(
    tmp_path: Path, words: list[str], prefix: str, place: str
) -> None:
    for name in ("tmp", "project", "state"):
        (tmp_path / name).mkdir(mode=0o700)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "CODESPACE_STATE_DIR": str(tmp_path / "state"),
    }

    def run(*command: str) -> int:
        argv = [sys.executable, *command, *words]
        return subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, timeout=SECONDS).returncode

    assert run("-c", KILLED) == -signal.SIGKILL
    assert len(list((tmp_path / place).glob(f"{prefix}*"))) == 1
    assert run("-m", "codespace") in (0, 1)
    assert list((tmp_path / place).glob(f"{prefix}*")) == []


def test_the_folder_of_a_demo_that_was_killed_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "codespace", "demo"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as demo:
        assert demo.stdout is not None
        while b" 2. " not in demo.stdout.readline():
            pass
        below = processes.descendants(demo.pid)
        demo.kill()
    assert not processes.still_alive_after(list(below), SECONDS), "its daemon ends with it"
    assert [each.name[:15] for each in tmp_path.iterdir()] == ["codespace-demo-"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_folder("codespace-demo-") as folder:
        assert [str(each) for each in tmp_path.iterdir()] == [folder]
