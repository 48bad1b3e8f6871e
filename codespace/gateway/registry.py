"""The registered workspaces. Only configuration fills it; no request can add, widen or edit one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from codespace.contract import Workspace
from codespace.display import display
from codespace.errors import Refusal


class Registry:
    """Finds a workspace by its id."""

    def __init__(self, workspaces: Mapping[str, Workspace]) -> None:
        self._workspaces = dict(workspaces)

    def __iter__(self) -> Iterator[Workspace]:
        return iter(self._workspaces.values())

    def knows(self, workspace_id: str) -> bool:
        return workspace_id in self._workspaces

    def of_root(self, root: str) -> Workspace | None:
        """Return the workspace of a directory: records are known by it, an id may be another directory's elsewhere."""
        return next((each for each in self if each.root == root), None)

    def find(self, workspace_id: str | None) -> Workspace:
        """Return the workspace; without an id, the only one there is.

        Raises: Refusal WORKSPACE_NOT_FOUND, or INVALID_ARGUMENT where the id is needed to choose.
        """
        if not self._workspaces:
            raise Refusal(
                "WORKSPACE_NOT_FOUND",
                "The operator has registered no workspace.",
                next_step="Ask the operator to register a directory with `codespace init DIR` and to restart.",
            )
        if workspace_id is not None:
            return self._known(workspace_id)
        if len(self._workspaces) == 1:
            return next(iter(self._workspaces.values()))
        raise Refusal(
            "INVALID_ARGUMENT",
            "workspace_id is needed: more than one workspace is registered.",
            next_step="Send workspace_id; details list the registered ones.",
            details={"argument": "workspace_id", "workspaces": sorted(self._workspaces)},
        )

    def _known(self, workspace_id: str) -> Workspace:
        workspace = self._workspaces.get(workspace_id)
        if workspace is None:
            shown = display(workspace_id, limit=80)
            raise Refusal(
                "WORKSPACE_NOT_FOUND",
                f"No workspace {shown!r} is registered.",
                details={"workspaces": sorted(self._workspaces)},
            )
        return workspace
