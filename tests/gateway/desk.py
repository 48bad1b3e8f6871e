"""Works and their inbox on a real store, without a daemon around them: what the tests of both stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.audit import Audit
from codespace.gateway.inbox import Inbox
from codespace.gateway.ledger import Ledger
from codespace.gateway.operation import Operation
from codespace.gateway.store import Store
from codespace.gateway.work import Work
from codespace.gateway.works import Works

NOW = 1_700_000_000.5
WORKSPACE = Workspace(id="w", root="/w")
OTHER = Workspace(id="v", root="/v")


@dataclass
class Desk:
    """One operator's inbox and the works of one daemon's agents; `stopped` names workspaces whose commands ended."""

    store: Store
    ledger: Ledger
    works: Works
    inbox: Inbox
    stopped: list[str] = field(default_factory=list)

    async def open(self, title: str = "t", workspace: Workspace = WORKSPACE) -> str:
        return str((await self.works.open(workspace, title))["work_id"])

    async def draft(self, work_id: str, text: str = "do", **more: Any) -> str:
        asked = {"kind": "follow_up", "delivery": "after_current_work", "supersedes": None} | more
        return str((await self.inbox.draft(work_id=work_id, text=text, **asked))["intent_id"])

    async def queue(self, work_id: str, text: str = "do", **more: Any) -> str:
        intent_id = await self.draft(work_id, text, **more)
        await self.inbox.queue(intent_id=intent_id, revision=None)
        return intent_id

    async def claim(self, work_id: str) -> str | None:
        """Claim the next intent; return its id."""
        intent = (await self.works.claim_next(work_id)).get("intent")
        return None if intent is None else str(intent["intent_id"])

    async def done(self, work_id: str, intent_id: str) -> None:
        await self.works.complete(work_id, intent_id, "done", None)

    async def intent(self, intent_id: str) -> dict[str, Any]:
        """Return the intent as the operator sees it."""
        for work in (await self.inbox.works())["works"]:
            for intent in (await self.inbox.intents(work_id=work["work_id"]))["intents"]:
                if intent["intent_id"] == intent_id:
                    return dict(intent)
        raise LookupError(intent_id)

    async def state(self, intent_id: str) -> str:
        return str((await self.intent(intent_id))["state"])

    async def run_command(self, work_id: str, operation_id: str = "op-1") -> None:
        """Record a command of the work that has begun."""
        fields = {"kind": "exec", "tool": "exec_command", "workspace_id": "w", "root": "/w", "operation_key": None}
        await self.ledger.mint(
            Operation(
                id=operation_id,
                fingerprint="p",
                state="minted",
                instance_id="inst-1",
                created_at=NOW,
                work_id=work_id,
                **fields,  # type: ignore[arg-type]  # a dict of texts
            )
        )

    async def verified(self) -> bool:
        return (await self.store.read(audit.verify)).ok


@asynccontextmanager
async def open_desk(path: str = ":memory:", store: Store | None = None) -> AsyncIterator[Desk]:
    """Yield a desk on the database at `path`, or on an open store that stays open; again, it is the same operator's."""
    own = None if store else Store.open(path)
    store = own or store
    assert store is not None
    try:
        chain = Audit(lambda: NOW, "inst-1")
        ledger = Ledger(store, lambda: NOW, "inst-1", chain)
        works = Works(store, ledger, chain, lambda: NOW, store.secret("fingerprint"), {"w": WORKSPACE, "v": OTHER})
        stopped: list[str] = []

        async def stop_commands(work: Work) -> bool:
            await trio.lowlevel.checkpoint()
            stopped.append(work.workspace_id)
            return True

        async with trio.open_nursery() as nursery:
            inbox = Inbox(store, chain, works, nursery, stop_commands, lambda: NOW)
            yield Desk(store, ledger, works, inbox, stopped)
    finally:
        if own is not None:
            own.close()


async def code_of(call: Any) -> str:
    """Return the code of the refusal that an awaitable ends in, or `ok`."""
    try:
        await call
    except Refusal as refusal:
        return refusal.code
    return "ok"
