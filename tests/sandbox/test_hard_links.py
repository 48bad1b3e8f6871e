"""A hard link in the root to a file outside (SANDBOX 5: 42): nothing keeps it in, so it is counted and told."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.contract import HardLinks, Workspace
from codespace.runner.inprocess import open_runner
from codespace.runner.protected import PROTECTED
from codespace.sandbox.inventory import hardlinks
from codespace.testing import Bench, open_bench
from codespace.testing.installed import HttpDaemon, over_http, script
from codespace.testing.site import Site

from .cage import Cage
from .until import PATIENCE_SECONDS, until


def never_pause() -> None:
    """The pace of a count that nobody else waits for."""


def counted(workspace: Workspace, *protected: str, sandboxed: bool = True) -> HardLinks:
    return hardlinks.count(workspace, protected, never_pause, sandboxed=sandboxed)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A root with a file that has a second name outside, beside one that has both inside."""
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    (tmp_path / "store").write_text("of the store\n")
    os.link(tmp_path / "store", root / "deep/linked")
    (root / "twice").write_text("of the root\n")
    os.link(root / "twice", root / "deep/er/again")
    (root / "once").write_text("plain\n")
    return Workspace("w", str(root), profile="workspace-write")


def test_a_command_writes_through_a_hard_link_and_the_link_was_counted_before(cage: Cage) -> None:
    outside = cage.base / "home" / "store"
    outside.write_text("before\n")
    os.chown(outside, cage.uid, cage.uid)
    beside = cage.base / "home" / "beside"
    beside.write_text("before\n")
    os.link(outside, cage.root / "linked")
    cage.put("twice")
    os.link(cage.root / "twice", cage.root / "again")
    found = cage.does(lambda: counted(cage.workspace))
    assert found == HardLinks(1, ("linked",), complete=True)
    # The limit that is listed: the mount cannot tell the two names apart.
    assert cage.sh(f"echo after >linked; echo after >{beside}").code != 0
    assert outside.read_text() == "after\n"
    assert beside.read_text() == "before\n"  # without a link there is no way there
    # No command makes one: what is outside has no name inside.
    assert cage.sh(f"ln {outside} made").code != 0
    assert cage.does(lambda: counted(cage.workspace)) == found


def test_only_files_with_a_name_outside_are_counted(workspace: Workspace) -> None:
    assert counted(workspace) == HardLinks(1, ("deep/linked",), complete=True)
    (Path(workspace.root) / "deep/linked").unlink()
    assert counted(workspace) == HardLinks(0, (), complete=True)
    (Path(workspace.root) / "twice").rename(Path(workspace.root).parent / "away")
    assert counted(workspace).examples == ("deep/er/again",)


