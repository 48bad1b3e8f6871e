"""The open roots of the registered workspaces: each opened once, and refused once it was replaced."""

from __future__ import annotations

import threading

from codespace.beneath import ALWAYS_HIDDEN, Root
from codespace.contract import Workspace


class Roots:
    """One `Root` for each workspace, kept open so that a directory put in its place is noticed.

    Safe to use from several threads. Roots see neither hidden_paths nor what a patch has staged.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, bool, tuple[str, ...]], Root] = {}
        self._lock = threading.Lock()

    def of(self, workspace: Workspace) -> Root:
        """Return the workspace's root.

        Raises: Refusal FILE_NOT_FOUND where its directory is gone, FILE_OPERATION_FAILED where it was replaced.
        """
        key = (workspace.root, workspace.allow_submounts, workspace.hidden_paths)
        root = self._open.get(key)
        if root is None:
            root = self._first(key, workspace)
        root.check_in_place()
        return root

    def _first(self, key: tuple[str, bool, tuple[str, ...]], workspace: Workspace) -> Root:
        """Open the root outside the lock, since a hung filesystem must hold up its own workspace alone."""
        opened = Root.open(
            workspace.root,
            allow_submounts=workspace.allow_submounts,
            hidden=(*workspace.hidden_paths, *ALWAYS_HIDDEN),
        )
        with self._lock:
            root = self._open.setdefault(key, opened)
        if root is not opened:
            opened.close()
        return root

    def close(self) -> None:
        """Close every root. For the end of the daemon, when no call is under way any more."""
        with self._lock:
            for root in self._open.values():
                root.close()
            self._open.clear()
