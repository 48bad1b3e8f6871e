"""An operator's home in a temporary folder, for tests of settings and of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codespace.settings import Settings, SettingsError, load


class Home:
    """A home directory with one project beside it, and the environment that points there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "home"
        self.project = folder / "project"
        self.path.mkdir()
        self.project.mkdir()
        self.environ = {"HOME": str(self.path)}

    @property
    def state(self) -> Path:
        return self.path / ".local/state/codespace"

    def write(self, document: Any, name: str = "config.json") -> Path:
        """Write a configuration outside of the default place and point CODESPACE_CONFIG to it."""
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        path.chmod(0o600)
        self.environ["CODESPACE_CONFIG"] = str(path)
        return path

    def workspace(self, **keys: Any) -> dict[str, Any]:
        """Return a document with one workspace `app` on the project."""
        return {"workspaces": {"app": {"root": str(self.project), **keys}}}

    def load(self, document: Any = None, **environ: str) -> Settings:
        if document is not None:
            self.write(document)
        return load({**self.environ, **environ})

    def refusal(self, document: Any = None, **environ: str) -> SettingsError:
        """Return the error of a load that must fail, and that must have made nothing."""
        with pytest.raises(SettingsError) as raised:
            self.load(document, **environ)
        assert raised.value.problem.endswith("."), raised.value.problem
        assert raised.value.fix
        return raised.value
