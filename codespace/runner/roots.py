"""The open roots of the registered workspaces: each opened once, and refused once it was replaced."""

from __future__ import annotations

import os
import threading

from codespace.beneath import ALWAYS_HIDDEN, Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import shortage


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
        root = self._open.get(key) or self._first(key, workspace)
        root.check_in_place()
        return root

    def _first(self, key: tuple[str, bool, tuple[str, ...]], workspace: Workspace) -> Root:
        """Open the root outside the lock, since a hung filesystem must hold up its own workspace alone."""
        try:
            opened = Root.open(
                workspace.root,
                allow_submounts=workspace.allow_submounts,
                hidden=(*workspace.hidden_paths, *ALWAYS_HIDDEN),
            )
        except Refusal as refused:
            shortage.advise(refused)
            raise
        if not _is_itself(opened):
            opened.close()
            raise Refusal(
                "FILE_OPERATION_FAILED",
                "A symbolic link is on the way to the workspace root, and was not when the daemon started. "
                "Nothing was done.",
                next_step="Ask the operator to put the directory back, or to restart the daemon.",
                details={"root_replaced": True},
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


def _is_itself(root: Root) -> bool:
    """Return whether no link led to what was opened: the settings name every root by its real path."""
    try:
        return os.readlink(f"/proc/self/fd/{root.fd}") == root.path
    except OSError:
        return os.path.realpath(root.path) == root.path
