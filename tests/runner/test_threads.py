"""While account or container give no more threads: calls are refused, and what runs is followed to its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from codespace import limits
from codespace.contract import Domain, Workspace
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search
from codespace.runner.threads import run_patiently
from codespace.sandbox.box import Sandbox
from codespace.sandbox.probe import Standing

from ..sandbox.until import until
from .supervised import open_bench, refused


@contextmanager
def no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no thread be had for the block: trio's cache of them gives none, and no other is started."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        short.setattr("trio._threads.start_thread_soon", refuse)
        yield


async def test_what_has_to_be_done_is_done_once_a_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    async with trio.open_nursery() as nursery:
        with no_thread_left(monkeypatch):
            nursery.start_soon(run_patiently, done.append, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
    assert done == [1]


async def test_an_error_of_the_work_itself_is_not_waited_for() -> None:
    def work() -> None:
        raise RuntimeError("of the work")

    with pytest.raises(RuntimeError, match="of the work"):
        await run_patiently(work)


async def test_a_search_that_no_thread_can_be_had_for_is_refused_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Roots()) as roots:
        find = partial(Search(roots).find, glob=None, query=None, include_ignored=False, limit=10)
        workspace = Workspace("w", str(tmp_path))
        await find(workspace)
        with no_thread_left(monkeypatch):
            refusal = await refused("FILE_OPERATION_FAILED", find(workspace))
        assert "can't start new thread" in refusal.message


@pytest.mark.parametrize("sandbox", [None, Sandbox()], ids=["plain", "boxed"])
async def test_a_command_goes_on_and_is_followed_to_its_end_while_no_thread_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox | None
) -> None:
    monkeypatch.setattr(limits, "HOME_SECONDS", 0.2)
    async with open_bench(tmp_path, sandbox=sandbox) as bench:
        process_id = await bench.spawn("/bin/sh", "-c", "echo one; read line; echo two", open_stdin=True)
        await bench.wait_text(process_id, "one\n")
        with no_thread_left(monkeypatch):
            refusal = await refused("PROCESS_SPAWN_FAILED", bench.spawn("/bin/true"))
            assert "as many processes as it may have" in str(refusal.next_step)
            await bench.type(process_id, "go\n", until="two\n")
        state = await bench.supervisor.wait_exit(process_id)
        assert (state.exit_code, state.termination) == (0, "exited")
        assert (await bench.run("/bin/echo", "again"))[1] == "again\n"


class LastThread(Sandbox):
    """A sandbox after whose probe no thread can be had, until `given`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        self.given = ExitStack()
        self._is_first = True

    def standing(self) -> Standing:
        found = super().standing()
        if self._is_first:
            self._is_first = False
            self.given.enter_context(no_thread_left(self._monkeypatch))
        return found


async def test_a_proxy_that_no_thread_can_be_had_for_at_the_start_is_started_by_the_first_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = LastThread(monkeypatch)
    with capture_logs() as lines:
        async with open_bench(tmp_path, sandbox=sandbox, networked=True) as bench:
            with sandbox.given:
                await until(lambda: [line for line in lines if "proxy could not be started" in line["event"]])
            domains = (Domain("example.org"),)
            bench.workspace = replace(bench.workspace, network="enabled", allowed_domains=domains)
            assert (await bench.run("/bin/echo", "here"))[1] == "here\n"
    assert "can't start new thread" in str(lines)
