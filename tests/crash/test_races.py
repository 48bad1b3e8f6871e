"""A patch against a hostile neighbour in a tight loop: nothing outside is touched, no bytes lost, every status true.

Each race is bounded by time: RACE_SECONDS in the environment makes it longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.contract import Caller
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree

PROGRAM = Path(__file__).with_name("adversary.py")
SECONDS = float(os.environ.get("RACE_SECONDS", "2.5"))
CALLER = Caller("memory")
STATUSES = {"applied", "rejected", "failed_rolled_back", "failed_partial", "unknown"}


@contextmanager
def adversary(kind: str, root: Path, outside: Path) -> Iterator[list[int]]:
    """Let the neighbour loose; the list gets the number of its rounds at the end."""
    ledger = root.parent / "ledger"
    rounds: list[int] = []
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), kind, str(root), str(outside), str(ledger)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        yield rounds
        said, _ = program.communicate(timeout=60)
        rounds.append(int(said))


async def patch(bench: Bench, text: str, key: str) -> str:
    """Apply a patch through the gate and return its status; a refusal without one was before anything."""
    try:
        done: dict[str, Any] = await bench.daemon.tools.apply_patch(
            CALLER,
            workspace_id="main",
            patch=text,
            expected_versions=None,
            operation_key=key,
            check_only=False,
            work_id=None,
        )
    except Refusal as refusal:
        return str((refusal.details or {}).get("status", f"nothing: {refusal.code}"))
    return str(done["status"])


def numbers(text: str) -> set[int]:
    return {int(found) for found in re.findall(r"adv (\d+)", text)}


def everything(*folders: Path) -> str:
    """Return all texts below the folders, names of the transaction and journals included."""
    return "\n".join(data.decode(errors="replace") for folder in folders for data in tree(folder).values())


def staged(root: Path) -> list[str]:
    return [path.name for path in root.rglob(".codespace-*")]


async def require_tidy(bench: Bench) -> None:
    """Check that nothing of the transaction is left; what could not be swept in time is swept at the next start."""
    await bench.restart()
    assert staged(bench.root) == []


@asynccontextmanager
async def raced(
    kind: str, files: dict[str, str], text: str, tell: Callable[[str], None]
) -> AsyncIterator[tuple[Bench, Path, Counter[str]]]:
    """Send the patch again and again while the neighbour is loose; the block looks at what is left."""
    async with open_bench(files=files) as bench:
        outside = bench.root.parent / "outside"
        outside.mkdir()
        (outside / "b").write_text("one\n")
        ends: Counter[str] = Counter()
        with adversary(kind, bench.root, outside) as rounds, trio.move_on_after(SECONDS):
            while True:
                with trio.CancelScope(shield=True):  # each patch is waited for: its status is looked at
                    ends[await patch(bench, text, f"{kind} {sum(ends.values())}")] += 1
                await trio.lowlevel.checkpoint()
        yield bench, outside, ends
        tell(f"{kind}: {rounds[0]} rounds against {sum(ends.values())} patches: {dict(ends)}")


async def settled(bench: Bench, kind: str, count: int) -> Counter[str]:
    """Return how the ledger says that the patches ended, once none of them is unknown any more."""
    with trio.fail_after(60):
        while True:
            found: Counter[str] = Counter()
            for number in range(count):
                try:
                    status = await bench.call("operation_status", operation_key=f"{kind} {number}")
                    found[status["status"]] += 1
                except Refusal:
                    found["nothing"] += 1
            if found.keys() <= {"applied", "rejected", "failed_rolled_back", "failed_partial", "nothing"}:
                return found
            await patch(bench, "*** Begin Patch\n*** Add File: x\n+x\n*** End Patch", f"again {count}")


async def test_the_target_replaced_all_the_time(tell: Callable[[str], None]) -> None:
    text = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** End Patch"
    async with raced("target", {"a": "one\n"}, text, tell) as (bench, _, ends):
        last = max(numbers((bench.root.parent / "ledger").read_text() + (bench.root / "a").read_text()), default=0)
        found = numbers(everything(bench.root, Path(bench.daemon.settings.state_dir, "journal")))
        found |= numbers((bench.root.parent / "ledger").read_text())
        assert set(range(1, last + 1)) - found == set()
        assert (bench.root / "a").read_text().endswith(f"adv {last}\n") or f"adv {last}\n" in everything(bench.root)
        await require_tidy(bench)
        assert ends["unknown"] == 0
        assert ends.keys() <= STATUSES | {key for key in ends if key.startswith("nothing")}


async def test_the_staged_file_replaced_all_the_time(tell: Callable[[str], None]) -> None:
    text = "*** Begin Patch\n*** Add File: new\n+new\n*** End Patch"
    async with raced("staged", {"a": "one\n"}, text, tell) as (bench, _, ends):
        journals = Path(bench.daemon.settings.state_dir, "journal")
        seen = (bench.root.parent / "ledger").read_text()
        put = numbers(everything(bench.root, journals) + seen)
        assert put == set(range(1, max(put, default=0) + 1))
        if (bench.root / "new").exists():
            there = (bench.root / "new").read_text()
            assert there == "new\n" if ends["applied"] else ends["failed_partial"] and numbers(there)
        await require_tidy(bench)


async def test_a_parent_replaced_by_a_link_to_the_outside_all_the_time(tell: Callable[[str], None]) -> None:
    text = (
        "*** Begin Patch\n*** Update File: d/b\n@@\n-one\n+one\n+more\n*** Add File: d/new\n+new\n"
        "*** Delete File: d/gone\n*** End Patch"
    )
    async with raced("parent", {"d/b": "one\n", "d/gone": "bye\n"}, text, tell) as (bench, outside, ends):
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("b", "one\n")]
        await require_tidy(bench)
        applied = ends["applied"]
        assert applied <= 1
        patched = (
            (bench.root / "d/b").read_text() != "one\n",
            (bench.root / "d/new").exists(),
            not (bench.root / "d/gone").exists(),
        )
        assert patched == (bool(applied),) * 3
        assert ends.keys() <= {"applied", "rejected", "failed_rolled_back"}, "the directory is back in a moment"


async def test_the_root_replaced_by_another_directory_all_the_time(tell: Callable[[str], None]) -> None:
    text = "*** Begin Patch\n*** Update File: b\n@@\n-one\n+one\n+more\n*** End Patch"
    async with raced("root", {"b": "one\n"}, text, tell) as (bench, outside, ends):
        found = await settled(bench, "root", sum(ends.values()))
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("b", "one\n")]
        assert (bench.root / "b").read_text().count("more\n") == found["applied"]
        assert ends["unknown"] == ends["failed_partial"] == found["failed_partial"] == 0, "the root is back in a moment"
        await require_tidy(bench)


@pytest.mark.parametrize("shared", [True, False], ids=["one database", "a database each"])
async def test_two_daemons_that_patch_one_root_lose_no_change(shared: bool) -> None:
    async with open_bench(files={"count": "0\n"}) as bench:
        environ = {"CODESPACE_OPERATIONS_DB": bench.daemon.settings.database} if shared else {}
        async with open_bench(environ=environ) as second:
            second.site.add_workspace("main", root=bench.root)
            await second.restart()
            applied: Counter[str] = Counter()

            async def count_up(daemon: Bench, name: str) -> None:
                while applied[name] < 15:
                    now = int((bench.root / "count").read_text())
                    text = f"*** Begin Patch\n*** Update File: count\n@@\n-{now}\n+{now + 1}\n*** End Patch"
                    status = await patch(daemon, text, f"{name} {applied.total()} {now}")
                    applied[name] += status == "applied"
                    await trio.lowlevel.checkpoint()

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(count_up, bench, "first")
                    nursery.start_soon(count_up, second, "second")
            assert (bench.root / "count").read_text() == f"{applied.total()}\n"
            await require_tidy(bench)
