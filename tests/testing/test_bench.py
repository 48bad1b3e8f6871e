"""The bench is a whole daemon: it works, restarts on the same folders, and moves stored time."""

from __future__ import annotations

import pytest
import trio.testing

from codespace.errors import Refusal
from codespace.testing import open_bench
from codespace.testing.calls import call

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+new\n*** End Patch\n"


async def test_a_bench_reads_patches_and_runs() -> None:
    async with open_bench(files={"a.txt": "a\n"}) as bench:
        assert (await bench.call("read", path="a.txt"))["content"] == "a\n"
        assert (await bench.call("apply_patch", patch=PATCH))["status"] == "applied"
        assert (await bench.call("exec_command", command=["cat", "new.txt"]))["chunk"] == "new\n"


async def test_a_restarted_bench_remembers_keys_and_processes_that_ended() -> None:
    async with open_bench() as bench:
        first = await bench.call("apply_patch", patch=PATCH, operation_key="k")
        ran = await bench.call("exec_command", command=["/bin/true"], operation_key="r")
        await bench.restart()
        again = await bench.call("apply_patch", patch=PATCH, operation_key="k")
        assert (again["replayed"], again["operation_id"]) == (True, first["operation_id"])
        status = await bench.call("operation_status", operation_key="r")
        assert (status["status"], status["process_id"]) == ("exited", ran["process_id"])


async def test_several_clients_of_both_eras_share_one_bench() -> None:
    async with open_bench() as bench, bench.attach("2026-07-28") as second:
        await bench.call("apply_patch", patch=PATCH)
        assert (await call(second, "read", path="new.txt"))["content"] == "new\n"


async def test_a_hold_expires_when_stored_time_moves_on() -> None:
    async with open_bench(approvals="confirm", options={"approval_expiry_seconds": 60}) as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=PATCH)
        approval_id = caught.value.approval_id
        bench.advance(61)
        with pytest.raises(Refusal) as caught:
            await bench.call("approval_resolve", approval_id=approval_id, decision="grant")
        assert caught.value.code == "APPROVAL_EXPIRED"
        assert not (bench.root / "new.txt").exists()


async def test_a_grant_does_not_outlive_the_profile_it_was_given_under() -> None:
    async with open_bench(approvals="confirm") as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=PATCH)
        approval_id = caught.value.approval_id
        await bench.call("approval_resolve", approval_id=approval_id, decision="grant")
        bench.site.workspaces["main"]["profile"] = "read-only"
        bench.site.write()
        await bench.restart()
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=approval_id)
        assert caught.value.code == "UNAUTHORIZED"
        assert not (bench.root / "new.txt").exists()


async def test_a_mock_clock_moves_with_stored_time(mock_clock: trio.testing.MockClock) -> None:
    async with open_bench(files={"a.txt": "a\n"}) as bench:
        began = trio.current_time()
        bench.advance(3600)
        assert trio.current_time() == began + 3600
        assert (await bench.call("read", path="a.txt"))["content"] == "a\n"


async def test_a_bench_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_bench(profile="full-access"):
            pytest.fail("it must not start")
    assert "profile" in str(caught.value.exceptions[0])
