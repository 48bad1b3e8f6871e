"""A filesystem that hangs: threads that it holds never end, and hold up nobody in another root."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner import program
from codespace.runner.files import Files
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search
from codespace.runner.turns import Turns
from codespace.sandbox import degraded
from codespace.sandbox.box import Sandbox
from codespace.sandbox.probe import Standing
from codespace.sandbox.spawn import Launch
from codespace.testing import open_bench
from codespace.testing.bench import Bench

from . import supervised
from .supervised import refused


class Hanging(Roots):
    """Roots of which one is on a filesystem that does not answer before the test lets it."""

    def __init__(self, hung: Workspace) -> None:
        super().__init__()
        self._hung = hung
        self.let_go = threading.Event()
        self.held = 0

    def of(self, workspace: Workspace) -> Root:
        if workspace.id == self._hung.id:
            self.held += 1
            assert self.let_go.wait(60)
            self.held -= 1
            raise Refusal("FILE_NOT_FOUND", "It is gone.")
        return super().of(workspace)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Workspace]:
    for name in ("hung", "well"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a\n")
    return {name: Workspace(id=name, root=str(tmp_path / name)) for name in ("hung", "well")}


@pytest.fixture
def roots(places: dict[str, Workspace]) -> Iterator[Hanging]:
    opened = Hanging(places["hung"])
    yield opened
    opened.close()


async def read(files: Files, workspace: Workspace) -> None:
    asked = await files.read(
        workspace, "a.txt", start_line=None, line_count=None, encoding="text", limit_bytes=limits.READ_BYTES
    )
    assert asked.content == "a\n"


async def find(search: Search, workspace: Workspace) -> None:
    found = await search.find(workspace, glob=None, query=None, include_ignored=False, limit=10)
    assert found.paths == ("a.txt",)


async def check_that_hung_calls_hold_up_no_other_root(
    roots: Hanging, most: int, hung: Callable[[], Awaitable[None]], well: Callable[[], Awaitable[None]]
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(most + 1):
            nursery.start_soon(hung)
        with trio.fail_after(30):
            while roots.held < most:
                await trio.lowlevel.checkpoint()
            await well()
        assert roots.held == most  # the one more still waits for its turn
        nursery.cancel_scope.cancel()
    roots.let_go.set()
    with trio.fail_after(30):
        while roots.held:
            await trio.lowlevel.checkpoint()


async def test_a_look_that_takes_too_long_is_given_up_and_its_thread_left(
    places: dict[str, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_SECONDS", 0.05)
    let_go, ended = threading.Event(), threading.Event()

    def look() -> None:
        assert let_go.wait(60)
        ended.set()

    with pytest.raises(Refusal, match="TIMEOUT: Reading the root took over"):
        await Turns(1).run(places["hung"], look, "the root")
    let_go.set()
    assert await trio.to_thread.run_sync(ended.wait, 60)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_descriptor_that_nobody_takes_any_more_is_closed(
    places: dict[str, Workspace], is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_SECONDS", 0.05 if is_late else 60)
    let_go, opened = threading.Event(), list[int]()

    def look() -> int:
        assert not is_late or let_go.wait(60)
        opened.append(os.open(places["well"].root, os.O_PATH | os.O_CLOEXEC))
        return opened[0]

    if is_late:
        with pytest.raises(Refusal, match="TIMEOUT"):
            await Turns(1).open(places["well"], look, "the root")
        let_go.set()
    else:
        os.close(await Turns(1).open(places["well"], look, "the root"))
    with trio.fail_after(30):
        while not opened or _is_open(opened[0]):
            await trio.lowlevel.checkpoint()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_reads_of_a_hung_root_hold_up_no_read_of_another(roots: Hanging, places: dict[str, Workspace]) -> None:
    files = Files(roots)
    await check_that_hung_calls_hold_up_no_other_root(
        roots, limits.READS_AT_ONCE, lambda: read(files, places["hung"]), lambda: read(files, places["well"])
    )


async def test_finds_in_a_hung_root_hold_up_no_find_in_another_nor_what_is_said_of_them(
    roots: Hanging, places: dict[str, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REAP_SECONDS", 0.1)
    search = Search(roots)

    async def well() -> None:
        await find(search, places["well"])
        assert (await search.confinement()).kind

    await check_that_hung_calls_hold_up_no_other_root(
        roots, limits.SEARCHES_AT_ONCE, lambda: find(search, places["hung"]), well
    )


@pytest.mark.parametrize("occupancy", ["shared", "exclusive"])
async def test_a_command_in_a_root_that_does_not_answer_is_refused_in_time_and_keeps_nothing(
    occupancy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_SECONDS", 0.2)
    open_directory, let_go = Root.open_directory, threading.Event()

    def hung(self: Root, path: str) -> int:
        assert let_go.wait(60)
        return open_directory(self, path)

    async with open_bench(files={"sub/a.txt": "a\n"}, occupancy=occupancy) as bench:
        monkeypatch.setattr(Root, "open_directory", hung)
        with trio.fail_after(30), pytest.raises(Refusal, match="TIMEOUT"):
            await bench.call("exec_command", command=["true"], cwd="sub", operation_key="k")
        let_go.set()
        monkeypatch.setattr(limits, "READ_SECONDS", 20.0)
        ran = await bench.call("exec_command", command=["true"], cwd="sub", operation_key="k", wait_seconds=50)
        assert (ran["exit_code"], ran["replayed"]) == (0, False)


async def test_a_directory_is_lent_as_a_copy_that_is_closed_once_its_thread_is_done(
    places: dict[str, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, lent, names = threading.Event(), list[int](), list[str]()

    def look(directory: int) -> None:
        lent.append(directory)
        assert let_go.wait(60)
        names.extend(os.listdir(directory))

    monkeypatch.setattr(limits, "READ_SECONDS", 0.05)
    directory = os.open(places["well"].root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(Refusal, match="TIMEOUT"):
            await Turns(1).run_in(places["well"], look, directory, "the root")
    finally:
        os.close(directory)
    let_go.set()
    with trio.fail_after(30):
        while not lent or _is_open(lent[0]):
            await trio.lowlevel.checkpoint()
    assert names == ["a.txt"]


# --- starts of commands ---


class Hung:
    """A filesystem that does not answer whoever looks at it, before the test lets it."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.held = 0

    def hang(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, lies_there: Callable[..., bool] = lambda *_: True
    ) -> None:
        real = getattr(owner, name)

        def look(*arguments: Any, **how: Any) -> Any:
            if lies_there(*arguments):
                self.held += 1
                assert self.let_go.wait(60)
                self.held -= 1
            return real(*arguments, **how)

        monkeypatch.setattr(owner, name, look)

    async def wait_held(self, count: int) -> None:
        with trio.fail_after(30):
            while self.held != count:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("is_boxed", [True, False])
