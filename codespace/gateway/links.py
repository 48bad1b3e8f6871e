"""What the daemon's start found of hard links that lead out of a root: counted in the background, said and kept.

It prevents nothing: a file with a name outside is one file, and whoever uses the workspace is told so.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog
import trio

from codespace.contract import HardLinks, Runner, Workspace
from codespace.errors import Refusal
from codespace.sandbox.inventory import hardlinks

log = structlog.get_logger("codespace.links")


class Links:
    """The counts of one daemon, by workspace."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._found: dict[str, HardLinks] = {}

    async def count(self, workspaces: Iterable[Workspace]) -> None:
        """Count one root after the other where commands can run, and warn of what leads out. Never raises.

        Cancel: counts that are not done are not known.
        """
        for workspace in workspaces:
            if workspace.profile == "workspace-write" and workspace.environment_kind == "host":
                await self._count(workspace)

    async def _count(self, workspace: Workspace) -> None:
        try:
            found = self._found[workspace.id] = await self._runner.hard_links(workspace)
        except Refusal as refusal:
            log.info("hard links were not counted", workspace=workspace.id, problem=refusal.message)
        except Exception:
            log.exception("hard links could not be counted", workspace=workspace.id)
        else:
            if found.outside:
                log.warning(
                    "files of a workspace have names outside it",
                    workspace=workspace.id,
                    number=found.outside,
                    examples=list(found.examples),
                    complete=found.complete,
                )
            elif not found.complete:
                log.info("hard links were not counted whole", workspace=workspace.id)
        await trio.lowlevel.checkpoint()

    def caveats(self, workspace: Workspace) -> list[str]:
        """Return what workspace_info has to say of it, as far as the count has come."""
        found = self._found.get(workspace.id)
        told = None if found is None else hardlinks.sentence(found)
        return [] if told is None else [f"At the daemon's start: {told}"]
