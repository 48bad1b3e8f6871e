"""The ledger: one row for each operation and hold, moved only by recorded steps.

A step's row and its event are one transaction; the step applies only to the state that it starts
from. The ledger decides nothing: machines decide, drivers act. It holds hashes, names and outcomes,
never patch text, argv or output.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlite_utils import Database

from codespace import limits
from codespace.drive import Recorder, Stale, Step, finals
from codespace.errors import Refusal
from codespace.gateway import audit as chain
from codespace.gateway import operation as operation_rows
from codespace.gateway.audit import Audit
from codespace.gateway.event import Event
from codespace.gateway.operation import Kind, Operation
from codespace.gateway.store import Store
from statemachines.approval import Approval
from statemachines.execution import Execution
from statemachines.grant import Grant
from statemachines.intent import Intent
from statemachines.patch import Patch
from statemachines.work import Work

__all__ = ["KeyTaken", "Kind", "Ledger", "Operation", "Subject", "Unsettled"]

Subject = Literal["operation", "hold", "grant", "work", "intent"]


class KeyTaken(Exception):
    """The operation_key names another operation already; nothing was recorded."""

    def __init__(self, existing: Operation) -> None:
        super().__init__(f"operation_key is taken by {existing.id}; nothing was recorded.")
        self.existing = existing


class Unsettled(Exception):
    """Patches in the same root that nobody works for have no end yet; nothing was recorded."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        super().__init__(f"{len(operations)} patches have no end yet; nothing was recorded.")
        self.operations = operations


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    machines: Mapping[str, frozenset[str]]
    """The machines that move its rows, with their final states."""
    columns: frozenset[str]
    """What a step may change beside the state."""
    json_columns: frozenset[str]
    ended_at: str | None
    """The column that is filled when a final state is reached."""


_OPERATIONS: Final = _Table(
    "operations",
    {"patch": finals(Patch), "execution": finals(Execution)},
    frozenset({"instance_id", "work_id", "process_id", "files", "changes", "outcome", "approval_id", "spool"}),
    operation_rows.JSON_COLUMNS,
    "finished_at",
)
_HOLDS: Final = _Table(
    "holds",
    {"approval": finals(Approval)},
    frozenset({"body", "shown", "reason", "decided_at", "decided_by", "result", "instance_id", "operation_id"}),
    frozenset({"body", "shown", "result"}),
    None,
)
_GRANTS: Final = _Table("grants", {"grant": finals(Grant)}, frozenset({"terms"}), frozenset({"terms"}), "ended_at")
_WORKS: Final = _Table("works", {"work": finals(Work)}, frozenset(), frozenset(), "finished_at")
_INTENTS: Final = _Table(
    "intents",
    {"intent": finals(Intent)},
    frozenset({"work_id", "kind", "delivery", "text", "revision", "position", "carried_from", "claimed_at", "note"}),
    frozenset(),
    "finished_at",
)
_SUBJECTS: Final[Mapping[Subject, _Table]] = {
    "operation": _OPERATIONS,
    "hold": _HOLDS,
    "grant": _GRANTS,
    "work": _WORKS,
    "intent": _INTENTS,
}
_TABLES: Final = {machine: table for table in _SUBJECTS.values() for machine in table.machines}
_RESCUED: Final = "Bytes of others lay where the patch had its own; the journal keeps them until they are forgotten."
_MINTED: Final = "The request passed the gate; from here on it has a name, and its key repeats it."


