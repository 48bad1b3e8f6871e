"""Approvals at /inbox: for who holds the operator's token, decided by the fingerprint that was shown."""

from __future__ import annotations

from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing.site import tree

from .test_inbox import TOKEN, Desk, open_desk

PATCH = "*** Begin Patch\n*** Add File: src/new.txt\n+CANARY\n*** End Patch\n"


async def held(desk: Desk, patch: str = PATCH) -> str:
    with pytest.raises(Refusal) as caught:
        await desk.bench.call("apply_patch", patch=patch)
    assert caught.value.approval_id is not None, caught.value
    return caught.value.approval_id


async def test_the_operator_lists_reads_and_grants_what_was_shown() -> None:
    async with open_desk(approvals="operator") as desk:
        hold = await held(desk)
        (listed,) = (await desk.ask("GET", "approvals"))["approvals"]
        shown = await desk.ask("GET", f"approvals/{hold}")
        assert listed == shown
        assert "+CANARY" in shown["shown"]["diff"]
        assert "body" not in shown
        granted = await desk.ask("POST", f"approvals/{hold}/grant", fingerprint=shown["fingerprint"])
        assert granted == {"approval_id": hold, "state": "granted"}
        await desk.bench.call("operation_resume", approval_id=hold)
        assert tree(desk.bench.root) == {"src/new.txt": b"CANARY\n"}
        assert (await desk.ask("GET", "approvals"))["approvals"] == []


async def test_a_decision_without_what_was_shown_or_for_something_else_is_refused() -> None:
    async with open_desk(approvals="operator") as desk:
        hold = await held(desk)
        wrong: list[tuple[int, str, dict[str, Any]]] = [
            (400, "INVALID_ARGUMENT", {}),
            (400, "INVALID_ARGUMENT", {"fingerprint": True}),
            (409, "APPROVAL_CONFLICT", {"fingerprint": "0" * 64}),
        ]
        for decision in ("grant", "deny"):
            for status, code, sent in wrong:
                await desk.refused("POST", f"approvals/{hold}/{decision}", status, code, **sent)
        await desk.refused("POST", "approvals/appr-none/deny", 404, "APPROVAL_NOT_FOUND", fingerprint="0" * 64)
        assert (await desk.bench.call("approval_status", approval_id=hold))["state"] == "pending"


async def test_a_denial_is_final_and_a_scope_is_granted_with_the_hold() -> None:
    async with open_desk(approvals="operator") as desk:
        denied, wanted = await held(desk), await held(desk, PATCH.replace("new", "other"))
        prints = {
            each["approval_id"]: each["fingerprint"] for each in (await desk.ask("GET", "approvals"))["approvals"]
        }
        await desk.ask("POST", f"approvals/{denied}/deny", fingerprint=prints[denied])
        await desk.refused("POST", f"approvals/{denied}/grant", 409, "APPROVAL_CONFLICT", fingerprint=prints[denied])
        scope = {"scope": "patches", "path": "src", "seconds": 600}
        sent = scope | {"fingerprint": prints[wanted]}
        given = (await desk.http.post(f"/inbox/approvals/{wanted}/grant", json=sent)).json()
        assert given["grant"]["scope"] == "patches"
        done = await desk.bench.call("apply_patch", patch=PATCH.replace("new", "third"))
        assert done["status"] == "applied"


@pytest.mark.parametrize("token", [None, TOKEN, "wrong"])
async def test_nobody_else_lists_or_grants(token: str | None) -> None:
    async with open_desk(approvals="operator") as desk:
        hold = await held(desk)
        fingerprint = (await desk.ask("GET", f"approvals/{hold}"))["fingerprint"]
        async with desk.client(token) as client:
            for path in ("approvals", f"approvals/{hold}"):
                assert (await client.get(f"/inbox/{path}")).status_code == 401
            answer = await client.post(f"/inbox/approvals/{hold}/grant", json={"fingerprint": fingerprint})
            assert answer.status_code == 401
        assert (await desk.bench.call("approval_status", approval_id=hold))["state"] == "pending"
