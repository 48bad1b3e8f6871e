"""What is refused from the start (SANDBOX 5: 38, 45), seen from outside: the installed program, over stdio.

A read-only profile takes no command and no patch; a root or readable path that holds CodeSpace's own
environment or state is not served at all, since a command could change there what runs next outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import codespace
from codespace.errors import Refusal
from codespace.testing.installed import over_stdio, script
from codespace.testing.site import Site, tree
from codespace.testing.wire import Wire

SECONDS = 60.0
ADD = "*** Begin Patch\n*** Add File: made\n+by a patch\n*** End Patch\n"
ATTEMPTS: dict[str, dict[str, Any]] = {
    "exec_command": {"command": ["/bin/sh", "-c", "echo ran >made"]},
    "apply_patch": {"patch": ADD},
}


@pytest.mark.parametrize("tool", ATTEMPTS)
async def test_a_read_only_workspace_takes_no_command_and_no_patch(tmp_path: Path, tool: str) -> None:
    site = Site(tmp_path)
    for name, profile in (("locked", "read-only"), ("open", "workspace-write")):
        site.add_workspace(name, profile=profile, files={"kept": "kept\n"})
    async with over_stdio(site, "locked") as visit:
        before = tree(site.root("locked"))
        for arguments in (ATTEMPTS[tool], {**ATTEMPTS[tool], "operation_key": "again"}):
            with pytest.raises(Refusal) as caught:
                await visit.call(tool, **arguments)
            assert caught.value.code == "UNAUTHORIZED"
            assert "read-only" in caught.value.message
        assert tree(site.root("locked")) == before
        assert (await visit.call("read", path="kept"))["content"] == "kept\n"
        info = await visit.call("workspace_info")
        assert info["execution"]["permissions"] == {"read": True, "write": False, "exec": False}
        assert (await visit.call("list_processes"))["processes"] == []
    async with over_stdio(site, "open") as visit:  # the same calls, where the profile allows them
        await visit.call(tool, **ATTEMPTS[tool])
        assert (site.root("open") / "made").exists()


def environment(place: Path) -> Path:
    """Make a virtual environment that has this CodeSpace in it; return its Python."""
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    ask = [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    here = [str(Path(codespace.__file__).parents[1]), *(path for path in sys.path if path.endswith("-packages"))]
    (packages / "codespace.pth").write_text("\n".join(here) + "\n")
    return python


def start(site: Site, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that has nobody to talk to: it ends by itself, whether it starts or not."""
    return subprocess.run(
        command,
        env=site.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def refused(site: Site, *command: str, naming: tuple[str, ...]) -> None:
    done = start(site, *command)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    for word in naming:
        assert word in done.stderr
    assert "audit_head" not in done.stderr  # there was no daemon, not for a moment


def test_an_environment_of_codespace_in_a_root_or_a_readable_path_is_refused_at_the_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    inside, beside = site.add_workspace("main"), tmp_path / "tools"
    own = (str(environment(inside / ".venv")), "-m", "codespace", "serve", "--stdio")
    refused(site, *own, naming=("workspaces.main.root", "CodeSpace's own Python"))

    readable = (str(environment(beside / "venv")), "-m", "codespace", "serve", "--stdio")
    done = start(site, *readable)  # the control: from beside the root it serves, until its client is gone
    assert (done.returncode, "daemon stopped" in done.stderr) == (0, True), done.stderr
    for path in (beside, beside / "venv"):
        site.workspaces["main"]["readable_paths"] = [str(path)]
        site.write()
        refused(site, *readable, naming=("readable_paths", "CodeSpace's own"))
    site.workspaces["main"]["readable_paths"] = [os.path.realpath(sys.base_prefix)]
    site.write()
    refused(site, *readable, naming=("readable_paths", "The Python that CodeSpace runs on", "from another Python"))


def test_the_state_directory_in_a_root_or_a_readable_path_is_refused_at_the_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    root = site.add_workspace("main")
    serve = (str(script()), "serve", "--stdio")
    with Wire(site) as wire:  # the control
        assert not wire.call("workspace_info").get("isError")
    for place in (root / "state", root / "deep" / "er"):
        site.extra_environ["CODESPACE_STATE_DIR"] = str(place)
        refused(site, *serve, naming=("workspaces.main.root", "state"))
        assert not place.exists()
    (root / "link").symlink_to(tmp_path / "state")
    site.extra_environ["CODESPACE_STATE_DIR"] = str(tmp_path / "state")
    for path in (tmp_path, tmp_path / "state", root / "link"):  # what a link leads to is what counts
        site.workspaces["main"]["readable_paths"] = [str(path)]
        site.write()
        refused(site, *serve, naming=("readable_paths", "state"))
    del site.workspaces["main"]["readable_paths"]
    site.workspaces["main"]["root"] = str(tmp_path / "state")
    site.write()
    refused(site, *serve, naming=("workspaces.main.root", "state"))
