"""The commands of docs/inbox.md do what the page says, run by a real curl from top to bottom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.errors import Refusal

from .test_inbox import OPERATOR, Desk, open_desk

PAGE = Path(__file__).parent.parent.parent / "docs" / "inbox.md"


async def hold(desk: Desk) -> dict[str, Any]:
    """Have an agent's patch held; return what the operator sees of it."""
    with pytest.raises(Refusal):
        await desk.bench.call("apply_patch", patch="*** Begin Patch\n*** Add File: a\n+a\n*** End Patch\n")
    (held,) = (await desk.ask("GET", "approvals"))["approvals"]
    return dict(held)


async def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    commands = [line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S) for line in block.splitlines()]
    assert len(commands) == 14
    async with open_desk(approvals="operator") as desk:
        work = await desk.open("parse")
        held = await hold(desk)
        known = {"INBOX": f"http://{desk.address.authority}/inbox", "WORK": work}
        known |= {"HELD": held["approval_id"], "SHOWN": held["fingerprint"]}
        known |= {"CODESPACE_OPERATOR_TOKEN": OPERATOR, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
        states, decided = list[str](), list[str]()
        for command in commands:
            with trio.fail_after(60):
                run = await trio.run_process(
                    ["sh", "-euc", command], env=known, cwd=tmp_path, capture_stdout=True, capture_stderr=True
                )
            assert run.stderr == b"", command
            answer = json.loads(run.stdout) if run.stdout else {}
            assert "code" not in answer, (command, answer)
            assert "error" not in answer, (command, answer)
            if answer.get("approval_id") == held["approval_id"]:
                decided.append(answer["state"])
            if "intent_id" in answer:
                known["INTENT"] = answer["intent_id"]
                states.append(answer["state"])
        assert decided == ["granted", "denied"]  # a grant that was not used is taken back
        assert states == ["draft", "draft", "queued", "cancelled"]
        notice = (await desk.bench.call("steer_claim_next", work_id=work))["intent"]
        assert (notice["kind"], notice["text"]) == ("stop_notice", "Stop. I have found the cause.")
