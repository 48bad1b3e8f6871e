"""The patch driver in a whole daemon: cancelled anywhere, raced by others, replayed by key."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.contract import Caller
from codespace.errors import Refusal
from codespace.gateway import lasting
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.site import tree

CALLER = Caller("memory")
BEFORE = {f"f{number}.txt": f"old {number}\n" for number in range(5)}
PATCH = "".join(
    ["*** Begin Patch\n"]
    + [f"*** Update File: f{number}.txt\n@@\n-old {number}\n+new {number}\n" for number in range(5)]
    + ["*** Add File: deep/er/g.txt\n+added\n*** End Patch\n"]
)
AFTER = {f"f{number}.txt": f"new {number}\n".encode() for number in range(5)} | {"deep/er/g.txt": b"added\n"}
OLD = {name: text.encode() for name, text in BEFORE.items()}


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a patch wait behind another one for as long as a slow machine takes for that."""
    monkeypatch.setattr(limits, "PATCH_WAIT_SECONDS", 60.0)


async def apply(bench: Bench, patch: str = PATCH, **arguments: Any) -> dict[str, Any]:
    """Call the gate itself, so that a cancel reaches it at once."""
    given = dict.fromkeys(("expected_versions", "operation_key", "work_id")) | {"check_only": False} | arguments
    return await bench.daemon.tools.apply_patch(CALLER, workspace_id="main", patch=patch, **given)


async def final(bench: Bench, key: str) -> dict[str, Any]:
    """Wait for the operation's end: the same call again waits for the one in flight."""
    with suppress(Refusal):
        await apply(bench, operation_key=key)
    return await bench.daemon.tools.operation_status(CALLER, operation_id=None, operation_key=key)


@pytest.mark.parametrize("seed", range(24))
async def test_cancelled_at_any_moment_the_tree_is_whole_and_the_ledger_says_which(seed: int) -> None:
    chance = random.Random(seed)
    async with open_bench(files=BEFORE) as bench:
        with trio.move_on_after(chance.uniform(0, 0.04)) as scope:
            await apply(bench, operation_key="k")
        status = (await final(bench, "k"))["status"]
        assert status in (("applied", "rejected") if scope.cancelled_caught else ("applied",))
        assert tree(bench.root) == (AFTER if status == "applied" else OLD)
        fresh = await apply(bench, "*** Begin Patch\n*** Add File: after.txt\n+free\n*** End Patch\n")
        assert fresh["status"] == "applied"  # whatever happened, the root is free again


async def test_two_calls_with_one_key_at_the_same_time_have_one_effect() -> None:
    async with open_bench(files=BEFORE) as bench:
        results: list[dict[str, Any]] = []

        async def one() -> None:
            results.append(await apply(bench, operation_key="k"))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
        assert len({result["operation_id"] for result in results}) == 1
        assert sorted(result["replayed"] for result in results) == [False, True, True, True]
        assert tree(bench.root) == AFTER


async def test_a_key_repeats_a_refusal_and_conflicts_with_other_arguments() -> None:
    wrong = PATCH.replace("old 3", "not there")
    async with open_bench(files=BEFORE) as bench:
        with pytest.raises(Refusal) as first:
            await apply(bench, wrong, operation_key="k")
        with pytest.raises(Refusal) as second:
            await apply(bench, wrong, operation_key="k")
        with pytest.raises(Refusal) as other:
            await apply(bench, operation_key="k")
        assert (first.value.code, second.value.code) == ("INVALID_PATCH", "INVALID_PATCH")
        assert first.value.details is not None
        assert second.value.details is not None
        assert (first.value.details["status"], first.value.details["replayed"]) == ("rejected", False)
        assert second.value.details["replayed"] is True
        assert (second.value.retryable, "new one" in second.value.next_step) == (False, True)
        assert "new operation_key" in first.value.next_step
        assert "new operation_key" not in second.value.next_step
        assert other.value.code == "OPERATION_KEY_CONFLICT"
        assert tree(bench.root) == OLD


