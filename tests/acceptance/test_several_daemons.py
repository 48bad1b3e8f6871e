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


@pytest.fixture
def namesakes(tmp_path: Path) -> tuple[Site, Site]:
    """Two sites with one database, which give the same id to directories of the same content."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = Site(tmp_path / "one"), Site(tmp_path / "two")
    second.state = first.state
    for each in (first, second):
        each.add_workspace("main", files={"a.txt": "old\n"}, approvals="off")
    return first, second


async def test_a_key_used_in_a_directory_is_a_conflict_in_another_of_the_same_id_and_no_replay(
    namesakes: tuple[Site, Site],
) -> None:
    async with over_stdio(namesakes[0]) as first, over_stdio(namesakes[1]) as second:
        await first.call("apply_patch", patch=PATCH, operation_key="key")
        for tool, asked in (("apply_patch", {"patch": PATCH}), ("exec_command", {"command": ["true"]})):
            with pytest.raises(Refusal) as caught:
                await second.call(tool, operation_key="key", **asked)
            assert caught.value.code == "OPERATION_KEY_CONFLICT"
        assert not (second.root / "new.txt").exists()
        assert (await second.call("apply_patch", patch=PATCH, operation_key="its own"))["status"] == "applied"


async def test_what_is_granted_in_a_directory_runs_in_no_other_of_the_same_id(namesakes: tuple[Site, Site]) -> None:
    for each in namesakes:
        each.workspaces["main"]["approvals"] = "confirm"
        each.write()
    async with over_stdio(namesakes[0]) as first, over_stdio(namesakes[1]) as second:
        with pytest.raises(Refusal) as caught:
            await first.call("exec_command", command=["rm", "a.txt"])
        hold = caught.value.approval_id
        await first.call("approval_resolve", approval_id=hold, decision="grant")
        with pytest.raises(Refusal) as caught:
            await second.call("operation_resume", approval_id=hold)
        assert (caught.value.code, (second.root / "a.txt").exists()) == ("APPROVAL_CONFLICT", True)
        await first.call("operation_resume", approval_id=hold)
        assert not (first.root / "a.txt").exists()


async def test_a_hold_of_a_workspace_that_is_not_registered_here_is_not_there(tmp_path: Path, site: Site) -> None:
    site.add_workspace("main", approvals="confirm")
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other")
    other.state = site.state
    other.add_workspace("elsewhere", approvals="confirm")
    async with over_stdio(site) as first, over_stdio(other, "elsewhere") as stranger:
        with pytest.raises(Refusal) as caught:
            await first.call("exec_command", command=["echo", "CANARY"], stdin="CANARY")
        hold = caught.value.approval_id
        for tool, asked in (
            ("approval_status", {}),
            ("approval_resolve", {"decision": "grant"}),
            ("operation_resume", {}),
        ):
            with pytest.raises(Refusal) as caught:
                await stranger.call(tool, approval_id=hold, **asked)
            assert caught.value.code == "APPROVAL_NOT_FOUND"
            assert "CANARY" not in str(caught.value.body())
        assert (await first.call("approval_status", approval_id=hold))["state"] == "pending"
