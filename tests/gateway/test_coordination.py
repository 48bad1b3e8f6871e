"""Every result of what belongs to a work says where the operator's input waits, also behind a hold."""

from __future__ import annotations

from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing import Bench, open_bench

WORKS = {"tools": ["work", "approvals"]}


async def steered(bench: Bench) -> str:
    """Open a work in which two things wait for its agent."""
    work_id = str((await bench.call("work_open", title="build it"))["work_id"])
    inbox = bench.daemon.inbox
    for text in ("use tabs", "say hello"):
        drafted = await inbox.draft(
            work_id=work_id, text=text, kind="follow_up", delivery="after_current_work", supersedes=None
        )
        await inbox.queue(intent_id=drafted["intent_id"], revision=None)
    return work_id


async def followed(bench: Bench, work_id: str) -> None:
    intent = (await bench.call("steer_claim_next", work_id=work_id))["intent"]
    await bench.call("steer_complete", work_id=work_id, intent_id=intent["intent_id"], outcome="done")


async def held(bench: Bench, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    assert caught.value.approval_id is not None
    await bench.call("approval_resolve", approval_id=caught.value.approval_id, decision="grant")
    return caught.value.approval_id


ASKED: dict[str, dict[str, Any]] = {
    "apply_patch": {"patch": "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch\n"},
    "exec_command": {"command": ["true"]},
}


@pytest.mark.parametrize("tool", ASKED)
async def test_a_resume_tells_what_waits_in_the_work_each_time_that_it_answers(tool: str) -> None:
    async with open_bench(approvals="confirm", options=WORKS) as bench:
        work_id = await steered(bench)
        hold = await held(bench, tool, work_id=work_id, **ASKED[tool])
        first = await bench.call("operation_resume", approval_id=hold)
        assert first["coordination"] == first[tool]["coordination"] == {"queued": 2, "claimed": 0}
        await followed(bench, work_id)
        again = await bench.call("operation_resume", approval_id=hold)
        assert again["coordination"] == {"queued": 1, "claimed": 0}, "as it is now, not as it was stored"
        await followed(bench, work_id)
        quiet = await bench.call("operation_resume", approval_id=hold)
        assert "coordination" not in quiet
        assert "coordination" not in quiet[tool]


@pytest.mark.parametrize("tool", ASKED)
async def test_a_resume_of_what_belongs_to_no_work_tells_of_none(tool: str) -> None:
    async with open_bench(approvals="confirm", options=WORKS) as bench:
        await steered(bench)
        resumed = await bench.call("operation_resume", approval_id=await held(bench, tool, **ASKED[tool]))
        assert "coordination" not in resumed
        assert "coordination" not in resumed[tool]
