"""A client with a way to its user is asked about a hold, with its whole preview; the answer decides, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from codespace.errors import Refusal
from codespace.protocol.server import build_server
from codespace.testing import Bench, open_bench
from codespace.testing.calls import call
from codespace.testing.site import tree

PATCH = "*** Begin Patch\n*** Update File: log.txt\n@@\n   first\n+new \u202eline\n*** End Patch\n"
FILES = {"log.txt": "first\n"}


class User:
    """Who answers what a client asks."""

    def __init__(self, action: Any, **content: Any) -> None:
        self.action, self.content = action, content
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params.message)
        return types.ElicitResult(action=self.action, content=self.content or None)


@asynccontextmanager
async def asked(bench: Bench, user: User, mode: str = "legacy") -> AsyncIterator[Client]:
    """A client of the running daemon whose user can be asked."""
    server = build_server(bench.daemon.tools, version="0", exposed=bench.daemon.exposed)
    async with Client(server, mode=mode, elicitation_callback=user) as client:
        yield client


async def test_a_grant_runs_what_was_shown_and_the_call_answers_with_its_result() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        user = User("accept", decision="grant")
        async with asked(bench, user) as client:
            done = await call(client, "apply_patch", patch=PATCH)
            assert done["status"] == "applied"
            ran = await call(client, "exec_command", command=["sh", "-c", "exit 3"], env={"A": "1"})
            assert ran["exit_code"] == 3
        patch, command = user.questions
        for tool, question in (("apply_patch", patch), ("exec_command", command)):
            assert question.startswith(f"{tool} in workspace main, {bench.root}: held")
        assert "+new ⟨U+202E⟩line" in patch
        assert "note: log.txt, chunk 1: placed with white space ignored; its new" in patch
        assert 'command: ["sh", "-c", "exit 3"]' in command
        assert 'env: {"A": "1"}' in command
        usual = ("stdin", "open_stdin", "tty", "rows", "cols")
        assert [name for name in usual if f"\n{name}: " in command] == []
        assert tree(bench.root)["log.txt"] == "first\nnew \u202eline\n".encode()


@pytest.mark.parametrize(
    "user", [User("decline"), User("accept", decision="deny")], ids=["declines", "accepts the form and denies"]
)
async def test_a_denial_is_final(user: User) -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench, asked(bench, user) as client:
        with pytest.raises(Refusal) as caught:
            await call(client, "apply_patch", patch=PATCH)
        assert caught.value.code == "UNAUTHORIZED"
        status = await call(client, "approval_status", approval_id=caught.value.approval_id)
        assert status["state"] == "denied"
        assert tree(bench.root) == {"log.txt": b"first\n"}


@pytest.mark.parametrize(
    "user",
    [User("cancel"), User("accept", decision="whatever"), User("accept", approved=True)],
    ids=["cancels", "says something else", "claims"],
)
async def test_no_decision_leaves_the_hold_pending(user: User) -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench, asked(bench, user) as client:
        with pytest.raises(Refusal) as caught:
            await call(client, "apply_patch", patch=PATCH)
        assert caught.value.code == "APPROVAL_REQUIRED"
        status = await call(client, "approval_status", approval_id=caught.value.approval_id)
        assert status["state"] == "pending"


async def test_where_the_operator_decides_a_client_is_not_asked_and_its_answer_would_count_for_nothing() -> None:
    async with open_bench(files=FILES, approvals="operator") as bench:
        user = User("accept", decision="grant")
        async with asked(bench, user) as client:
            with pytest.raises(Refusal) as caught:
                await call(client, "apply_patch", patch=PATCH)
        assert caught.value.code == "APPROVAL_REQUIRED"
        assert "operator" in caught.value.next_step
        assert user.questions == []
        assert tree(bench.root) == {"log.txt": b"first\n"}


async def test_a_client_of_the_era_without_a_way_back_is_not_asked() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:
        user = User("accept", decision="grant")
        async with asked(bench, user, "2026-07-28") as client:
            with pytest.raises(Refusal) as caught:
                await call(client, "apply_patch", patch=PATCH)
        assert caught.value.code == "APPROVAL_REQUIRED"
        assert user.questions == []


async def test_whatever_differs_from_a_plain_command_is_in_the_question_and_nothing_else() -> None:
    async with open_bench(approvals="confirm") as bench:
        user = User("decline")
        async with asked(bench, user) as client:
            for given in ({"stdin": "words"}, {"open_stdin": True}, {"tty": True, "rows": 9, "cols": 99}, {}):
                with pytest.raises(Refusal):
                    await call(client, "exec_command", command=["true"], **given)
        first, second, third, plain = user.questions
        assert 'stdin: "words"' in first
        assert "open_stdin: true" in second
        assert [wanted for wanted in ("tty: true", "rows: 9", "cols: 99") if wanted not in third] == []
        told = [line.partition(":")[0] for line in plain.splitlines()[2:]]
        assert told == ["command", "cwd", "timeout_seconds", "bound"]
