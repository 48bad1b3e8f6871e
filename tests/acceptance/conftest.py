"""The installed command at both doors. Over stdio each test has a daemon of its own; over HTTP all share one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from codespace.testing.door import Door
from codespace.testing.installed import HttpDaemon, Visit
from codespace.testing.site import Site

KINDS: dict[str, dict[str, Any]] = {
    "main": {},
    "locked": {"profile": "read-only"},
    "held": {"approvals": "confirm"},
    "shared": {"occupancy": "shared"},
}
# Kinds of workspaces that a test may ask for.
IN_THE_HALL = {"main": 60, "locked": 5, "held": 20, "shared": 5}
# Over HTTP each test takes fresh ones, so that tests cannot meet in a root.


class Hall:
    """The HTTP daemon of the session, and its workspaces that nobody has used yet."""

    def __init__(self, daemon: HttpDaemon) -> None:
        self.daemon = daemon
        self._next = {kind: itertools.count() for kind in KINDS}

    def door(self) -> Door:
        return Door(self.daemon.site, self.daemon, lambda kind: f"{kind}-{next(self._next[kind])}")


@pytest.fixture(scope="session")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    """One HTTP daemon for the session."""
    site = Site(tmp_path_factory.mktemp("hall"))
    for kind, options in KINDS.items():
        for number in range(IN_THE_HALL[kind]):
            site.add_workspace(f"{kind}-{number}", **options)
    with HttpDaemon(site) as daemon:
        yield Hall(daemon)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with one workspace of each kind, for daemons of the test's own."""
    site = Site(tmp_path)
    for kind, options in KINDS.items():
        site.add_workspace(kind, **options)
    return site


@pytest.fixture
def stdio_door(site: Site) -> Door:
    """The stdio door alone: each visit starts a daemon on the same site."""
    return Door(site)


@pytest.fixture
def http_door(hall: Hall) -> Door:
    """The HTTP door alone."""
    return hall.door()


@pytest.fixture(params=["stdio", "http"])
def door(request: pytest.FixtureRequest, site: Site, hall: Hall) -> Door:
    """Each door in turn."""
    return Door(site) if request.param == "stdio" else hall.door()


@pytest.fixture
async def visit(door: Door) -> AsyncIterator[Visit]:
    """A client at each door in turn, in a writable workspace."""
    async with door.visit() as visit:
        yield visit
