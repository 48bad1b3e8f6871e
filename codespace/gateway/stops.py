"""Asking another daemon on the same database to end a process that it runs, and hearing such requests.

The database has no way to call a daemon, so each looks at its own requests now and then, and only
while it runs a process that could be meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.store import Store

log = structlog.get_logger("codespace.stops")


@dataclass(frozen=True, slots=True)
class StopRequest:
    """One request to a daemon."""

    process_id: str
    grace_seconds: float


class Stops:
    """The requests of one database, as one daemon sees them."""

    def __init__(self, store: Store, wall_clock: Callable[[], float], instance_id: str) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._instance_id = instance_id

    async def ask(self, process_id: str, instance_id: str, grace_seconds: float) -> None:
        """Ask a daemon to end a process; asked twice, the shorter grace stands.

        Raises: Refusal STORE_UNAVAILABLE; nothing was asked.
        """
        row = (process_id, instance_id, grace_seconds, self._wall_clock())
        await self._store.write(lambda db: _insert(db, row))

    async def hear(
        self, is_needed: Callable[[], bool], end: Callable[[StopRequest], Awaitable[None]], nursery: trio.Nursery
    ) -> None:
        """Serve requests to this daemon until cancelled.

        Args:
            is_needed: Whether there is a process that could be meant.
            end: Ends one process, and answers for its own failures.
            nursery: Where each end runs: a long grace must not hold up the next request.
        """
        while True:
            await trio.sleep(limits.STOP_LOOK_SECONDS)
            if is_needed():
                for request in await self._take():
                    nursery.start_soon(end, request)

    async def _take(self) -> list[StopRequest]:
        try:
            if not await self._store.read(lambda db: _is_asked(db, self._instance_id)):
                return []
            # What was asked since the look is taken too: what goes from the table is what is heard.
            rows = await self._store.write(lambda db: _take_out(db, self._instance_id))
        except Refusal as refusal:
            log.warning("requests to end a process could not be looked for", code=refusal.code)
            return []
        return [StopRequest(process_id, grace_seconds) for process_id, grace_seconds in rows]

    async def forget(self, instance_id: str) -> None:
        """Drop what was asked of a daemon that is gone."""
        await self._store.write(lambda db: _take_out(db, instance_id))


def _insert(db: Database, row: tuple[str, str, float, float]) -> None:
    db.execute(
        "INSERT INTO stop_requests (process_id, instance_id, grace_seconds, requested_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (process_id) DO UPDATE SET grace_seconds = min(grace_seconds, excluded.grace_seconds)",
        row,
    )


def _is_asked(db: Database, instance_id: str) -> bool:
    return (
        db.execute("SELECT 1 FROM stop_requests WHERE instance_id = ? LIMIT 1", (instance_id,)).fetchone() is not None
    )


def _take_out(db: Database, instance_id: str) -> list[tuple[str, float]]:
    sql = "DELETE FROM stop_requests WHERE instance_id = ? RETURNING process_id, grace_seconds"
    return [(str(process_id), float(grace)) for process_id, grace in db.execute(sql, (instance_id,))]
