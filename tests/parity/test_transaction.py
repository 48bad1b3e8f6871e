"""Every case of the corpus through the real helper and the whole transaction, on a real tree."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patch.patcher import Patcher

CORPUS = [json.loads(line) for line in (Path(__file__).parent / "corpus.jsonl").read_bytes().split(b"\n")[:-1]]
UMASK = 0o022

Tree = dict[str, tuple[str, Any, int]]


def decoded(content: Any) -> bytes:
    return base64.b64decode(content["b64"]) if isinstance(content, dict) else content.encode()


def build(case: dict[str, Any], parent: Path) -> None:
    """Make the tree of a case below `parent`, whose `ws` is the root and stays, so that one helper serves all cases."""
    root = parent / "ws"
    for folder in (root, parent):
        for entry in folder.iterdir():
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()
            elif entry != root:
                shutil.rmtree(entry)
    for path in case.get("dirs_before", ()):
        (root / path).mkdir(parents=True)
    for path, content in case["files_before"].items():
        file = Path(os.path.normpath(root / path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(decoded(content))
        file.chmod(int(case.get("modes_before", {}).get(path, "644"), 8))
    for path, target in case.get("symlinks_before", {}).items():
        (root / path).symlink_to(target.replace("{{ROOT}}", str(parent)))


def snapshot(parent: Path) -> Tree:
    """Everything below `parent`: kind, content, mode and, for what must not be replaced, the inode."""
    found: Tree = {}
    for folder, directories, files in os.walk(parent):
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            shown = os.path.relpath(path, parent)
            if stat.S_ISLNK(status.st_mode):
                found[shown] = ("link", os.readlink(path), 0)
            elif stat.S_ISDIR(status.st_mode):
                found[shown] = ("directory", None, stat.S_IMODE(status.st_mode))
            else:
                found[shown] = ("file", Path(path).read_bytes(), stat.S_IMODE(status.st_mode))
    return found


def expected(case: dict[str, Any], before: Tree, parent: Path) -> Tree:
    """The tree that an applied case asks for, with every directory and mode."""
    after: Tree = {path: entry for path, entry in before.items() if not path.startswith("ws/")}
    wanted = {name.replace("{{ROOT}}", str(parent)): decoded(c) for name, c in case["expect"]["files_after"].items()}
    moved = _moves(case)
    for name, content in wanted.items():
        source = f"ws/{moved.get(name, name)}"
        mode = before[source][2] if source in before and before[source][0] == "file" else 0o666 & ~UMASK
        after[os.path.normpath(f"ws/{name}")] = ("file", content, mode)
    for path, entry in before.items():
        if path.startswith("ws/") and entry[0] == "link":
            after[path] = entry
    kept = [path for path, entry in before.items() if path.startswith("ws/") and entry[0] == "directory"]
    made = [str(above) for path in list(after) for above in Path(path).parents if str(above) not in (".", "ws")]
    empty = [f"ws/{path}" for path in case["expect"].get("empty_dirs_after", ())]
    for path in (*kept, *made, *empty):
        after.setdefault(path, ("directory", None, 0o777 & ~UMASK))
    return after


def _moves(case: dict[str, Any]) -> dict[str, str]:
    """Where the bytes of a moved file came from; renames in a chain lead to the first name."""
    came: dict[str, str] = {}
    source = ""
    for line in case["patch"].splitlines():
        if line.startswith("*** Update File: "):
            source = os.path.normpath(line.removeprefix("*** Update File: ").strip())
        elif line.startswith("*** Move to: ") and source:
            came[os.path.normpath(line.removeprefix("*** Move to: ").strip())] = came.get(source, source)
    return came


async def transact(patcher: Patcher, workspace: Workspace, operation: str, patch: str) -> None:
    """Take one patch through the whole transaction; Refusal leaves the rest undone."""
    try:
        await patcher.plan(workspace, operation, patch, {})
        await patcher.stage(workspace, operation)
        installed = await patcher.install(workspace, operation)
        assert installed.clean, installed
        verified = await patcher.verify(workspace, operation)
        assert verified.clean, verified
    finally:
        with trio.fail_after(60, shield=True):
            finished = await patcher.finish(workspace, operation)
        assert finished.clean, finished


async def check(patcher: Patcher, case: dict[str, Any], number: int, parent: Path) -> None:
    await trio.to_thread.run_sync(build, case, parent)
    before = await trio.to_thread.run_sync(snapshot, parent)
    workspace = Workspace(parent.name, str(parent / "ws"), "workspace-write")
    patch = case["patch"].replace("{{ROOT}}", str(parent))
    want = case["expect"]
    refusal: Refusal | None = None
    try:
        await transact(patcher, workspace, f"op-{number}", patch)
    except Refusal as refused:
        refusal = refused
    after = await trio.to_thread.run_sync(snapshot, parent)
    if want["outcome"] == "applied":
        assert refusal is None, f"{case['id']} was refused: {refusal and refusal.body()}"
        assert after == expected(case, before, parent), case["id"]
    else:
        assert refusal is not None, f"{case['id']} was applied"
        assert after == before, f"{case['id']} was refused but changed the tree"
        assert want.get("code") in (None, refusal.code), f"{case['id']}: {refusal.body()}"
        assert refusal.code != "INTERNAL", f"{case['id']}: {refusal.body()}"


def test_the_corpus_is_whole() -> None:
    assert len(CORPUS) == 922
    assert sum(case["expect"]["outcome"] == "applied" for case in CORPUS) == 570


@pytest.fixture
def umask() -> Any:
    before = os.umask(UMASK)
    yield
    os.umask(before)


WORKERS = 2


@pytest.mark.usefixtures("umask")
async def test_every_case_of_the_corpus_ends_as_recorded(tmp_path: Path) -> None:
    with trio.fail_after(240):
        async with Patcher(str(tmp_path / "state")) as patcher:
            send, receive = trio.open_memory_channel[int](len(CORPUS))
            for number in range(len(CORPUS)):
                send.send_nowait(number)
            send.close()
            failures: list[str] = []

            async def work(worker: int) -> None:
                parent = tmp_path / f"parity-{worker}"
                (parent / "ws").mkdir(parents=True)
                async for number in receive:
                    try:
                        await check(patcher, CORPUS[number], number, parent)
                    except AssertionError as failure:
                        failures.append(str(failure)[:2000])

            async with trio.open_nursery() as nursery:
                for worker in range(WORKERS):
                    nursery.start_soon(work, worker)
    assert not failures, "\n".join(failures)