def test_what_no_command_can_write_is_not_counted(workspace: Workspace) -> None:
    root, store = Path(workspace.root), Path(workspace.root).parent / "store"
    for name in (".git/objects/ab", ".mcp.json", "secret"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(store, root / name)
    (root / "deep/linked").unlink()
    closed = Workspace("w", workspace.root, profile="workspace-write", hidden_paths=("secret",))
    assert counted(closed, *PROTECTED).outside == 0
    assert counted(closed).examples == (".mcp.json",)
    assert counted(workspace, *PROTECTED).examples == ("secret",)
    writable = Workspace("w", workspace.root, profile="workspace-write", hidden_paths=("secret",), git="unprotected")
    assert counted(writable, *PROTECTED).examples == (".git/objects/ab",)
    assert counted(closed, *PROTECTED, sandboxed=False).outside == 1  # the three names are of one file
    assert counted(closed, *PROTECTED, sandboxed=False).examples[0] in (".git/objects/ab", ".mcp.json", "secret")


def test_a_root_that_is_too_large_is_counted_as_far_as_time_and_entries_go(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (Path(workspace.root) / f"{number}").write_text("")
    monkeypatch.setattr("codespace.limits.HARD_LINK_BATCH", 8)
    assert counted(workspace).complete
    monkeypatch.setattr("codespace.limits.HARD_LINK_ENTRIES", 100)
    assert not counted(workspace).complete
    monkeypatch.undo()
    monkeypatch.setattr("codespace.limits.HARD_LINK_BATCH", 8)
    monkeypatch.setattr("codespace.limits.HARD_LINK_SECONDS", 0.0)
    found = counted(workspace)
    assert not found.complete
    assert "not known" in str(hardlinks.sentence(found)) or "may be more" in str(hardlinks.sentence(found))


def test_a_directory_that_is_closed_makes_the_count_unsure(cage: Cage) -> None:
    closed = cage.folder("closed")
    assert cage.does(lambda: counted(cage.workspace)).complete
    closed.chmod(0)
    found = cage.does(lambda: counted(cage.workspace))
    assert found.complete == (cage.uid == 0)  # root looks into every directory
    assert ("not known" in str(hardlinks.sentence(found))) == (cage.uid != 0)


def test_a_tree_that_goes_meanwhile_does_not(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespace.limits.HARD_LINK_BATCH", 1)
    waited = list[bool]()

    def remove() -> None:
        waited.append(True)
        shutil.rmtree(workspace.root, ignore_errors=True)

    assert hardlinks.count(workspace, (), remove, sandboxed=True).complete
    assert waited


def test_names_that_act_on_a_terminal_are_shown_escaped_and_only_the_first_ones(workspace: Workspace) -> None:
    for number in range(30):
        outside = Path(workspace.root).parent / f"outside-{number}"
        outside.write_text("")
        os.link(outside, Path(workspace.root) / f"\x1b[31m{number:02}")
    found = counted(workspace)
    assert (found.outside, len(found.examples)) == (31, 10)
    told = str(hardlinks.sentence(found))
    assert "31 files have another name outside the root" in told
    assert "\x1b" not in told
    assert told.endswith(", ....")


async def caveat(bench: Bench) -> str:
    """Return what workspace_info says of links once the count is in."""
    await wait_counted(bench)
    info = await bench.call("workspace_info")
    (found,) = [each for each in info["execution"]["caveats"] if "At the daemon's start" in each]
    return str(found)


async def test_workspace_info_lists_it_as_a_limit_and_says_nothing_where_there_is_none(tmp_path: Path) -> None:
    async with open_bench(files={"own": "x\n"}) as bench:
        outside = Path(bench.site.folder) / "store"
        outside.write_text("x\n")
        os.link(outside, bench.root / "linked")
        await bench.restart()
        told = await caveat(bench)
        assert "1 file has another name outside the root (hard links)" in told
        assert told.endswith(": linked.")
        (bench.root / "linked").unlink()
        await bench.restart()
        await wait_counted(bench)
        info = await bench.call("workspace_info")
        assert not [each for each in info["execution"]["caveats"] if "At the daemon's start" in each]
        assert [each for each in info["execution"]["caveats"] if "hard link" in each]  # the limit itself stays told


async def wait_counted(bench: Bench) -> None:
    """Return once the count is in: a link that is made afterwards is not in it."""
    gate: Any = bench.daemon.tools
    await until(lambda: gate._links._found)


async def test_a_long_count_holds_up_neither_the_start_nor_a_call_nor_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespace.limits.HARD_LINK_BATCH", 1)
    monkeypatch.setattr("codespace.limits.HARD_LINK_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("codespace.limits.HARD_LINK_SECONDS", 600.0)
    files = {f"{number}": "x\n" for number in range(600)}  # a minute
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_bench(files=files, runner=open_runner) as bench:  # in this process, where the pace was changed
            gate: Any = bench.daemon.tools
            assert (await bench.call("read", path="1"))["content"] == "x\n"
            assert (await bench.call("exec_command", command=["true"], wait_seconds=20))["exit_code"] == 0
            assert gate._links._found == {}
            assert counting()
    await until(lambda: not counting())


async def test_a_root_that_hangs_is_not_counted_and_holds_up_no_other_count(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, released, count = (
        replace(workspace, id="hung", root=str(tmp_path / "hung")),
        threading.Event(),
        hardlinks.count,
    )

    def count_or_hang(asked: Workspace, *arguments: Any, **named: Any) -> HardLinks:
        if asked is hung:
            released.wait()
        return count(asked, *arguments, **named)

    monkeypatch.setattr(hardlinks, "count", count_or_hang)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    async with open_runner(
        state_dir=str(state), rg_path=None, bwrap_path=None, retention_seconds=60, wall_clock=time.time
    ) as runner:
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                with monkeypatch.context() as patch:
                    patch.setattr(limits, "HARD_LINK_SECONDS", 0.05)
                    patch.setattr(limits, "ROOT_ANSWER_SECONDS", 0.05)
                    told = await runner.hard_links(hung)
                assert told == HardLinks(0, (), complete=False)
                assert "is not known" in str(hardlinks.sentence(told))
                assert await runner.hard_links(workspace) == HardLinks(1, ("deep/linked",), complete=True)
        finally:
            released.set()
    await until(lambda: not counting())


def counting() -> list[str]:
    """Return the threads of this process that count."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("codespace hard links")]


async def test_the_daemon_warns_in_its_log_and_starts_and_answers_meanwhile(tmp_path: Path) -> None:
    site = Site(tmp_path)
    root = site.add_workspace("main", files={"own": "x\n"})
    (tmp_path / "store").write_text("x\n")
    os.link(tmp_path / "store", root / "\x1b[2Jlinked")
    with HttpDaemon(site) as daemon:
        async with over_http(site, daemon.url, daemon.token) as visit:
            assert (await visit.call("read", path="own"))["content"] == "x\n"
            await until(lambda: "names outside" in daemon.said)
    (line,) = [line for line in daemon.said.splitlines() if "names outside" in line]
    assert "linked" in line
    assert "\x1b[2J" not in line
    assert "number=1" in line


def test_doctor_counts_them_and_says_how_to_part_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    root = site.add_workspace("main", files={"own": "x\n"})
    locked = site.add_workspace("locked", profile="read-only", files={"own": "x\n"})
    (tmp_path / "store").write_text("x\n")
    os.link(tmp_path / "store", root / "linked")
    os.link(tmp_path / "store", locked / "linked")
    said = doctor(site)
    assert "limit links in main" in said
    assert "1 file has another name outside the root (hard links)" in said
    assert "package-import-method=copy" in said
    assert "links in locked" not in said  # no command runs there
    (root / "linked").unlink()
    assert "pass  links in main" in doctor(site)


def doctor(site: Site) -> str:
    argv = [script(), "doctor"]
    return subprocess.run(argv, env=site.environ, capture_output=True, text=True, timeout=60, check=False).stdout


ENTRY_SECONDS = 3e-6
# A plain look at one entry on the machine that the pace was chosen on: a slow machine does not change what it says.


def test_a_count_in_the_background_leaves_the_processor_to_others(tmp_path: Path) -> None:
    """Its pace: for every batch it waits longer than the batch takes."""
    root = tmp_path / "root"
    root.mkdir()
    entries = 20 * limits.HARD_LINK_BATCH
    for number in range(entries):
        (root / f"{number}").touch()
    waits = list[float]()

    def wait() -> None:
        waits.append(time.monotonic())

    used = cost(lambda: hardlinks.count(Workspace("w", str(root)), (), wait, sandboxed=True))
    assert len(waits) == 20
    again = cost(lambda: hardlinks.count(Workspace("w", str(root)), (), never_pause, sandboxed=True))
    plain = min(cost(lambda: [os.stat(entry) for entry in os.scandir(root)]) for _ in range(5))
    assert min(used, again) / plain * entries * ENTRY_SECONDS < len(waits) * limits.HARD_LINK_PAUSE_SECONDS


def cost(act: Callable[[], object]) -> float:
    """Return the processor seconds of this thread."""
    begun = time.thread_time()
    act()
    return time.thread_time() - begun
