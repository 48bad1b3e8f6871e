"""A command that is ended early ends in order: with the exit code of an interruption, and nothing left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codespace.runner.search.confinement import Prober
from codespace.sandbox import probe
from codespace.sandbox.system import Etc

SECONDS = 60


@contextmanager
def probing(tmp_path: Path, *words: str, shell: str = 'exec "$@"') -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose probe hangs in a bubblewrap that has said that it was started."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    os.mkfifo(started)
    os.mkfifo(ended)
    fake = tmp_path / "bwrap"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 99.0 && exit 0\n'
        f"exec 9<{ended}; echo started >{started}; exec cat <&9\n"
    )
    fake.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "config.toml").write_text(f'bwrap_path = "{fake}"\n')
    (tmp_path / "config.toml").chmod(0o600)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "CODESPACE_CONFIG": str(tmp_path / "config.toml"),
    }
    hearing, holding = os.open(started, os.O_RDONLY | os.O_NONBLOCK), os.open(ended, os.O_RDWR)
    argv = ["sh", "-c", shell, "sh", sys.executable, "-m", "codespace", *words]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        try:
            assert select.select([hearing], [], [], SECONDS)[0]
            yield command
        finally:
            command.kill()
            os.close(hearing)
            os.close(holding)  # a fake does not die with its parent


def folders(tmp_path: Path) -> list[str]:
    return [each.name[:16] for each in (tmp_path / "tmp").iterdir()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_doctor_that_is_ended_while_it_probes_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with probing(tmp_path, "doctor") as doctor:
        assert folders(tmp_path) == ["codespace-probe-"]
        doctor.send_signal(number)
        _, told = doctor.communicate(timeout=SECONDS)
        assert (doctor.returncode, told) == (130, b"")
        assert folders(tmp_path) == []


def test_a_doctor_in_the_background_of_a_shell_hears_what_ends_it(tmp_path: Path) -> None:
    with probing(tmp_path, "doctor", shell='trap "" INT; exec "$@"') as doctor:
        doctor.terminate()
        _, told = doctor.communicate(timeout=SECONDS)
        assert (doctor.returncode, told) == (130, b"")
        assert folders(tmp_path) == []


def test_what_shall_outlive_its_terminal_does(tmp_path: Path) -> None:
    with probing(tmp_path, "doctor", shell='trap "" HUP; exec "$@"') as doctor:
        ignored = next(
            int(line.split()[1], 16)
            for line in Path(f"/proc/{doctor.pid}/status").read_text().splitlines()
            if line.startswith("SigIgn:")
        )
    assert ignored & 1 << signal.SIGHUP - 1


def test_what_a_killed_doctor_left_is_swept_by_the_next_probe_of_either_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for look in (Prober(None, None).confinement, lambda: probe.look(None, Etc())):
        with probing(tmp_path, "doctor") as doctor:
            doctor.kill()
        assert folders(tmp_path) == ["codespace-probe-"]
        look()
        assert folders(tmp_path) == []
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
