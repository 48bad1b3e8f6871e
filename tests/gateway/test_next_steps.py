"""What a refusal tells to do next leads on: done as told, the request comes to its end."""

from __future__ import annotations

from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing import open_bench
from codespace.testing.bench import Bench

ADD = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"


async def refused(bench: Bench, tool: str, /, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value


async def test_who_may_decide_is_told_to_ask_and_decide_and_not_to_wait_for_somebody_else() -> None:
    async with open_bench(approvals="confirm") as bench:
        hold = await refused(bench, "apply_patch", patch=ADD)
        assert hold.next_step is not None
        ask, decide, resume = map(hold.next_step.index, ("Ask your user", "approval_resolve", "operation_resume"))
        assert ask < decide < resume
        assert "approval_status" not in hold.next_step
        await bench.call("approval_resolve", approval_id=hold.approval_id, decision="grant")
        assert (await bench.call("operation_resume", approval_id=hold.approval_id))["state"] == "consumed"
        assert (bench.root / "a.txt").read_text() == "one\n"


async def test_who_may_not_decide_is_told_to_wait_for_the_operator() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await refused(bench, "apply_patch", patch=ADD)
        assert hold.next_step is not None
        assert "approval_status" in hold.next_step
        assert "approval_resolve" not in hold.next_step


async def test_who_may_decide_no_more_is_told_to_wait_for_the_operator_of_what_was_held_before_too() -> None:
    async with open_bench(approvals="confirm") as bench:
        before = await refused(bench, "apply_patch", patch=ADD)
        bench.site.add_workspace("main", approvals="operator")
        await bench.restart()
        hold = await refused(bench, "apply_patch", patch=ADD)
        assert (hold.approval_id, (hold.details or {})["approvals"]) == (before.approval_id, "operator")
        assert "approval_status" in hold.next_step
        assert "approval_resolve" not in hold.next_step
        await bench.daemon.operator.grant(str(hold.approval_id), by="the console")
        assert (await bench.call("operation_resume", approval_id=hold.approval_id))["state"] == "consumed"


async def test_a_directory_that_is_read_is_told_how_to_be_listed() -> None:
    async with open_bench(files={"src/a.py": "", "b.py": ""}) as bench:
        for path in ("src", "src/"):
            refusal = await refused(bench, "read", path=path)
            assert refusal.code == "SPECIAL_FILE_REJECTED"
            assert "find with the glob `directory/**`" in str(refusal.next_step)
        assert (await bench.call("find", glob="src/**"))["paths"] == ["src/a.py"]


async def test_a_key_without_an_operation_is_told_to_be_free_for_the_same_call() -> None:
    async with open_bench(approvals="confirm") as bench:
        hold = await refused(bench, "apply_patch", patch=ADD, operation_key="k")
        lost = await refused(bench, "operation_status", operation_key="k")
        assert lost.code == "OPERATION_NOT_FOUND"
        assert "send the same call with it again" in str(lost.next_step)
        assert (await refused(bench, "apply_patch", patch=ADD, operation_key="k")).approval_id == hold.approval_id
        unknown = await refused(bench, "operation_status", operation_id="op-none")
        assert "same call" not in str(unknown.next_step)


@pytest.mark.parametrize("kind", ["in-process", "uds"])
async def test_an_absolute_path_in_the_root_is_refused_with_the_relative_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODESPACE_RUNNER", kind)
    async with open_bench(files={"deep/a.txt": "one\n"}) as bench:
        path = str(bench.root / "deep/a.txt")
        patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-one\n+two\n*** End Patch\n"
        refusals = [
            (await refused(bench, "read", path=path), "deep/a.txt"),
            (await refused(bench, "apply_patch", patch=patch, check_only=True), "deep/a.txt"),
            (await refused(bench, "apply_patch", patch=patch, operation_key="k"), "deep/a.txt"),
            (await refused(bench, "exec_command", command=["ls"], cwd=f"{bench.root}/deep/"), "deep"),
            (await refused(bench, "exec_command", command=["ls"], cwd=str(bench.root)), "."),
        ]
        for refusal, relative in refusals:
            assert refusal.code == "PATH_ESCAPE"
            assert f"Send '{relative}' instead." in refusal.next_step, refusal.next_step
        assert "new operation_key" in refusals[2][0].next_step
        (entry,) = (await bench.call("read_many", paths=[path]))["entries"]
        assert "Send 'deep/a.txt' instead." in entry["error"]["next_step"]
        # Elsewhere, above it, and a name that could not be sent as it is shown.
        for outside in ("-other/a.txt", "/../x", "/deep/../../../etc/passwd", "/a\u202eb"):
            assert "instead" not in (await refused(bench, "read", path=f"{bench.root}{outside}")).next_step


async def test_a_variable_that_env_may_not_hold_is_set_in_the_command() -> None:
    async with open_bench() as bench:
        refusal = await refused(bench, "exec_command", command=["sh"], env={"A=B": "", "PYTHONPATH": "src"})
        assert '["env", "PYTHONPATH=...", ...]' in refusal.next_step
        command = ["env", "PYTHONPATH=src", "sh", "-c", "echo $PYTHONPATH"]
        assert (await bench.call("exec_command", command=command, wait_seconds=30))["chunk"] == "src\n"
        assert "in the command" not in (await refused(bench, "exec_command", command=["sh"], env={"A=B": ""})).next_step
