"""What `doctor` finds of files that commands can write and that have another name outside their root."""

from __future__ import annotations

from collections.abc import Iterator

from codespace.cli.finding import Finding
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.protected import protected_paths
from codespace.sandbox.box import Sandbox
from codespace.sandbox.inventory import hardlinks
from codespace.settings import Settings

_FIX = (
    "Give each a file of its own (`cp -p FILE FILE.own && mv FILE.own FILE`), or have the tool that made them copy "
    "instead of link (pnpm: package-import-method=copy; uv: UV_LINK_MODE=copy)."
)


def findings(settings: Settings, sandbox: Sandbox) -> Iterator[Finding]:
    """Yield one for each workspace that takes commands and has such files, or may have some that were not seen."""
    for workspace in settings.workspaces.values():
        if workspace.profile == "workspace-write" and workspace.environment_kind == "host":
            yield from _finding(workspace, sandboxed=_is_sandboxed(sandbox, workspace))


def _is_sandboxed(sandbox: Sandbox, workspace: Workspace) -> bool:
    try:
        return sandbox.rung(workspace) == "linux-sandbox"
    except Refusal:
        return False


def _finding(workspace: Workspace, *, sandboxed: bool) -> Iterator[Finding]:
    subject = f"links in {workspace.id}"
    try:
        found = hardlinks.count(workspace, protected_paths(workspace), _at_once, sandboxed=sandboxed)
    except Refusal as refusal:
        yield Finding("fail", subject, refusal.message, refusal.next_step or "")
        return
    told = hardlinks.sentence(found)
    if told is None:
        yield Finding("pass", subject, "no file that commands can write has another name outside the root")
    else:
        yield Finding("limit", subject, told, _FIX if found.outside else "")


def _at_once() -> None:
    """A person waits: no pause."""
