"""Scoped grants: what the operator allowed for more than one request, for a time or until a daemon ends.

Kept in the database with their terms, which go when the grant ends. A grant decides nothing by itself:
a request of its scope is held like any other, and the hold is granted in its name. Each use is counted
and recorded. Only the operator gives and revokes; nothing here is reachable by an MCP caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import structlog
import trio
from sqlite_utils import Database

from codespace import ids, limits
from codespace.drive import Motion
from codespace.errors import Refusal
from codespace.gateway import scopes
from codespace.gateway.audit import Audit
from codespace.gateway.hold import Hold
from codespace.gateway.ledger import Ledger
from codespace.gateway.scopes import Scope
from codespace.gateway.scrubber import Scrubber
from codespace.gateway.store import Store
from statemachines.grant import Grant as Law

log = structlog.get_logger("codespace.grants")

_GIVEN: Final = "The operator granted what is like this hold, too."
_USED: Final = "A hold of its scope was granted in its name."


@dataclass(frozen=True, slots=True)
class Grant:
    """One row. `terms` is a digest once it has ended."""

    id: str
    workspace_id: str
    scope: Scope
    terms: Mapping[str, Any]
    state: str
    approval_id: str
    """The hold that it was given with."""
    created_at: float
    expires_at: float | None
    """None: until the daemon `instance_id` ends."""
    instance_id: str | None
    uses: int
    used_at: float | None
    ended_at: float | None

    @property
    def seconds(self) -> float | None:
        """For how long it was given, to the millisecond."""
        return None if self.expires_at is None else round(self.expires_at - self.created_at, 3)


_TWICE_SECONDS: Final = 5.0
# Within which the same grant is the same click; who gives it later wants it to last longer.
_COLUMNS: Final = tuple(field.name for field in fields(Grant))


class Grants:
    """The grants of one database, as one daemon or the command line sees them.

    Args:
        lives: Whether an instance is there: one that was killed never says that it ended.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        audit: Audit,
        wall_clock: Callable[[], float],
        instance_id: str,
        scrubber: Scrubber,
        lives: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._audit = audit
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._scrubber = scrubber
        self._lives = lives

    async def require_end(self, hold: Hold, seconds: float | None) -> None:
        """Refuse a grant with this hold that would be over at once, or never.

        Args:
            seconds: How long; None until the daemon that holds the request ends.
        Raises: Refusal INVALID_ARGUMENT.
        """
        require_time(seconds)
        if seconds is None and not await self._lives(hold.instance_id):
            raise Refusal(
                "INVALID_ARGUMENT",
                "The daemon that held the request has ended, and a grant until its end with it; nothing was granted.",
                next_step="Name a time for which it is granted.",
                details={"argument": "seconds"},
            )

    async def give(self, hold: Hold, scope: Scope, terms: Mapping[str, Any], seconds: float | None) -> Grant:
        """Record a grant for what is like a hold that the operator has just granted.

        Given again in the same words in the same moment, as by a click that was one too many, it is the one that is
        there: who revokes it must not be left with another.

        Args:
            terms: Of scopes.terms_of.
            seconds: How long, as `require_end` allows it.
        Raises: Refusal STORE_UNAVAILABLE; nothing was recorded, unless its details say `outcome: unknown`.
        """
        now = self._wall_clock()
        row = {
            "id": ids.mint(ids.GRANT),
            "workspace_id": hold.workspace_id,
            "scope": scope,
            "terms": json.dumps(dict(terms)),
            "state": "active",
            "approval_id": hold.id,
            "created_at": now,
            "expires_at": None if seconds is None else now + seconds,
            "instance_id": hold.instance_id if seconds is None else None,
            "uses": 0,
        }
        details = {"scope": scope, "approval_id": hold.id, "workspace_id": hold.workspace_id}

        def write(db: Database) -> Grant:
            for grant in _active(db, hold.workspace_id):
                same = (grant.approval_id, grant.scope, grant.terms, grant.seconds) == (hold.id, scope, terms, seconds)
                if same and now - grant.created_at < _TWICE_SECONDS:
                    return grant
            db.table("grants").insert(row)
            self._audit.append(db, "grant", str(row["id"]), "given", None, "active", _GIVEN, details)
            return _one(db, str(row["id"]))

        return await self._store.write(write, durable=True)

    async def use_for(self, hold: Hold, root: str) -> Grant | None:
        """Use a grant that covers the hold, if there is one: counted and recorded, in one transaction.

        Args:
            root: Of the hold's workspace.
        """

        def write(db: Database) -> Grant | None:
            for grant in _active(db, hold.workspace_id):
                if self._is_good(grant) and scopes.covers(grant.scope, grant.terms, hold, root):
                    db.execute(
                        "UPDATE grants SET uses = uses + 1, used_at = ? WHERE id = ?", (self._wall_clock(), grant.id)
                    )
                    self._audit.append(db, "grant", grant.id, "used", None, None, _USED, {"approval_id": hold.id})
                    return grant
            return None

        if not await self._store.read(lambda db: _has_active(db, hold.workspace_id)):
            return None
        return await self._store.write(write)

    async def listed(self, *, limit: int = limits.LIST_ROWS) -> list[Grant]:
        """Return the grants, those that are active first, the newest first."""
        return await self._store.read(lambda db: _listed(db, limit))

    async def revoke(self, grant_id: str) -> Grant:
        """End a grant; one that has ended stays as it is. Holds that were granted in its name stay granted.

        Raises: Refusal APPROVAL_NOT_FOUND.
        """
        return await self._end(grant_id, "taken_back")

    async def sweep(self) -> None:
        """End what has run out of time, and what was given until the end of a daemon that has ended.

        Raises: Refusal STORE_UNAVAILABLE.
        """
        for grant in await self._store.read(lambda db: _active(db, None)):
            if await self._is_over(grant):
                await self._end(grant.id, "time_ran_out")

    async def end_with(self, instance_id: str) -> None:
        """End what was given until this daemon ends. Raises: Refusal STORE_UNAVAILABLE."""
        for grant in await self._store.read(lambda db: _active(db, None)):
            if grant.instance_id == instance_id:
                await self._end(grant.id, "time_ran_out")

    async def tend(self) -> None:
        """Sweep now and then, until cancelled."""
        while True:
            try:
                await self.sweep()
            except Refusal as refusal:
                log.warning("grants could not be swept yet", code=refusal.code)
            except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
                log.exception("grants could not be swept")
            await trio.sleep(limits.HOLD_SWEEP_SECONDS)

    async def _is_over(self, grant: Grant) -> bool:
        if grant.expires_at is not None:
            return grant.expires_at <= self._wall_clock()
        return not await self._lives(str(grant.instance_id))

    def _is_good(self, grant: Grant) -> bool:
        if grant.expires_at is not None:
            return self._wall_clock() < grant.expires_at
        return grant.instance_id == self._instance_id

    async def _end(self, grant_id: str, event: str) -> Grant:
        def write(db: Database) -> Grant:
            grant = _one(db, grant_id)
            if grant.state == "active":  # one that has ended stays as it ended
                motion = Motion(Law, grant.id, grant.state, self._ledger.recorder("grant"))
                self._ledger.apply_within(db, motion.steps(event, changes={"terms": _digest(grant.terms)}))
            return _one(db, grant_id)

        ended = await self._store.write(write, durable=True)
        self._scrubber.soon()  # its terms are what was shown: argument lists, environments, input
        return ended


