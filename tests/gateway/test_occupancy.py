"""One occupant a root: waiting behind a patch, busy at once behind a process, across daemons by flock."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.gateway.occupancy import Occupancy, Occupant
from codespace.sandbox import shortage
from codespace.testing.shortage import descriptors

PATCH = Occupant("patch", "op-a", 1.0)
PROCESS = Occupant("process", "op-b", 2.0, "proc-b")


async def _nobody(root: str) -> Occupant | None:
    return None


@contextmanager
def another_daemon_holds(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Lock a directory through an open file description of its own, as another process would."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def can_lock(path: Path) -> bool:
    try:
        with another_daemon_holds(path):
            return True
    except BlockingIOError:
        return False


async def test_a_root_is_locked_against_other_daemons_while_it_is_occupied(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path))
    with closing(Occupancy(_nobody)) as occupancy:
        with await occupancy.enter(workspace, PATCH):
            assert not can_lock(tmp_path)
        assert can_lock(tmp_path)


async def test_a_daemon_of_an_enclosing_root_is_kept_out_and_keeps_out(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with closing(Occupancy(_nobody)) as occupancy:
        with await occupancy.enter(Workspace("in", str(inner)), PATCH):
            assert not can_lock(tmp_path)
        with another_daemon_holds(tmp_path), pytest.raises(Refusal) as caught:
            await occupancy.enter(Workspace("in", str(inner)), PATCH)
    assert caught.value.code == "WORKSPACE_BUSY"


async def test_a_patch_waits_for_the_patch_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 120.0)
    workspace = Workspace("w", str(tmp_path))
    order: list[str] = []

    async def second(task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        with await occupancy.enter(workspace, PATCH):
            order.append("second")

    with closing(Occupancy(_nobody)) as occupancy:
        async with trio.open_nursery() as nursery:
            first = await occupancy.enter(workspace, PATCH)
            await nursery.start(second)
            await trio.testing.wait_all_tasks_blocked()
            order.append("first leaves")
            first.release()
    assert order == ["first leaves", "second"]


async def test_behind_a_process_the_answer_is_busy_at_once_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 120.0)
    workspace = Workspace("w", str(tmp_path))
    with (
        closing(Occupancy(_nobody)) as occupancy,
        await occupancy.enter(workspace, PROCESS),
        trio.fail_after(limits.PATCH_WAIT_SECONDS / 2),
        pytest.raises(Refusal) as caught,
    ):
        await occupancy.enter(workspace, PATCH)
    assert caught.value.code == "WORKSPACE_BUSY"
    assert caught.value.retryable
    assert caught.value.process_id == "proc-b"
    assert caught.value.details == {"holder": "process", "operation_id": "op-b", "process_id": "proc-b", "since": 2.0}


async def test_behind_a_patch_the_answer_names_the_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 0.01)
    workspace = Workspace("w", str(tmp_path))
    with (
        closing(Occupancy(_nobody)) as occupancy,
        await occupancy.enter(workspace, PATCH),
        pytest.raises(Refusal) as caught,
    ):
        await occupancy.enter(workspace, PROCESS)
    assert (caught.value.code, caught.value.process_id) == ("WORKSPACE_BUSY", None)
    assert caught.value.details == {"holder": "patch", "operation_id": PATCH.operation_id, "since": PATCH.since}


async def test_what_another_daemon_does_is_named_where_the_database_knows_it(tmp_path: Path) -> None:
    async def elsewhere(root: str) -> Occupant | None:
        return PROCESS

    with closing(Occupancy(elsewhere)) as occupancy, another_daemon_holds(tmp_path), pytest.raises(Refusal) as caught:
        await occupancy.enter(Workspace("w", str(tmp_path)), PATCH)
    assert caught.value.process_id == "proc-b"


async def test_shared_processes_block_neither_patches_nor_each_other(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path), occupancy="shared")
    with (
        closing(Occupancy(_nobody)) as occupancy,
        await occupancy.enter(workspace, PROCESS),
        await occupancy.enter(workspace, PROCESS),
        await occupancy.enter(workspace, PATCH),
    ):
        assert not can_lock(tmp_path)


async def test_a_cancelled_wait_leaves_the_root_to_the_next(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path))
    with closing(Occupancy(_nobody)) as occupancy:
        for deadline in (0.0, 0.0001, 0.001):
            with trio.move_on_after(deadline):
                (await occupancy.enter(workspace, PATCH)).release()
        with await occupancy.enter(workspace, PATCH):
            assert occupancy.holder(str(tmp_path)) is PATCH
        assert occupancy.holder(str(tmp_path)) is None


async def test_a_root_that_is_gone_is_a_clear_refusal(tmp_path: Path) -> None:
    with closing(Occupancy(_nobody)) as occupancy, pytest.raises(Refusal) as caught:
        await occupancy.enter(Workspace("w", str(tmp_path / "gone")), PATCH)
    assert caught.value.code == "FILE_OPERATION_FAILED"


@pytest.mark.parametrize("left", range(3))
async def test_a_root_that_there_is_no_descriptor_for_is_told_as_that(tmp_path: Path, left: int) -> None:
    with closing(Occupancy(_nobody)) as occupancy:
        await trio.to_thread.run_sync(os.getpid)  # its thread and what it takes are there by now
        with descriptors(left), pytest.raises(Refusal) as caught:
            await occupancy.enter(Workspace("w", str(tmp_path)), PATCH)
        assert "Too many open files" in caught.value.message
        assert (caught.value.next_step, caught.value.retryable) == (shortage.NEXT_STEP, True)
        assert can_lock(tmp_path)
        with await occupancy.enter(Workspace("w", str(tmp_path)), PATCH):
            assert not can_lock(tmp_path)


async def test_releasing_twice_does_not_free_the_next_occupant(tmp_path: Path) -> None:
    workspace = Workspace("w", str(tmp_path))
    with closing(Occupancy(_nobody)) as occupancy:
        first = await occupancy.enter(workspace, PATCH)
        first.release()
        with await occupancy.enter(workspace, PROCESS):
            first.release()
            assert occupancy.holder(str(tmp_path)) is PROCESS


class Hung:
    """A filesystem that does not answer whoever opens a directory of it before it is let go."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.entered = threading.Event()
        self._place = str(place)
        self._open = os.open
        monkeypatch.setattr(os, "open", self.open)

    def open(self, path: str, flags: int, *rest: int, **named: int) -> int:
        if path == self._place:
            self.entered.set()
            assert self.let_go.wait(60)
        return self._open(path, flags, *rest, **named)


