"""Two daemons on one root, as when two desktop clients start their own: one mutation at a time all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from codespace.errors import Refusal
from codespace.testing.installed import over_stdio
from codespace.testing.site import Site

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+new\n*** End Patch\n"


@pytest.fixture(params=["one database", "two databases"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Site, Site]:
    """Two sites with the same root; they share the state directory, or nothing but the root."""
    (tmp_path / "one").mkdir()
    one = Site(tmp_path / "one")
    root = one.add_workspace("main")
    if request.param == "one database":
        return one, one
    (tmp_path / "two").mkdir()
    two = Site(tmp_path / "two")
    two.add_workspace("main", root=root)
    return one, two


async def test_a_command_of_one_daemon_makes_the_root_busy_for_the_other_until_it_is_gone(
    sites: tuple[Site, Site],
) -> None:
    async with over_stdio(sites[1]) as second:
        async with over_stdio(sites[0]) as first:
            await first.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
            with pytest.raises(Refusal) as caught:
                await second.call("apply_patch", patch=PATCH)
            assert caught.value.code == "WORKSPACE_BUSY"
            assert caught.value.details
            assert not (second.root / "new.txt").exists()
            assert (await second.call("find"))["paths"] == []
        # The first daemon ended with its client, and its command with it.
        assert (await second.call("apply_patch", patch=PATCH))["status"] == "applied"
        assert (await second.call("read", path="new.txt"))["content"] == "new\n"


async def test_a_key_used_at_one_daemon_is_known_at_the_other_that_shares_its_database(site: Site) -> None:
    async with over_stdio(site) as first, over_stdio(site) as second:
        applied = await first.call("apply_patch", patch=PATCH, operation_key="shared key")
        again = await second.call("apply_patch", patch=PATCH, operation_key="shared key")
        assert (again["replayed"], again["operation_id"]) == (True, applied["operation_id"])
