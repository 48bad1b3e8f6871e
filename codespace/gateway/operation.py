"""What one row of the ledger says, and how it is written to and read from its table.

It moves nothing: a row is inserted once, and from then on changed by the ledger's steps alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from sqlite_utils import Database

from codespace import limits

Kind = Literal["patch", "exec"]

JSON_COLUMNS: Final = frozenset({"files", "changes", "outcome"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded operation, as it stood when it was read."""

    id: str
    kind: Kind
    tool: str
    workspace_id: str
    root: str
    operation_key: str | None
    fingerprint: str
    state: str
    instance_id: str
    created_at: float
    """Wall clock, seconds since the epoch."""
    finished_at: float | None = None
    work_id: str | None = None
    process_id: str | None = None
    files: tuple[str, ...] = ()
    changes: tuple[dict[str, Any], ...] = ()
    outcome: dict[str, Any] | None = None
    """An error body or an exit record."""
    approval_id: str | None = None
    spool: str | None = None
    """Where the output of its process lies on disk."""


_COLUMNS: Final = tuple(field.name for field in fields(Operation))
_FILES: Final = _COLUMNS.index("files")
_CHANGES: Final = _COLUMNS.index("changes")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM operations"  # noqa: S608
_INSERT: Final = f"INSERT INTO operations ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608


def insert(db: Database, operation: Operation) -> None:
    """Insert the operation's row. Raises: sqlite3.IntegrityError, where id or key is taken."""
    values = {name: getattr(operation, name) for name in _COLUMNS}
    for name in JSON_COLUMNS:
        values[name] = None if values[name] is None else json.dumps(values[name])
    db.execute(_INSERT, tuple(values.values()))


def one(db: Database, where: str, *values: Any) -> Operation | None:
    """Return the first operation for which the SQL condition `where` holds."""
    found = many(db, f"{where} LIMIT 1", *values)
    return found[0] if found else None


def many(db: Database, where: str, *values: Any) -> tuple[Operation, ...]:
    """Return the operations for which the SQL `where` (with its order and limit) holds."""
    return tuple(_operation(row) for row in db.execute(f"{_SELECT} WHERE {where}", values))


def few(db: Database, where: str, *values: Any) -> tuple[Operation, ...]:
    """Return them as `many`, until they are more than limits.LIST_CHARACTERS together: some may be giants."""
    found, characters = list[Operation](), 0
    for row in db.execute(f"{_SELECT} WHERE {where}", values):
        found.append(_operation(row))
        characters += len(row[_FILES]) + len(row[_CHANGES])
        if characters > limits.LIST_CHARACTERS:
            break
    return tuple(found)


def _operation(row: Sequence[Any]) -> Operation:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["files"] = tuple(json.loads(values["files"]))
    values["changes"] = tuple(json.loads(values["changes"]))
    values["outcome"] = None if values["outcome"] is None else json.loads(values["outcome"])
    return Operation(**values)
