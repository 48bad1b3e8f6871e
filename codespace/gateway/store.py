"""The operations database: written on one lane, read on another, always in a transaction.

It knows how to run a function and what SQLite's errors mean to a caller. It knows no operation, hold
or event; those rooms bring their own functions.
"""

from __future__ import annotations

import json
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlite_utils import Database

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.database import MEMORY, connect_raw, place_of, prepare, refusal
from codespace.gateway.lane import Call, Lane

T = TypeVar("T")


class Store:
    """One database file (or memory), shared with other daemons.

    A function given to `read` or `write` runs on a thread, gets the sqlite-utils Database, and
    returns plain values: no cursor and no generator, which would outlive the transaction.
    """

    def __init__(self, path: str, writer: Lane, reader: Lane, secrets: dict[str, bytes]) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._secrets = secrets
        self._durable: bool | None = None
        self._place = None if path == MEMORY else place_of(path)

    @classmethod
    def open(cls, path: str, *, inline: bool = False) -> Store:
        """Open the database, made or migrated where needed, with mode 0600.

        Args:
            path: A file in a directory that exists, or `:memory:`.
            inline: Run in the loop itself instead of on threads: for tests on a fake clock.
        Raises: Refusal STORE_UNAVAILABLE: no place, no permission, not a database, another program's,
            or from a newer CodeSpace. Such a file is left untouched.
        """
        db, secrets = prepare(path)
        writer = Lane(db, "store-writer", inline=inline)
        if path == MEMORY or inline:
            return cls(path, writer, writer, secrets)  # memory is seen by its own connection only
        # A second connection: reads go on while a write waits for another daemon.
        try:
            read_db = connect_raw(path)
            read_db.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            writer.close()
            raise refusal(error, f"{path} was not opened.", path) from error
        return cls(path, writer, Lane(read_db, "store-reader"), secrets)

    async def read(self, fn: Callable[[Database], T]) -> T:
        """Return fn(db), all of it seen at one instant; what it writes is refused or dropped.

        Raises: Refusal STORE_UNAVAILABLE; whatever fn raises.
        Cancel: nothing is left behind.
        """

        return await self._read_on(self._reader, fn)

    async def read_behind_writes(self, fn: Callable[[Database], T]) -> T:
        """As `read`, behind every write of this store that was called before: also one whose commit began and hangs.

        For what must not be concluded from rows that such a commit may still change.
        """
        return await self._read_on(self._writer, fn)

    async def _read_on(self, lane: Lane, fn: Callable[[Database], T]) -> T:
        def work(call: Call) -> T:
            lane.db.execute("BEGIN")
            with _no_longer_than_here(lane.db):
                return _plain(fn(lane.db))

        return await _run(lane, work, "Nothing was changed.")

    async def write(self, fn: Callable[[Database], T], *, durable: bool = False) -> T:
        """Return fn(db), run in one immediate transaction: committed if it returns, else rolled back.

        Args:
            durable: Flushed to disk before returning; else a power loss may take the last commits.
        Raises: Refusal STORE_UNAVAILABLE (nothing was written, unless details say `outcome: unknown`);
            whatever fn raises, after the rollback.
        Cancel: a write in line is taken back and Cancelled raised; one that had started is waited for
            and its result returned, so that what is told is what is stored.
        Source: limits.STORE_WAIT_SECONDS, limits.STORE_BUSY_SECONDS, limits.STORE_GRACE_SECONDS.
        """

        def work(call: Call) -> T:
            db = self._writer.db
            self._set_durable(durable)
            db.execute("BEGIN IMMEDIATE")
            with _no_longer_than_here(db):
                self._require_in_place()
                result = _plain(fn(db))
                call.commit_begins()
                db.execute("COMMIT")
            return result

        return await _run(self._writer, work, "Nothing was written to the database.")

    async def version(self) -> tuple[int, int]:
        """Return what differs once anything was written to the database, by this program or another.

        Source: SQLite, PRAGMA data_version: of the reading connection, so that our own writes count too.
        """

        def work(call: Call) -> tuple[int, int]:
            db = self._reader.db
            (version,) = db.execute("PRAGMA data_version").fetchone()
            return int(version), db.conn.total_changes  # in memory the only connection is the one that writes

        return await _run(self._reader, work, "Nothing was changed.")

    async def scrub(self) -> bool:
        """Make deleted bytes leave the file: fold the log into the database and cut it.

        Returns: False while another connection reads; ask again then.
        """

        def work(call: Call) -> bool:
            db = self._writer.db
            db.execute("PRAGMA busy_timeout = 0")  # a reader must not hold up the writes in line
            try:
                busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                db.execute(f"PRAGMA busy_timeout = {int(limits.STORE_BUSY_SECONDS * 1000)}")
            return bool(busy == 0)

        return await _run(self._writer, work, "Deleted bytes may still be in the database's log.")

    def secret(self, name: str) -> bytes:
        """Return a secret that all daemons on this database share. Raises: KeyError."""
        return self._secrets[name]

    def close(self) -> None:
        """Finish what is in line and close. Blocks for milliseconds, limits.STORE_GRACE_SECONDS a lane at most."""
        if self._reader is not self._writer:
            self._reader.close()
        self._writer.close()

    def _require_in_place(self) -> None:
        """Refuse to write where nobody would ever read: SQLite goes on in a file that was removed or replaced.

        What the next daemon does not find it would do again, under the same key.
        """
        if self._place is not None and place_of(self.path) != self._place:
            raise Refusal(
                "STORE_UNAVAILABLE",
                "The database's file was removed or replaced meanwhile. Nothing was written to it.",
                next_step="Ask the operator to put the file back, or to restart the daemon.",
                details={"cause": "REPLACED", "outcome": "nothing"},
            )

    def _set_durable(self, durable: bool) -> None:
        if durable != self._durable:
            self._writer.db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable


async def _run(lane: Lane, work: Callable[[Call], T], left: str) -> T:
    try:
        result: T = await lane.run(work)
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # the function's own business, or its fault
    except sqlite3.Error as error:
        raise refusal(error, left) from error
    except (json.JSONDecodeError, OverflowError) as error:
        # Only rows are read as JSON there, and counted on from: we wrote none that is none, and no number so large.
        raise Refusal(
            "STORE_UNAVAILABLE", f"The database is damaged. {left}", details={"cause": "DAMAGED", "outcome": "nothing"}
        ) from error
    return result


def _plain(value: T) -> T:
    if isinstance(value, Iterator | sqlite3.Cursor):
        raise TypeError("a function of the store returns plain values; rows would be read after its transaction")
    return value


@contextmanager
def _no_longer_than_here(db: Database) -> Iterator[None]:
    """Roll back what the block has not committed, and let go of what it was reading when it failed.

    An error keeps the frames that it came through, and so a half-read cursor; a rollback does not end that. As long as
    anybody has the error, the connection would see what was true then, and write nothing.
    """
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        if db.conn.in_transaction:
            db.execute("ROLLBACK")
