"""One way into the installed daemon, as a test parametrised over both sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

from codespace.testing.installed import HttpDaemon, Visit, over_http, over_stdio
from codespace.testing.site import Site


class Door:
    """A way in. Every visit of one door sees the same workspaces.

    Args:
        site: Where the daemon lives.
        daemon: The running daemon behind HTTP; None: each visit starts its own over stdio.
        take: Names a workspace of a kind that nobody else uses, where tests share the daemon.
    """

    def __init__(
        self, site: Site, daemon: HttpDaemon | None = None, take: Callable[[str], str] = lambda kind: kind
    ) -> None:
        self.site = site
        self.daemon = daemon
        self.name: Literal["stdio", "http"] = "stdio" if daemon is None else "http"
        self._take = take
        self._taken: dict[str, str] = {}

    def visit(self, kind: str = "main", *, mode: str = "legacy") -> AbstractAsyncContextManager[Visit]:
        """Connect an official client that works in this test's workspace of a kind."""
        if self.daemon is None:
            return over_stdio(self.site, self.workspace_id(kind), mode=mode)
        return over_http(self.site, self.daemon.url, self.daemon.token, self.workspace_id(kind), mode=mode)

    def root(self, kind: str = "main") -> Path:
        """Return the root of this test's workspace of a kind."""
        return self.site.root(self.workspace_id(kind))

    def workspace_id(self, kind: str = "main") -> str:
        """Return the id of this test's workspace of a kind."""
        if kind not in self._taken:
            self._taken[kind] = self._take(kind)
        return self._taken[kind]
