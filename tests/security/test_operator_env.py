"""Values of the operator's `env` reach the command, and nothing that CodeSpace itself says, stores or logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree

CANARY = "canary-3f1c9d"
ENV = {"API_TOKEN": CANARY, "PATH": f"/usr/bin:/bin:/opt/{CANARY}"}


async def said(bench: Bench, tool: str, **arguments: Any) -> str:
    """Return all that a call answers, also where it refuses."""
    try:
        return json.dumps(await bench.call(tool, **arguments))
    except Refusal as refusal:
        return json.dumps(refusal.body())


@pytest.mark.parametrize("approvals", ["off", "confirm"])
async def test_the_operators_values_are_in_the_output_of_the_program_alone(
    approvals: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_bench(approvals=approvals, workspace={"env": ENV}) as bench:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("workspace_info", {}),
            ("exec_command", {"command": ["sh", "-c", 'test -n "$API_TOKEN"'], "operation_key": "k"}),
            ("exec_command", {"command": ["no-such-program"]}),
            ("exec_command", {"command": ["./missing"]}),
            ("exec_command", {"command": ["sh", "-c", "exit 3"], "env": {"API_TOKEN": "mine"}}),
            ("exec_command", {"command": ["sleep", "600"], "wait_seconds": 0, "env": {"LD_PRELOAD": "x"}}),
            ("list_processes", {}),
            ("operation_status", {"operation_key": "k"}),
        ]
        told = [await said(bench, tool, **arguments) for tool, arguments in calls]
        if approvals == "confirm":
            held = json.loads(told[1])
            await bench.call("approval_resolve", approval_id=held["approval_id"], decision="grant")
            told.append(await said(bench, "operation_resume", approval_id=held["approval_id"]))
            told.append(await said(bench, "approval_status", approval_id=held["approval_id"]))
            told.append(await said(bench, "list_processes"))
        await bench.restart()
        told.append(await said(bench, "list_processes"))
        assert not [text for text in told if CANARY in text]
        assert not [path for path, data in tree(bench.site.state).items() if CANARY.encode() in data]
    output = capsys.readouterr()
    assert CANARY not in output.out + output.err


async def test_the_program_itself_gets_them_and_they_win_over_the_callers() -> None:
    async with open_bench(workspace={"env": ENV}) as bench:
        ran = await bench.call("exec_command", command=["sh", "-c", "echo $API_TOKEN"], env={"API_TOKEN": "mine"})
        assert ran["chunk"] == f"{CANARY}\n"
