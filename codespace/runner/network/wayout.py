"""The way out of one networked run: a listener inside, a door of the proxy behind it, and what the door decided.

There is no other way: where the door is gone, the run has no network. What is decided here is nothing;
it is only opened, listened to, told and closed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import structlog
import trio

from codespace import limits
from codespace.contract import Domain, NetworkNews
from codespace.runner.network.decisions import Decision, Decisions
from codespace.runner.network.door import Door, unavailable
from codespace.runner.network.proxy import Proxy
from codespace.sandbox import listener

log = structlog.get_logger("codespace.network")

_GONE = (
    "The network door of this run ended before the run did: from then on it had no network. Call again; if it repeats, "
    "ask the operator to run `codespace doctor`."
)


class WayOut:
    """Belongs to one run: opened while its gate is shut, closed once its tree is gone."""

    def __init__(self, proxy: Proxy, domains: Sequence[Domain], process_id: str) -> None:
        self._proxy = proxy
        self._domains = domains
        self._process_id = process_id
        self._door: Door | None = None
        self._decisions = Decisions()
        self._became_due = trio.Event()
        self._over = False
        """Nothing more will be decided."""
        self._lost = False

    async def open(self, pid: int) -> None:
        """Make the listener in the network namespace of process `pid` and open a door behind it.

        Args:
            pid: Process 1 of a sandbox whose gate is shut; its parent waits for it.
        Raises: Refusal SANDBOX_UNAVAILABLE, SHUTTING_DOWN; no door is left then.
        Cancel: as an error.
        """
        try:
            socket = await trio.to_thread.run_sync(listener.listen, pid)
        except OSError as error:
            raise unavailable(f"has no place inside ({error.strerror or error})") from error
        self._door = await self._proxy.open(self._domains, socket)

    async def watch(self) -> None:
        """Take the door's decisions until it is closed, or is lost; run it beside the command."""
        assert self._door is not None
        await self._door.watch(self._take)
        self._lost = True

    async def close(self) -> None:
        """Close the door for good; `watch` has ended. Cancel: not possible; bounded by limits.PROXY_END_SECONDS."""
        try:
            if self._door is not None:
                await self._door.close(self._take)
        finally:
            self._end()

    def drop(self) -> None:
        """Let go of the door without its last words. It closes by itself then; never blocks."""
        if self._door is not None:
            self._door.drop()
        self._end()

    def _end(self) -> None:
        self._over = True
        self._became_due.set()

    async def wait_news(self, cursor: int) -> NetworkNews | None:
        """Return what became due behind `cursor` once there is some; None once nothing will follow.

        Cancel: nothing is consumed; ask again with the same cursor.
        """
        while (news := self._decisions.news(cursor)) is None and not self._over:
            await self._became_due.wait()
        await trio.lowlevel.checkpoint()
        return news

    def _take(self, decision: Decision) -> None:
        due = self._decisions.due
        is_first = self._decisions.add(decision)
        if self._decisions.due != due:
            self._became_due.set()
            self._became_due = trio.Event()
        if is_first:
            log.info(
                "network decision",
                process_id=self._process_id,
                host=decision.host,
                port=decision.port,
                allowed=decision.allowed,
                code=decision.code,
                rule=decision.rule,
            )

    def rows(self) -> tuple[dict[str, Any], ...]:
        """Return what was decided so far, as a result shows it."""
        return tuple(self._decisions.rows())

    def notes(self) -> list[str]:
        """Return why something did not come through, and what the operator would have to add."""
        rows = self._decisions.rows()
        refused = [row for row in rows if not row["allowed"]]
        failed = [row for row in rows if row["allowed"] and row["code"] != "listed"]
        notes = [_refused(row) for row in refused[: limits.PROXY_NOTES]]
        notes += [f"{_place(row)}: allowed, but {row['code']}: {row['reason']}" for row in failed[: limits.PROXY_NOTES]]
        left_out = sum(max(0, len(kind) - limits.PROXY_NOTES) for kind in (refused, failed)) + self._decisions.not_kept
        if left_out:
            notes.append(f"{left_out} more network decisions are not told here.")
        if self._lost:
            notes.append(_GONE)
        return notes


def _refused(row: dict[str, Any]) -> str:
    said = f"The network refused a request: {row['reason']}"
    if row["code"] == "not-global":
        pin = json.dumps({"host": row["host"], "port": row["port"], "address": "..."})
        return f"{said} If it is meant, the operator adds a pin to its address to `allowed_domains`: `{pin}`."
    if row["code"] != "not-listed" or not row["host"]:
        return said
    port = row["port"]
    entry = row["host"] if port in (None, 80, 443) else f"{row['host']}:{port}"
    return f"{said} To allow it, the operator adds `{entry}` to `allowed_domains` of this workspace."


def _place(row: dict[str, Any]) -> str:
    if not row["host"]:
        return "a request that named no host"
    return row["host"] if row["port"] is None else f"{row['host']}:{row['port']}"
