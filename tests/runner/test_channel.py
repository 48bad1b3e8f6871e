"""The channel to a child that answers JSON lines, against children that do not."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patch.channel import Channel, Lost
from codespace.runner.patch.patcher import Patcher

ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "ok": json.loads(line)}), flush=True)
"""


@asynccontextmanager
async def child(source: str) -> AsyncIterator[Channel]:
    channel = await Channel.start((sys.executable, "-I", "-c", source))
    try:
        yield channel
    finally:
        with trio.move_on_after(60, shield=True):
            await channel.close()


async def test_each_request_gets_its_own_reply() -> None:
    async with child(ECHO) as channel:
        for word in ("one", "two", "é\ud800"):
            reply = await channel.call({"word": word}, 30, shielded=True)
            assert reply["ok"]["word"] == word


async def test_a_request_larger_than_the_pipe_arrives_whole() -> None:
    async with child(ECHO) as channel:
        reply = await channel.call({"word": "x" * 3_000_000}, 30, shielded=False)
        assert len(reply["ok"]["word"]) == 3_000_000


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("print('hello', flush=True)", "nonsense"),
        ("print('[]', flush=True)", "nonsense"),
        ("print('{}', flush=True)", "nonsense"),
        ('print(\'{"id": 7, "ok": {}}\', flush=True)', "not asked"),
        ('print(\'{"id": "1", "ok": {}}\', flush=True)', "not asked"),
        ("sys.exit(3)", "ended"),
        ("sys.stdout.write('x' * 100); sys.stdout.flush(); sys.exit()", "ended"),
    ],
)
async def test_a_child_that_does_not_answer_properly_is_lost_and_killed(answer: str, reason: str) -> None:
    source = f"import sys\nsys.stdin.readline()\n{answer}\nsys.stdin.read()"
    async with child(source) as channel:
        with trio.fail_after(60), pytest.raises(Lost) as lost:
            await channel.call({}, 30, shielded=True)
        assert reason in lost.value.reason
        assert lost.value.sent
        assert not channel.usable


async def test_an_answer_without_end_is_bounded() -> None:
    source = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    async with child(source) as channel:
        with trio.fail_after(60), pytest.raises(Lost) as lost:
            await channel.call({}, 30, shielded=True)
        assert "without end" in lost.value.reason


async def test_a_child_that_takes_no_request_is_killed_in_time_and_was_sent_nothing_whole() -> None:
    source = "import time\ntime.sleep(60)"
    async with child(source) as channel:
        with trio.fail_after(60), pytest.raises(Lost) as lost:
            await channel.call({"word": "x" * 3_000_000}, 0.2, shielded=True)
        assert lost.value.timed_out
        assert not lost.value.sent
        assert not channel.usable


async def test_who_waits_for_a_child_to_take_a_request_is_cut_off_too() -> None:
    async with child("import time\ntime.sleep(20)") as channel:  # its end is another reason, should it come to that

        async def call() -> None:
            with pytest.raises(Lost, match="did not take") as lost:
                await channel.call({"word": "x" * 3_000_000}, 600, shielded=False)
            assert lost.value.timed_out
            assert not lost.value.sent

        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                leaving.cancel()  # which half a request waits out
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                assert channel.usable
                channel.cut_off()
        assert not channel.usable


async def test_who_waits_for_the_answer_that_one_before_was_to_have_is_cut_off_too() -> None:
    async with child("import sys; sys.stdin.read()") as channel:
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call_and_be_lost, channel)
                await trio.testing.wait_all_tasks_blocked()
                leaving.cancel()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call_and_be_lost, channel)
                await trio.testing.wait_all_tasks_blocked()
                channel.cut_off()


async def call_and_be_lost(channel: Channel) -> None:
    with pytest.raises(Lost, match="gave no answer to the request before"):
        await channel.call({"word": "one"}, 600, shielded=False)


async def test_a_child_that_never_stops_complaining_neither_blocks_nor_fills_memory() -> None:
    noisy = ECHO.replace("    print(", "    sys.stderr.write('x' * 60_000 + 'end'); sys.stderr.flush()\n    print(")
    async with child(noisy) as channel:
        with trio.fail_after(60):
            for _ in range(20):
                await channel.call({}, 30, shielded=True)
        assert len(channel.said()) == limits.HELPER_STDERR_BYTES
        assert channel.said().endswith("xend")


async def test_the_child_has_a_group_a_place_and_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    spying = ECHO.replace('"ok": json.loads(line)', '"ok": [os.getpgrp(), os.getcwd(), dict(os.environ)]')
    async with child("import os" + spying) as channel:
        reply = await channel.call({}, 30, shielded=True)
    group, place, environment = reply["ok"]
    assert group == channel.pid != os.getpgrp()
    assert place == "/"
    assert set(environment) - {"LC_CTYPE"} == {"PATH", "LC_ALL", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}


async def test_the_child_inherits_nothing_but_its_three_pipes(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        spying = ECHO.replace('"ok": json.loads(line)', '"ok": os.listdir("/proc/self/fd")')
        async with child("import os" + spying) as channel:
            reply = await channel.call({}, 30, shielded=True)
    assert set(reply["ok"]) <= {"0", "1", "2", "3"}, "the fourth is the listing's own"


async def test_a_program_that_cannot_be_started_is_an_error_and_leaks_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        await Channel.start(("/nonexistent/program",))


async def test_a_patcher_whose_helper_speaks_nonsense_refuses_cleanly(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    workspace = Workspace("w", str(tmp_path / "root"), "workspace-write")
    for source in ("print('hello', flush=True)", ECHO.replace('"ok": json.loads(line)', '"ok": 5')):
        async with Patcher(str(tmp_path / "state"), argv=(sys.executable, "-I", "-c", source)) as patcher:
            with trio.fail_after(60), pytest.raises(Refusal) as refused:
                await patcher.plan(workspace, "op-1", "*** Begin Patch\n*** Add File: a\n+a\n*** End Patch", {})
            assert "Nothing was written" in refused.value.message
            assert patcher.helpers() == {}


async def test_a_patcher_whose_helper_cannot_be_started_refuses_cleanly(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path), "workspace-write")
    async with Patcher(str(tmp_path / "state"), argv=("/nonexistent/program",)) as patcher:
        with pytest.raises(Refusal) as refused:
            await patcher.plan(workspace, "op-1", "*** Begin Patch\n*** End Patch", {})
    assert refused.value.code == "FILE_OPERATION_FAILED"
