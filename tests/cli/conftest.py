"""A command line in a home of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from codespace.cli import main


@dataclass(frozen=True)
class Said:
    """What one command answered."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    """A home directory, a project beside it, and a command line."""

    home: Path
    project: Path
    codespace: Callable[..., Said]

    @property
    def config(self) -> Path:
        return self.home / ".config/codespace/config.toml"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)

    def codespace(*words: str | Path) -> Said:
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse's own way out
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return Desk(home, project, codespace)
