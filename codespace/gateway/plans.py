"""What a patch would do: planned for one that is carried out, shown for one that is checked or held.

Nothing here is recorded or written, and no plan is kept behind what shows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio

from codespace import ids, limits
from codespace.contract import PatchPlan, Runner, Workspace
from codespace.drive import Motion, Nothing
from codespace.errors import Refusal
from codespace.gateway.request import Request
from codespace.gateway.view import plan_view
from statemachines.patch import Patch

log = structlog.get_logger("codespace.patching")

Planning = Callable[[Workspace, str, Mapping[str, Any]], Awaitable[PatchPlan]]
"""Plans one tool's request, from its arguments, under an operation's id; writes nothing."""


class Plans:
    """Makes plans and shows them.

    Args:
        planning: How the requests of each tool are planned.
    """

    def __init__(self, runner: Runner, planning: Mapping[str, Planning]) -> None:
        self._runner = runner
        self._planning = planning
        self._looks: dict[str, trio.CapacityLimiter] = {}

    async def make(self, tool: str, workspace: Workspace, token: str, arguments: Mapping[str, Any]) -> PatchPlan:
        """Return the plan of a request, which the runner holds under `token` until it is finished or forgotten.

        Raises: Refusal; nothing was written.
        """
        return await self._planning[tool](workspace, token, arguments)

    async def check(self, workspace: Workspace, patch: str, expected: Mapping[str, str]) -> dict[str, Any]:
        """Return what the patch would do now."""
        motion = Motion(Patch, "preview", "minted", Nothing())
        await motion.move("admitted")
        async with self._shown("apply_patch", workspace, {"patch": patch, "expected_versions": expected}) as (plan, _):
            await motion.move("previewed")
            return {"status": motion.state, "replayed": False, **plan_view(plan)}

    async def preview(self, request: Request) -> dict[str, Any]:
        """Return the plan as a hold shows it.

        Raises: Refusal LIMIT_REACHED where the diff cannot be shown whole: what is granted must be seen.
        """
        async with self._shown(request.tool, request.workspace, request.arguments) as (plan, token):
            shown = plan_view(plan)
            if not plan.diff_truncated:
                return shown
            if request.workspace.approvals != "operator":  # a caller who decides sees no more than an answer holds
                raise _too_large("DIFF_BYTES", limits.DIFF_BYTES)
            return shown | {"diff": await self._whole_diff(request.workspace, token), "diff_truncated": False}

    async def forget(self, workspace: Workspace, token: str) -> None:
        """Let the runner drop a plan; a failure changes nothing that was shown."""
        try:
            await self._runner.finish(workspace, token)
        except Exception as problem:
            log.warning("a plan could not be dropped", workspace_id=workspace.id, problem=repr(problem))

    @asynccontextmanager
    async def _shown(
        self, tool: str, workspace: Workspace, arguments: Mapping[str, Any]
    ) -> AsyncIterator[tuple[PatchPlan, str]]:
        """Plan for the block, under a token that the runner knows the plan by."""
        token = ids.mint("plan-")
        # Fewer than the runner holds: the plan of an operation must not make room for looks.
        looks = self._looks.setdefault(workspace.id, trio.CapacityLimiter(limits.PLANS_HELD // 2))
        async with looks:
            try:
                yield await self.make(tool, workspace, token, arguments), token
            except Refusal as refusal:
                refusal.details = (refusal.details or {}) | {"status": "rejected", "changes": [], "replayed": False}
                raise
            finally:
                # Protects the runner's memory from plans of callers who left; plans that are held are bounded anyhow.
                with trio.move_on_after(limits.FORGET_SECONDS, shield=True):
                    await self.forget(workspace, token)

    async def _whole_diff(self, workspace: Workspace, token: str) -> str:
        """Return the whole diff of a plan, for a person who reads it page by page. Raises: Refusal LIMIT_REACHED."""
        pages: list[str] = []
        page = await self._runner.diff(workspace, token, 0)
        while page.total <= limits.HOLD_DIFF_BYTES:
            pages.append(page.text)
            if page.cursor >= page.total:
                return "".join(pages)
            page = await self._runner.diff(workspace, token, page.cursor)
        raise _too_large("HOLD_DIFF_BYTES", limits.HOLD_DIFF_BYTES)


def _too_large(limit: str, maximum: int) -> Refusal:
    return Refusal(
        "LIMIT_REACHED",
        "The diff is too large to be shown whole, and nothing is granted unseen; nothing was held or written.",
        next_step="Send it as several smaller patches.",
        details={"limit": limit, "maximum": maximum},
    )