async def test_a_root_that_does_not_answer_is_told_as_that_in_time_and_is_free_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 0.1)
    workspace = Workspace("w", str(tmp_path))
    hung = Hung(tmp_path, monkeypatch)
    with closing(Occupancy(_nobody)) as occupancy:
        try:
            with trio.fail_after(30):
                for occupant in (PATCH, PATCH, PROCESS):
                    with pytest.raises(Refusal, match="does not answer") as caught:
                        await occupancy.enter(workspace, occupant)
                    assert (caught.value.code, caught.value.retryable) == ("WORKSPACE_BUSY", True)
        finally:
            hung.let_go.set()
        monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 30.0)
        with await occupancy.enter(workspace, PATCH):
            assert not can_lock(tmp_path)
        assert can_lock(tmp_path)


async def test_a_caller_who_leaves_a_root_that_does_not_answer_keeps_no_lock_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace("w", str(tmp_path))
    hung = Hung(tmp_path, monkeypatch)
    with closing(Occupancy(_nobody)) as occupancy:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(occupancy.enter, workspace, PATCH)
            await trio.to_thread.run_sync(hung.entered.wait, 30)
            nursery.cancel_scope.cancel()
        assert occupancy.holder(str(tmp_path)) is PATCH
        hung.let_go.set()
        with trio.fail_after(30):
            while occupancy.holder(str(tmp_path)) is not None:
                await trio.lowlevel.checkpoint()
        assert can_lock(tmp_path)
