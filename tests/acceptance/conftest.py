"""The installed command at both doors. Tests share one daemon at each, or start their own where its end matters."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codespace.testing.door import Door
from codespace.testing.installed import HttpDaemon, Visit, over_stdio
from codespace.testing.portal import Portal, SharedVisit
from codespace.testing.site import Site

KINDS: dict[str, dict[str, Any]] = {
    "main": {},
    "locked": {"profile": "read-only"},
    "held": {"approvals": "confirm"},
    "shared": {"occupancy": "shared"},
}
# Kinds of workspaces that a test may ask for.
OF_EACH_KIND = {"main": 70, "locked": 5, "held": 20, "shared": 5}
# Each test takes fresh ones, so that tests that share a daemon cannot meet in a root.


class Halls:
    """The two daemons that tests share, and their workspaces that nobody has used yet."""

    def __init__(self, daemon: HttpDaemon, portal: Portal) -> None:
        self.daemon = daemon
        self.portal = portal
        self._next = {kind: itertools.count() for kind in KINDS}

    def take(self, kind: str) -> str:
        """Return the id of a workspace of a kind that no other test uses."""
        return f"{kind}-{next(self._next[kind])}"

    def http_door(self) -> Door:
        return Door(self.daemon.site, self.daemon, self.take)


class SharedDoor(Door):
    """The stdio door of the session: every visit is one more look through the one client."""

    def __init__(self, halls: Halls) -> None:
        super().__init__(halls.portal.visit.site, take=halls.take)
        self._portal = halls.portal

    @asynccontextmanager
    async def visit(self, kind: str = "main", *, mode: str = "legacy") -> AsyncIterator[Visit]:
        assert mode == "legacy", "a client of another mode needs a door of its own"
        yield SharedVisit(self._portal, self.workspace_id(kind))


def large_site(folder: Path) -> Site:
    """Return a site with many workspaces of each kind."""
    site = Site(folder)
    for kind, options in KINDS.items():
        for number in range(OF_EACH_KIND[kind]):
            site.add_workspace(f"{kind}-{number}", **options)
    return site


@pytest.fixture(scope="session")
def halls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halls]:
    """One daemon at each door for the session."""
    behind_http, behind_stdio = (large_site(tmp_path_factory.mktemp(name)) for name in ("http", "stdio"))
    with HttpDaemon(behind_http) as daemon, Portal(lambda: over_stdio(behind_stdio, "main-0")) as portal:
        yield Halls(daemon, portal)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with one workspace of each kind, for daemons of the test's own."""
    site = Site(tmp_path)
    for kind, options in KINDS.items():
        site.add_workspace(kind, **options)
    return site


@pytest.fixture
def stdio_door(site: Site) -> Door:
    """The stdio door alone: each visit is a new client that starts a daemon on the same site."""
    return Door(site)


@pytest.fixture
def http_door(halls: Halls) -> Door:
    """The HTTP door alone."""
    return halls.http_door()


@pytest.fixture(params=["stdio", "http"])
def own_door(request: pytest.FixtureRequest, site: Site, halls: Halls) -> Door:
    """Each door in turn, with a client of the test's own at each visit."""
    return Door(site) if request.param == "stdio" else halls.http_door()


@pytest.fixture(params=["stdio", "http"])
def door(request: pytest.FixtureRequest, halls: Halls) -> Door:
    """Each door in turn."""
    return SharedDoor(halls) if request.param == "stdio" else halls.http_door()


@pytest.fixture
async def visit(door: Door) -> AsyncIterator[Visit]:
    """A client at each door in turn, in a writable workspace."""
    async with door.visit() as visit:
        yield visit
