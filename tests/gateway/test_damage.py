"""Rows that are not as they were written: what cannot be read is said to be so, and ends no daemon."""

from __future__ import annotations

import pytest
import structlog.testing
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.database import connect
from codespace.testing import open_bench


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE holds SET shown = '[]', expires_at = 1", "holds could not be swept"),
        ("UPDATE grants SET terms = '1', expires_at = 1", "grants could not be swept"),
    ],
)
async def test_a_daemon_outlives_a_row_that_its_rounds_cannot_make_sense_of(
    damage: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOLD_SWEEP_SECONDS", 0.01)
    async with open_bench(approvals="operator") as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["true"])
        hold = str(caught.value.approval_id)
        if "grants" in damage:
            await bench.daemon.operator.grant(hold, by="test", scope="exact", seconds=60)
        with structlog.testing.capture_logs() as logged, trio.fail_after(30):
            with connect(bench.daemon.settings.database) as db:
                db.execute(damage)
            while said not in [entry["event"] for entry in logged]:
                await trio.lowlevel.checkpoint()
        assert (await bench.call("list_processes"))["processes"] == []
