"""What one row of holds says, and how it is written to and read from its table.

It moves nothing: a row is inserted once, and from then on changed by recorded steps alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqlite_utils import Database

from codespace import limits
from codespace.errors import Refusal

Authority = Literal["caller", "operator", "grant"]
"""Who decides: an MCP caller, the operator's own channel, or what the operator granted before."""

EXPIRED: Final = "expired"
"""The reason of a hold that was denied by time."""
ACTIVE: Final = "state IN ('pending', 'granted', 'resuming')"
"""SQL: it may still run."""
UNDECIDED: Final = frozenset({"pending", "granted"})
RUNNABLE: Final = UNDECIDED | {"resuming"}
_IN_TIME: Final = "(state = 'resuming' OR expires_at > :now)"
_OLDEST: Final = "created_at, rowid"
_NEWEST: Final = "created_at desc, rowid desc"
_SHORT: Final = "json_set(json_remove(shown, '$.diff', '$.stdin', '$.data'), '$.left_out', json('true'))"
_OUTLINE: Final = (
    "id, tool, workspace_id, operation_key, fingerprint, state, '{}' AS body, "
    f"CASE WHEN length(shown) <= :most THEN shown ELSE {_SHORT} END AS shown, reason, expires_at, created_at, result, "
    "root, approvals, instance_id, caller, decided_by, operation_id"
)


@dataclass(frozen=True, slots=True)
class Hold:
    """One row. `body` is None once the hold is denied or consumed; `result` is only there then."""

    id: str
    tool: str
    workspace_id: str
    operation_key: str | None
    fingerprint: str
    state: str
    body: Mapping[str, Any] | None
    shown: Mapping[str, Any]
    reason: str | None
    expires_at: float
    created_at: float
    result: Mapping[str, Any] | None
    approvals: str
    """The workspace's approvals when it was placed: what was held for the operator stays the operator's."""
    instance_id: str
    """Of the daemon that holds it, or runs it."""
    caller: str
    """The transport that the request came by."""
    decided_by: Authority | None = None
    operation_id: str | None = None
    root: str | None = None
    """Of its workspace. None in a row from before this was kept, where no operation tells it."""

    @property
    def expired(self) -> bool:
        return self.state == "denied" and self.reason == EXPIRED


def insert(db: Database, row: Mapping[str, Any]) -> str | None:
    """Insert a hold and return None; or, without one, the id of the active one that has its fingerprint or key.

    Args:
        row: Without `size_bytes`.
    Raises: Refusal LIMIT_REACHED.
    """
    taken = db.execute(
        f"SELECT id FROM holds WHERE (fingerprint = ? OR operation_key = ?) AND {ACTIVE}",  # noqa: S608
        (row["fingerprint"], row["operation_key"]),
    ).fetchone()
    if taken is not None:
        return str(taken[0])
    size_bytes = len(row["body"]) + len(row["shown"])  # JSON in ASCII
    _require_room(db, row["workspace_id"], row["root"], row["created_at"], size_bytes)
    db.table("holds").insert({**row, "size_bytes": size_bytes})
    return None


def _require_room(db: Database, workspace_id: str, root: str, now: float, size_bytes: int) -> None:
    waiting, waiting_bytes = db.execute(
        "SELECT count(*), coalesce(sum(size_bytes), 0) FROM holds WHERE workspace_id = ?1 AND coalesce(root, ?2) = ?2 "
        "AND state IN ('pending', 'granted') AND expires_at > ?3",
        (workspace_id, root, now),
    ).fetchone()
    is_full = waiting_bytes + size_bytes > limits.HOLDS_WAITING_BYTES and waiting > 0
    if waiting < limits.HOLDS_WAITING and not is_full:
        return
    limit, maximum = ("bytes of holds", limits.HOLDS_WAITING_BYTES) if is_full else ("holds", limits.HOLDS_WAITING)
    raise Refusal(
        "LIMIT_REACHED",
        f"{waiting} requests of workspace {workspace_id} are held already, {waiting_bytes} bytes; this one is not, and "
        "nothing was done.",
        next_step="Have some of them decided and resume them, or wait until they expire.",
        details={"limit": limit, "maximum": maximum},
    )


def many(db: Database, where: str, value: str | float, limit: int | None = None) -> list[Hold]:
    """Return the holds for which the SQL condition holds, the last that was placed first, whatever the clock said."""
    return [_hold(row) for row in db.table("holds").rows_where(where, [value], order_by="rowid desc", limit=limit)]


def waits(db: Database, approval_id: str, now: float) -> bool:
    """Return whether a hold is there that nobody has decided in its time; its body and diff are left alone."""
    sql = "SELECT 1 FROM holds WHERE id = ? AND state = 'pending' AND expires_at > ?"
    return db.execute(sql, (approval_id, now)).fetchone() is not None


def ended(db: Database, limit: int) -> list[Hold]:
    """Return the holds that were denied or ran, newest first."""
    return [_hold(row) for row in db.table("holds").rows_where(f"NOT {ACTIVE}", order_by=_NEWEST, limit=limit)]


def outlines(db: Database, now: float, *, shown_characters: int, limit: int) -> list[Hold]:
    """Return the holds that may still run, oldest first, without their bodies: they may be megabytes each.

    Of what one shows that is longer than `shown_characters` its long texts are left out, and `left_out` says so. What
    nobody swept yet is not there.
    """
    rows = db.query(
        f"SELECT {_OUTLINE} FROM holds WHERE {ACTIVE} AND {_IN_TIME} ORDER BY {_OLDEST} LIMIT :limit",  # noqa: S608
        {"most": shown_characters, "now": now, "limit": limit},
    )
    return [_hold(row) for row in rows]


def count_pending(db: Database, now: float) -> int:
    """Return how many holds wait for a decision."""
    sql = "SELECT count(*) FROM holds WHERE state = 'pending' AND expires_at > ?"
    (found,) = db.execute(sql, (now,)).fetchone()
    return int(found)


def scrubbed(hold: Hold) -> dict[str, Any]:
    """Return the columns that take the place of a body (and of the diff that was shown)."""
    text = json.dumps(dict(hold.body or {}), sort_keys=True).encode("utf-8")
    digest = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    shown = {name: value for name, value in hold.shown.items() if name in ("files", "changes")}
    return {"body": digest, "shown": shown}


def moved(hold: Hold, state: str, changes: Mapping[str, Any]) -> Hold:
    """Return a hold as a recorded step left its row. Read again it might not be: and what is recorded is to be told."""
    told = {name: changes[name] for name in ("reason", "shown", "decided_by") if name in changes}
    return replace(hold, state=state, body=hold.body if state in RUNNABLE else None, **told)


def _hold(row: Mapping[str, Any]) -> Hold:
    return Hold(
        id=row["id"],
        tool=row["tool"],
        workspace_id=row["workspace_id"],
        operation_key=row["operation_key"],
        fingerprint=row["fingerprint"],
        state=row["state"],
        body=json.loads(row["body"]) if row["state"] in RUNNABLE else None,
        shown=json.loads(row["shown"]),
        reason=row["reason"],
        expires_at=row["expires_at"],
        created_at=row["created_at"],
        result=json.loads(row["result"]) if row["result"] else None,
        approvals=row["approvals"],
        instance_id=row["instance_id"],
        caller=row["caller"],
        decided_by=row["decided_by"],
        operation_id=row["operation_id"],
        root=row["root"],
    )
