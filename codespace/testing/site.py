"""Where a test's daemon lives: one folder with a config file, a state directory and workspace roots.

The configuration is written in the operator's own format and read back by the product, so a test
can say nothing to the daemon that an operator could not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RUNNER: Final = "CODESPACE_RUNNER"
# The one variable that a test run may set for all its daemons: `pytest --runner uds`.
Files = Mapping[str, str | bytes]


class Site:
    """A folder for one daemon, or for several that share a database or a root.

    Args:
        folder: An existing empty folder; the caller removes it.
        options: Global keys of the config file (`results`, `approval_expiry_seconds`, ...).
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.home = folder / "home"
        self.config = folder / "config.json"
        self.options: dict[str, Any] = dict(options)
        self.workspaces: dict[str, dict[str, Any]] = {}
        self.extra_environ: dict[str, str] = {}
        self.home.mkdir(exist_ok=True)

    def add_workspace(
        self, name: str = "main", *, files: Files | None = None, root: Path | None = None, **options: Any
    ) -> Path:
        """Register a workspace; its root is created below the folder unless another one is named.

        Args:
            name: Its id.
            files: Text or bytes to put there, by relative path.
            root: An existing directory to register instead of a new one.
            options: Keys of the workspace's config; `profile` is `workspace-write` unless said.
        Returns: The root.
        """
        place = self.folder / "roots" / name if root is None else root
        place.mkdir(parents=True, exist_ok=True)
        put_files(place, files or {})
        self.workspaces[name] = {"root": str(place), "profile": "workspace-write", **options}
        self.write()
        return place

    def root(self, name: str = "main") -> Path:
        """Return the root of a registered workspace."""
        return Path(self.workspaces[name]["root"])

    def write(self) -> None:
        """Write the config file as it is now; the daemon reads it at its next start."""
        self.config.write_text(json.dumps({"workspaces": self.workspaces, **self.options}, indent=1))
        self.config.chmod(0o600)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the daemon: nothing of the developer's own but PATH and TMPDIR, and the run's runner."""
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", RUNNER) if name in os.environ}
        return {
            **kept,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_STATE_HOME": str(self.home / ".state"),
            "LANG": "C.UTF-8",
            "CODESPACE_CONFIG": str(self.config),
            "CODESPACE_STATE_DIR": str(self.state),
            **self.extra_environ,
        }


def put_files(root: Path, files: Files) -> None:
    """Write files below a root, making their directories."""
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def tree(root: Path) -> dict[str, bytes]:
    """Return every regular file below a root with its bytes, leftovers of a patch included.

    One that goes away while it is looked at is left out, as one that went a moment before would be.
    """
    found: dict[str, bytes] = {}
    for folder, _, names in os.walk(root):  # which takes no offence at a directory that goes away
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    found[str(path.relative_to(root))] = path.read_bytes()
    return dict(sorted(found.items()))
