"""The chain of all events: each row hashes the one before, so that what was recorded stays recorded.

Events are only ever appended, inside the transaction of what they tell. The chain proves edits, gaps
and reorderings by itself; a tail that was cut off, or a chain that was written anew, shows against a
head that was exported before (`audit head`). It must not hold patch text, argv or output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from sqlite_utils import Database

from codespace import limits
from codespace.gateway.event import Event

Fault = Literal["edited", "gap", "reordered", "cut", "rewritten"]

GENESIS: Final = "0" * 64
"""What the first event names as the hash before it."""

_COLUMNS: Final = "seq, at, instance_id, kind, subject, event, source, target, reason, details, previous, hash"
_INSERT: Final = f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608


class Head(NamedTuple):
    """The last event: everything before it is fixed by its hash."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Problem:
    seq: int
    fault: Fault
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found: `ok`, or the first problems and how many there are."""

    ok: bool
    events: int
    head: Head
    problems: tuple[Problem, ...]
    problems_total: int


_Told = Callable[[], Problem]
# A problem that is put into words only where it is told: for some of them the whole chain is looked through once more.


class Audit:
    """The appending end of the chain, for one daemon.

    Args:
        clock: Wall clock in seconds since the epoch.
        instance_id: Whose events these are.
    """

    def __init__(self, clock: Callable[[], float], instance_id: str) -> None:
        self._clock = clock
        self._instance_id = instance_id

    def append(
        self,
        db: Database,
        kind: str,
        subject: str,
        event: str,
        source: str | None,
        target: str | None,
        reason: str,
        details: Mapping[str, Any] | None = None,
    ) -> Head:
        """Append one event inside the caller's write transaction and return it as the new head.

        Raises: TypeError, ValueError, where details are not plain JSON.
        """
        before = head(db)
        text = json.dumps(dict(details or {}), sort_keys=True, allow_nan=False)
        fields = (float(self._clock()), self._instance_id, kind, subject, event, source, target, reason, text)
        digest = _digest(before.hash, fields)
        db.execute(_INSERT, (before.seq + 1, *fields, before.hash, digest))
        return Head(before.seq + 1, digest)


def head(db: Database) -> Head:
    """Return the last event's number and hash: (0, GENESIS) for an empty chain."""
    row = db.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    return Head(0, GENESIS) if row is None else Head(*row)


def events(db: Database, subject: str) -> tuple[Event, ...]:
    """Return the events of `subject`, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM events WHERE subject = ? ORDER BY seq", (subject,))  # noqa: S608
    return tuple(Event(*(*row[:9], json.loads(row[9]))) for row in rows)


def verify(db: Database, exported: Head | None = None) -> Verdict:
    """Walk the whole chain and say what is wrong with it.

    Args:
        exported: A head that was printed or logged before; without it a cut tail cannot be seen.
    """
    found = list[Problem]()
    total, count, last = 0, 0, Head(0, GENESIS)
    with _any_text(db):
        for step in _walk(db, exported):
            told, last, count = step
            if told is not None:
                total += 1
                if len(found) < limits.AUDIT_PROBLEMS:
                    found.append(told())
    return Verdict(total == 0, count, last, tuple(found), total)


def verify_nothing(exported: Head) -> Verdict:
    """Return the verdict where there is no chain at all, and a head was exported that named an event."""
    nothing = Head(0, GENESIS)
    return Verdict(False, 0, nothing, (_against(exported, nothing),), 1)


def _digest(previous: str, fields: tuple[Any, ...]) -> str:
    # seq is left out on purpose: the links fix the order, and a row that was moved is then told from
    # a row that was edited. JSON keeps floats exactly and every field apart from the next.
    return hashlib.sha256(json.dumps([previous, *fields], allow_nan=False).encode()).hexdigest()


@contextmanager
def _any_text(db: Database) -> Iterator[None]:
    """Let text that is no UTF-8 be read as well: it was not written here, and must show as what it is."""
    usual, db.conn.text_factory = db.conn.text_factory, lambda data: data.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        db.conn.text_factory = usual


def _recomputed(previous: str, fields: tuple[Any, ...]) -> str | None:
    """Return what the row's hash should be; None where nothing that was ever written has such fields."""
    try:
        return _digest(previous, fields)
    except ValueError:  # a time that is no number
        return None


def _walk(db: Database, exported: Head | None) -> Iterator[tuple[_Told | None, Head, int]]:
    last, count, exported_hash = Head(0, GENESIS), 0, None
    for row in db.execute(f"SELECT {_COLUMNS} FROM events ORDER BY seq"):  # noqa: S608
        seq, fields, previous, digest = row[0], tuple(row[1:10]), row[10], row[11]
        count += 1
        before, last = last, Head(seq, digest)
        if exported is not None and seq == exported.seq:
            exported_hash = digest
        yield _fault(db, before, last, previous, _recomputed(previous, fields)), last, count
    if exported is not None and exported.seq > 0 and exported_hash != exported.hash:
        yield partial(_against, exported, last), last, count


def _fault(db: Database, before: Head, row: Head, previous: str, computed: str | None) -> _Told | None:
    if computed != row.hash:
        return partial(Problem, row.seq, "edited", f"Event {row.seq} does not have the hash that it was written with.")
    if row.seq != before.seq + 1:
        return partial(Problem, row.seq, "gap", f"Events {before.seq + 1} to {row.seq - 1} are missing.")
    return None if previous == before.hash else partial(_broken_link, db, before, row, previous)


def _broken_link(db: Database, before: Head, row: Head, previous: str) -> Problem:
    elsewhere = db.execute("SELECT 1 FROM events WHERE hash = ? LIMIT 1", (previous,)).fetchone()
    if elsewhere or previous == GENESIS:
        return Problem(row.seq, "reordered", f"Event {row.seq} was written behind another event than {before.seq}.")
    return Problem(row.seq, "gap", f"The event that event {row.seq} was written behind is missing or was rewritten.")


def _against(exported: Head, last: Head) -> Problem:
    if last.seq < exported.seq:
        return Problem(
            exported.seq, "cut", f"The chain ends at event {last.seq}, but event {exported.seq} was exported."
        )
    return Problem(exported.seq, "rewritten", f"Event {exported.seq} is not the one that was exported.")