def require_time(seconds: float | None) -> None:
    """Refuse a time that no grant is given for. Raises: Refusal INVALID_ARGUMENT."""
    if seconds is not None and not 0 < seconds <= limits.GRANT_SECONDS_MAXIMUM:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"A grant is given for over 0 and at most {limits.GRANT_SECONDS_MAXIMUM:g} seconds; nothing was granted.",
            details={"argument": "seconds", "maximum": limits.GRANT_SECONDS_MAXIMUM},
        )


def _digest(terms: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps(dict(terms), sort_keys=True).encode()
    return {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}


def _has_active(db: Database, workspace_id: str) -> bool:
    sql = "SELECT 1 FROM grants WHERE workspace_id = ? AND state = 'active' LIMIT 1"
    return db.execute(sql, (workspace_id,)).fetchone() is not None


def _active(db: Database, workspace_id: str | None) -> list[Grant]:
    where = "state = 'active' AND (?1 IS NULL OR workspace_id = ?1)"
    return [_grant(row) for row in db.table("grants").rows_where(where, [workspace_id], order_by="created_at, rowid")]


def _listed(db: Database, limit: int) -> list[Grant]:
    order = "state = 'active' DESC, created_at DESC, rowid DESC"
    return [_grant(row) for row in db.table("grants").rows_where(order_by=order, limit=limit)]


def _one(db: Database, grant_id: str) -> Grant:
    for row in db.table("grants").rows_where("id = ?", [grant_id]):
        return _grant(row)
    raise Refusal(
        "APPROVAL_NOT_FOUND",
        "No grant of this id exists; nothing was changed.",
        next_step="Look at the list of grants.",
    )


def _grant(row: Mapping[str, Any]) -> Grant:
    known = {name: row[name] for name in _COLUMNS}  # a newer daemon may give its table more while this one runs
    return Grant(**{**known, "terms": json.loads(row["terms"])})
