"""What one row of works says, and how it is written to and read from its table.

It moves nothing: a row is inserted once, and from then on changed by recorded steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlite_utils import Database

from codespace.contract import Workspace


@dataclass(frozen=True, slots=True)
class Work:
    """One work, as it stood when it was read."""

    id: str
    workspace_id: str
    title: str
    """The agent's own words: hostile text like any other."""
    state: str
    created_at: float
    """Wall clock, seconds since the epoch."""
    finished_at: float | None = None
    root: str | None = None
    """Of its workspace. None in a row from before this was kept: then any of the id."""

    def is_of(self, workspace: Workspace | None) -> bool:
        """Return whether it is a work of this workspace, and not of another one that has the same id elsewhere."""
        return workspace is not None and self.workspace_id == workspace.id and self.root in (None, workspace.root)


_COLUMNS: Final = tuple(field.name for field in fields(Work))
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM works"  # noqa: S608
_INSERT: Final = f"INSERT INTO works ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608

_OPEN: Final = "state <> 'closed'"  # word for word as in its index, or SQLite does not see that it may use it


def insert(db: Database, work: Work) -> None:
    """Insert the work's row."""
    db.execute(_INSERT, tuple(getattr(work, name) for name in _COLUMNS))


def one(db: Database, work_id: str) -> Work | None:
    """Return the work of this id."""
    row = db.execute(f"{_SELECT} WHERE id = ?", (work_id,)).fetchone()
    return None if row is None else _work(row)


def newest(db: Database, limit: int) -> tuple[Work, ...]:
    """Return works, the newest first."""
    return _many(db, "1 ORDER BY created_at DESC, rowid DESC LIMIT ?", limit)


def closing(db: Database) -> tuple[Work, ...]:
    """Return the works that are ending, the oldest first."""
    return _many(db, f"{_OPEN} AND state = 'closing' ORDER BY +created_at, rowid")


def count_open(db: Database, workspace: Workspace) -> int:
    """Return how many works of a workspace are not closed; those of another directory under its id are not counted."""
    sql = f"SELECT count(*) FROM works WHERE {_OPEN} AND workspace_id = ?1 AND coalesce(root, ?2) = ?2"  # noqa: S608
    (found,) = db.execute(sql, (workspace.id, workspace.root)).fetchone()
    return int(found)


def has_commands(db: Database, work_id: str) -> bool:
    """Return whether a command that was started for the work has not ended."""
    found = db.execute(
        "SELECT 1 FROM operations WHERE work_id = ? AND finished_at IS NULL AND kind = 'exec' LIMIT 1", (work_id,)
    ).fetchone()
    return found is not None


def _many(db: Database, where: str, *values: Any) -> tuple[Work, ...]:
    return tuple(_work(row) for row in db.execute(f"{_SELECT} WHERE {where}", values))


def _work(row: Sequence[Any]) -> Work:
    return Work(*row)
