"""The installed command at both doors. Over stdio each test has a daemon of its own; over HTTP all share one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
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
_OF_EACH_KIND = 30
# Over HTTP each test takes fresh ones, so that tests cannot meet in a root.


@dataclass(frozen=True)
class Hall:
    """The HTTP daemon of the session, and numbers of workspaces that nobody has used yet."""

    daemon: HttpDaemon
    numbers: Iterator[int]


@pytest.fixture(scope="session")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    """One HTTP daemon for the session."""
    site = Site(tmp_path_factory.mktemp("hall"))
    for kind, options in KINDS.items():
        for number in range(_OF_EACH_KIND):
            site.add_workspace(f"{kind}-{number}", **options)
    with HttpDaemon(site) as daemon:
        yield Hall(daemon, itertools.count())


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
    """The HTTP door alone, with workspaces that no other test uses."""
    return Door(hall.daemon.site, hall.daemon, f"-{next(hall.numbers)}")


@pytest.fixture(params=["stdio_door", "http_door"])
def door(request: pytest.FixtureRequest) -> Door:
    """Each door in turn."""
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, Door)
    return chosen


@pytest.fixture
async def visit(door: Door) -> AsyncIterator[Visit]:
    """A client at each door in turn, in a writable workspace."""
    async with door.visit() as visit:
        yield visit