class Ledger:
    """The recorded operations of all daemons on one store.

    Args:
        store: Where they are.
        clock: Wall clock in seconds since the epoch.
        instance_id: Of this daemon.
        audit: The chain that every step is appended to.
    """

    def __init__(self, store: Store, clock: Callable[[], float], instance_id: str, audit: Audit) -> None:
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._audit = audit

    async def mint(
        self, operation: Operation, also_move: Sequence[Step] = (), *, tolerated: Collection[str] | None = None
    ) -> None:
        """Record a new operation, and `also_move` (a hold's steps, or its own first ones), as one transaction.

        Args:
            tolerated: For one who holds the root: patches that may go on without an end there. Any other one was left
                by a daemon that died, or by a driver of this one, and is to be settled first. None: nobody looks.
        Raises: Unsettled; KeyTaken; Stale; Refusal STORE_UNAVAILABLE; Refusal WORK_CLOSED, where its work takes
            nothing more.
        Cancel: recorded whole or not at all; if Cancelled comes out, not at all.
        """

        def insert(db: Database) -> None:
            _require_active(db, operation.work_id)
            if tolerated is not None:
                _require_settled(db, operation, tolerated)
            try:
                operation_rows.insert(db, operation)
            except sqlite3.IntegrityError:
                existing = operation_rows.one(db, "operation_key = ?", operation.operation_key)
                if existing is None:
                    raise
                raise KeyTaken(existing) from None
            machine = "patch" if operation.kind == "patch" else "execution"
            details = {"tool": operation.tool, "workspace_id": operation.workspace_id}
            self._audit.append(db, machine, operation.id, "minted", None, operation.state, _MINTED, details)
            self._apply(db, also_move)

        await self._store.write(insert, durable=any(step.durable for step in also_move))

    async def apply(self, steps: Sequence[Step]) -> None:
        """Record steps of any subjects as one transaction.

        Raises: Stale, for the first whose row is not at its source; Refusal STORE_UNAVAILABLE.
        Cancel: recorded whole or not at all; if Cancelled comes out, not at all.
        """
        durable = any(step.durable for step in steps)
        await self._store.write(lambda db: self._apply(db, steps), durable=durable)

    def apply_within(self, db: Database, steps: Sequence[Step]) -> None:
        """Record steps inside the caller's write transaction: for what was decided there, on rows that it read.

        Raises: Stale, after which the caller must let its transaction fail.
        """
        self._apply(db, steps)

    async def note(
        self, kind: str, subject: str, event: str, reason: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """Append a fact that moves no machine (a start, a stop, a refusal worth keeping) to the chain."""
        await self._store.write(lambda db: self._audit.append(db, kind, subject, event, None, None, reason, details))

    async def note_rescued(self, operation_id: str, files: Sequence[str]) -> None:
        """Append which bytes of others the journal of a patch keeps; the same ones are told of once."""
        told = {"rescued": list(files)}

        def append(db: Database) -> None:
            if not any(event.details == told for event in chain.events(db, operation_id)):
                self._audit.append(db, "snapshot", operation_id, "rescued", None, None, _RESCUED, told)

        if files:
            await self._store.write(append)

    def recorder(self, kind: Subject) -> Recorder:
        """Return the drive.Recorder for the rows of one kind of subject."""
        return _Recorder(self, self._store, _SUBJECTS[kind])

    async def get(self, operation_id: str) -> Operation | None:
        """Return the operation of this id."""
        return await self._store.read(lambda db: operation_rows.one(db, "id = ?", operation_id))

    async def by_key(self, operation_key: str) -> Operation | None:
        """Return the operation that this key names."""
        return await self._store.read(lambda db: operation_rows.one(db, "operation_key = ?", operation_key))

    async def by_process(self, process_id: str) -> Operation | None:
        """Return the operation that started this process."""
        return await self._store.read(lambda db: operation_rows.one(db, "process_id = ?", process_id))

    async def by_approval(self, approval_id: str) -> Operation | None:
        """Return the operation that a hold was resumed as; the last one, where a grant had been given back."""
        return await self._store.read(
            lambda db: operation_rows.one(db, "approval_id = ? ORDER BY rowid DESC", approval_id)
        )

    async def unfinished(self, instance_ids: Iterable[str] | None = None) -> tuple[Operation, ...]:
        """Return the operations without a final state, oldest first: of these instances, or of all."""
        wanted = None if instance_ids is None else json.dumps(sorted(instance_ids))
        return await self._store.read(
            lambda db: operation_rows.many(
                db,
                "finished_at IS NULL AND (?1 IS NULL OR instance_id IN (SELECT value FROM json_each(?1))) "
                "ORDER BY +created_at, rowid",
                wanted,
            )
        )

    async def wait_written(self) -> None:
        """Return once every write that was called before is committed or was given up. Raises: STORE_UNAVAILABLE."""
        await self._store.read_behind_writes(lambda db: None)

    async def list(self, *, kind: Kind | None = None, limit: int = limits.LIST_ROWS) -> tuple[Operation, ...]:
        """Return the newest operations, and each older one without an end; newest first.

        Source: limits.LIST_ROWS, limits.LIST_CHARACTERS.
        """
        where, values = ("1", ()) if kind is None else ("kind = ?", (kind,))
        count = max(1, min(limit, limits.LIST_ROWS))

        def read(db: Database) -> tuple[Operation, ...]:
            newest = operation_rows.few(db, f"{where} ORDER BY created_at DESC, rowid DESC LIMIT ?", *values, count)
            # Each plus keeps SQLite from walking through all of history for the few that are open.
            unended = f"finished_at IS NULL AND +{where} ORDER BY +created_at DESC, rowid DESC"
            among = {operation.id for operation in newest}
            return newest + tuple(each for each in operation_rows.many(db, unended, *values) if each.id not in among)

        return await self._store.read(read)

    async def count(self, kind: Kind | None = None) -> int:
        """Return how many operations are recorded."""
        where, values = ("", ()) if kind is None else (" WHERE kind = ?", (kind,))
        sql = f"SELECT count(*) FROM operations{where}"  # noqa: S608
        return int(await self._store.read(lambda db: db.execute(sql, values).fetchone()[0]))

    async def events(self, subject: str) -> tuple[Event, ...]:
        """Return what happened to `subject`, oldest first."""
        return await self._store.read(lambda db: chain.events(db, subject))

    def _apply(self, db: Database, steps: Sequence[Step]) -> None:
        for step in steps:
            self._move(db, step)
            self._audit.append(
                db, step.machine, step.subject, step.event, step.source, step.target, step.reason, step.details
            )

    def _move(self, db: Database, step: Step) -> None:
        table = _TABLES[step.machine]
        changes = _encoded(table, step.changes)
        if table.ended_at is not None and step.target in table.machines[step.machine]:
            changes[table.ended_at] = self._clock()
        assignments = ", ".join(f"{column} = ?" for column in ("state", *changes))
        sql = f"UPDATE {table.name} SET {assignments} WHERE id = ? AND state = ?"  # noqa: S608
        cursor = db.execute(sql, (step.target, *changes.values(), step.subject, step.source))
        if cursor.rowcount != 1:
            raise Stale(step.subject, step.source, _state(db, table, step.subject))


class _Recorder:
    """drive.Recorder over one table."""

    def __init__(self, ledger: Ledger, store: Store, table: _Table) -> None:
        self._ledger = ledger
        self._store = store
        self._table = table

    async def record(self, steps: Sequence[Step]) -> None:
        foreign = [step.machine for step in steps if step.machine not in self._table.machines]
        if foreign:
            raise ValueError(f"{foreign[0]} does not move rows of {self._table.name}")
        await self._ledger.apply(steps)

    async def look(self, subject: str) -> str | None:
        # Behind the write whose end was not seen: ahead of it the row says nothing of what it may still become.
        return await self._store.read_behind_writes(lambda db: _state(db, self._table, subject))


def _state(db: Database, table: _Table, subject: str) -> str | None:
    row = db.execute(f"SELECT state FROM {table.name} WHERE id = ?", (subject,)).fetchone()  # noqa: S608
    return None if row is None else str(row[0])


def _require_active(db: Database, work_id: str | None) -> None:
    """Refuse an operation of a work that was stopped or finished; asked in here, none slips past a stop."""
    if work_id is None:
        return
    row = db.execute("SELECT state FROM works WHERE id = ?", (work_id,)).fetchone()
    if row is not None and row[0] != "active":
        raise Refusal("WORK_CLOSED", f"The work is {row[0]} and takes nothing new; nothing was done.")


def _require_settled(db: Database, operation: Operation, tolerated: Collection[str]) -> None:
    """Find what was left without an end in a root; looked for in here, it costs no way to the database of its own."""
    # Each plus keeps SQLite from walking through all of history: in the order of its times, or all of its patches.
    found = operation_rows.many(
        db,
        "finished_at IS NULL AND +kind = 'patch' AND root = ? ORDER BY +created_at, rowid",
        operation.root,
    )
    unsettled = tuple(each for each in found if each.id not in tolerated)
    if unsettled:
        raise Unsettled(unsettled)


def _encoded(table: _Table, changes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(changes.keys() - table.columns)
    if unknown:
        raise ValueError(f"a step may not change {table.name}.{unknown[0]}")
    return {
        column: json.dumps(value) if column in table.json_columns and value is not None else value
        for column, value in changes.items()
    }
