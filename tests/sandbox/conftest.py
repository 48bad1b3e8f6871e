"""Every attack as root and as an unprivileged account, with each bubblewrap that is here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cage import Cage, accounts, bubblewraps, caged


def pytest_report_header() -> str:
    """Say which bubblewraps are attacked; with one alone, why."""
    found = bubblewraps()
    if len(found) > 1:
        return f"bubblewraps under attack: {', '.join(found)}"
    return f"bubblewraps under attack: {', '.join(found) or 'none'} only (the system has no other installed)"


@pytest.fixture(params=[(uid, path) for uid in accounts() for path in bubblewraps()], ids=str)
def cage(request: pytest.FixtureRequest) -> Iterator[Cage]:
    """Lend an attacker for one test."""
    with caged(*request.param) as lent:
        yield lent