async def test_a_patch_that_was_rolled_back_says_that_its_key_is_taken() -> None:
    faults = Faults()
    two = "".join(f"*** Update File: {name}\n@@\n-one\n+two\n" for name in "ab")
    async with open_bench(files={"a": "one\n", "b": "one\n"}, runner=faults.open_runner) as bench:

        async def save() -> None:
            (bench.root / "b").write_text("theirs\n")

        faults.order("before", "install", save)
        with pytest.raises(Refusal) as caught:
            await apply(bench, f"*** Begin Patch\n{two}*** End Patch", operation_key="k")
    assert caught.value.code == "PATCH_ROLLED_BACK"
    assert caught.value.next_step.endswith("this one is taken by the call that was refused.")


def test_a_refusal_that_its_key_repeats_is_not_worth_the_same_call_again() -> None:
    for key, again in (("k", False), (None, True)):
        assert lasting.taking(key, Refusal("TIMEOUT", "It took too long.", retryable=True)).retryable is again


async def test_a_key_is_refused_for_a_patch_that_was_made_for_other_versions() -> None:
    async with open_bench(files=BEFORE) as bench:
        with pytest.raises(Refusal) as first:
            await apply(bench, operation_key="k", expected_versions={"nowhere": "sha256:" + "0" * 64})
        with pytest.raises(Refusal) as other:
            await apply(bench, operation_key="k", expected_versions={"nowhere": "absent"})
        assert (first.value.code, other.value.code) == ("VERSION_CONFLICT", "OPERATION_KEY_CONFLICT")
        assert tree(bench.root) == OLD


async def test_a_replay_says_whether_the_files_are_still_so_after_a_restart_too() -> None:
    async with open_bench(files=BEFORE) as bench:
        await apply(bench, operation_key="k")
        await bench.restart()
        assert (await apply(bench, operation_key="k"))["still_current"] is True
        Path(bench.root, "f0.txt").write_text("someone else\n")
        again = await apply(bench, operation_key="k")
        assert (again["replayed"], again["still_current"]) == (True, False)
        assert Path(bench.root, "f0.txt").read_text() == "someone else\n"


async def test_the_order_of_arguments_of_a_call_does_not_make_another_request_and_waiting_longer_neither() -> None:
    async with open_bench(files=BEFORE) as bench:
        versions = {"f0.txt": (await bench.call("read", path="f0.txt"))["version"], "nothing.txt": "absent"}
        await apply(bench, operation_key="k", expected_versions=versions)
        again = dict(reversed(versions.items()))
        assert (await apply(bench, operation_key="k", expected_versions=again, work_id="work-x"))["replayed"] is True


async def test_a_preview_leaves_no_row_no_key_and_no_journal() -> None:
    async with open_bench(files=BEFORE) as bench:
        checked = await bench.call("apply_patch", patch=PATCH, check_only=True, operation_key="k")
        assert checked["status"] == "checked"
        assert sorted(change["kind"] for change in checked["changes"]) == ["add"] + ["update"] * 5
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_status", operation_key="k")
        assert caught.value.code == "OPERATION_NOT_FOUND"
        journal = Path(bench.daemon.settings.state_dir, "journal")
        assert not journal.exists() or not any(journal.iterdir())
        assert tree(bench.root) == OLD


async def test_previews_beside_a_patch_push_no_plan_of_a_patch_out() -> None:
    async with open_bench(files=BEFORE) as bench, trio.open_nursery() as nursery:

        async def look(number: int) -> None:
            patch = f"*** Begin Patch\n*** Add File: look{number}\n+x\n*** End Patch"
            while True:
                await apply(bench, patch, check_only=True)

        for number in range(3 * limits.PLANS_HELD):
            nursery.start_soon(look, number)
        for number in range(10):
            patch = f"*** Begin Patch\n*** Add File: n{number}\n+x\n*** End Patch"
            assert (await bench.call("apply_patch", patch=patch))["status"] == "applied"
        nursery.cancel_scope.cancel()
