"""What one row of intents says, how rows are read, and which of them is due to the agent.

It moves nothing: a row is inserted once, and from then on changed by recorded steps alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from sqlite_utils import Database

from codespace.contract import Delivery, IntentKind

UNSEEN: Final = frozenset({"draft", "queued"})
"""States in which the agent has not seen the text, and the operator may still change it."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent, as it stood when it was read."""

    id: str
    work_id: str
    kind: IntentKind
    delivery: Delivery
    text: str
    state: str
    revision: int
    """Counts the edits, from 1."""
    position: int
    created_at: float
    """Wall clock, seconds since the epoch."""
    supersedes: str | None = None
    """The intent whose place it takes once it is queued."""
    carried_from: str | None = None
    """The work that it was written in, where that ended before it was due."""
    claimed_at: float | None = None
    finished_at: float | None = None
    note: str | None = None
    """What the agent said about its outcome."""

    @property
    def for_later(self) -> bool:
        """Whether its own work does not deliver it, but the next one does."""
        return self.delivery == "next_work" and (self.carried_from is None or self.state == "draft")


class Counts(NamedTuple):
    """What the agent may know of intents that it has not claimed."""

    queued: int
    claimed: int


_COLUMNS: Final = tuple(field.name for field in fields(Intent))
_SELECT: Final = f"SELECT {', '.join(f'intents.{name}' for name in _COLUMNS)} FROM intents"  # noqa: S608
_INSERT: Final = f"INSERT INTO intents ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_COUNT: Final = """SELECT
    count(*) FILTER (WHERE state = 'queued' AND (delivery <> 'next_work' OR carried_from IS NOT NULL)),
    count(*) FILTER (WHERE state = 'claimed')
    FROM intents WHERE work_id = ? AND state IN ('queued', 'claimed')"""


def insert(db: Database, intent: Intent) -> None:
    """Insert the intent's row."""
    db.execute(_INSERT, tuple(getattr(intent, name) for name in _COLUMNS))


def one(db: Database, intent_id: str) -> Intent | None:
    """Return the intent of this id."""
    found = _many(db, "WHERE id = ?", intent_id)
    return found[0] if found else None


def of_work(db: Database, work_id: str, limit: int) -> tuple[Intent, ...]:
    """Return the newest intents of a work in the order of their places."""
    newest = "rowid IN (SELECT rowid FROM intents WHERE work_id = ? ORDER BY rowid DESC LIMIT ?)"
    return _many(db, f"WHERE {newest} ORDER BY position, rowid", work_id, limit)


def unfinished(db: Database, work_id: str) -> tuple[Intent, ...]:
    """Return drafts, queued and claimed intents of a work in the order of their places."""
    return _many(db, "WHERE work_id = ? AND state IN ('draft', 'queued', 'claimed') ORDER BY position, rowid", work_id)


def left_for_next(db: Database, workspace_id: str, root: str) -> tuple[Intent, ...]:
    """Return what works of a workspace that take nothing more have left for the next one."""
    found = _many(
        db,
        "JOIN works ON works.id = intents.work_id WHERE works.workspace_id = ?1 AND coalesce(works.root, ?2) = ?2 "
        "AND works.state <> 'active' "
        "AND intents.delivery = 'next_work' AND intents.state IN ('draft', 'queued') "
        "ORDER BY works.created_at, works.rowid, intents.position, intents.rowid",
        workspace_id,
        root,
    )
    return tuple(intent for intent in found if intent.for_later)


def counts(db: Database, work_id: str) -> Counts:
    """Return how many intents wait in a work, and how many are claimed and undone."""
    queued, claimed = db.execute(_COUNT, (work_id,)).fetchone()
    return Counts(int(queued), int(claimed))


def next_place(db: Database, work_id: str) -> int:
    """Return the place behind all intents of a work."""
    (last,) = db.execute("SELECT coalesce(max(position), 0) FROM intents WHERE work_id = ?", (work_id,)).fetchone()
    return int(last) + 1


def next_due(intents: Iterable[Intent]) -> Intent | None:
    """Return the intent that the agent gets next, of those of one work in the order of their places.

    A stop notice comes first; `next_checkpoint` may come at any time; the others only when the agent
    has nothing claimed and undone; `next_work` not before the work after the one it was written in.
    """
    known = tuple(intents)
    busy = any(intent.state == "claimed" for intent in known)
    due = [
        intent
        for intent in known
        if intent.state == "queued"
        and not intent.for_later
        and (not busy or intent.kind == "stop_notice" or intent.delivery == "next_checkpoint")
    ]
    return min(due, key=lambda intent: intent.kind != "stop_notice", default=None)  # the first of equals


def _many(db: Database, rest: str, *values: Any) -> tuple[Intent, ...]:
    return tuple(_intent(row) for row in db.execute(f"{_SELECT} {rest}", values))


def _intent(row: Sequence[Any]) -> Intent:
    return Intent(*row)