async def test_commands_that_a_root_holds_up_hold_up_none_in_another_root(
    is_boxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def run(bench: Bench) -> None:
        ran = await bench.call("exec_command", workspace_id="hung", command=["true"], wait_seconds=50)
        ended.append(ran["exit_code"])

    hung = Hung()
    async with open_bench(others={"hung": {"occupancy": "shared"}}, sandbox=is_boxed) as bench:
        if is_boxed:
            hung.hang(monkeypatch, Sandbox, "prepare", lambda _, workspace: workspace.id == "hung")
        else:
            root = str(bench.site.root("hung"))
            hung.hang(monkeypatch, program, "find", lambda *found: os.readlink(f"/proc/self/fd/{found[2]}") == root)
        async with trio.open_nursery() as nursery:
            for _ in range(limits.SPAWN_THREADS + 1):
                nursery.start_soon(run, bench)
            await hung.wait_held(limits.SPAWN_THREADS)
            ran = await bench.call("exec_command", workspace_id="main", command=["true"], wait_seconds=50)
            assert (ran["exit_code"], ended) == (0, [])
            assert hung.held == limits.SPAWN_THREADS  # the one more still waits for its turn
            hung.let_go.set()
    assert ended == [0] * (limits.SPAWN_THREADS + 1)


@pytest.mark.parametrize("way", ["boxed", "sealed", "landlock", "plain"])
async def test_a_start_that_its_root_holds_up_is_cancelled_or_refused_at_once_and_leaves_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox()
    if way == "landlock":
        sandbox._known = Standing("landlock", None, ("no bubblewrap",), 7)
    async with supervised.open_bench(tmp_path, sandbox=None if way == "plain" else sandbox) as bench:
        bench.workspace = replace(bench.workspace, allow_degraded=way == "landlock")
        await bench.run("true")
        hung, before = Hung(), len(os.listdir("/proc/self/fd"))
        looks: dict[str, tuple[Any, str]] = {
            "boxed": (Sandbox, "prepare"),
            "sealed": (Launch, "missing_program"),
            "landlock": (degraded, "ruleset"),
            "plain": (program, "find"),
        }
        hung.hang(monkeypatch, *looks[way])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.spawn, "true")
            await hung.wait_held(1)
            nursery.cancel_scope.cancel()  # as the stop of the daemon does
        assert hung.held == 1
        monkeypatch.setattr(limits, "READ_SECONDS", 0.1)
        monkeypatch.setattr(limits, "SPAWN_LOOK_SECONDS", 0.1)
        monkeypatch.setattr(limits, "SANDBOX_SEAL_SECONDS", 0.1)
        refusal = await refused("TIMEOUT", bench.spawn("true"))
        assert str(bench.folder) in refusal.message
        assert "ask the operator" in str(refusal.next_step).lower()
        monkeypatch.undo()
        hung.let_go.set()
        await hung.wait_held(0)
        with trio.fail_after(30):
            while len(os.listdir("/proc/self/fd")) > before:
                await trio.lowlevel.checkpoint()
        assert list((tmp_path / "state" / "homes").glob("*/*")) == []
        assert (await bench.run("true"))[0].exit_code == 0


async def test_a_program_that_cannot_be_hashed_for_a_hold_refuses_that_call_alone(
    places: dict[str, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bound_of(_: str) -> dict[str, str]:
        return {}

    hung = Hung()
    hung.hang(monkeypatch, program, "find", lambda *found: os.readlink(f"/proc/self/fd/{found[2]}").endswith("/hung"))
    opened = {name: os.open(place.root, os.O_PATH | os.O_CLOEXEC) for name, place in places.items()}
    resolve = {name: partial(program.resolve, places[name], ["sh"], ".", opened[name], bound_of) for name in places}
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(limits.HASH_THREADS):
                nursery.start_soon(resolve["hung"])
            await hung.wait_held(limits.HASH_THREADS)
            assert (await resolve["well"]())["program_version"]
            nursery.cancel_scope.cancel()
        assert hung.held == limits.HASH_THREADS
    finally:
        hung.let_go.set()
        for descriptor in opened.values():
            os.close(descriptor)
    await hung.wait_held(0)
