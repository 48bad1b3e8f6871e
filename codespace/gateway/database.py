"""How the operations database is opened: whose file it is, its settings, its migrations, its secrets.

Everything here is synchronous and short; what runs in it later is the store's. A file that is not
ours, or is newer than this program, is left untouched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

from sqlite_utils import Database

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway import schema

MEMORY: Final = ":memory:"
SECRETS: Final = ("fingerprint",)
_SECRET_BYTES: Final = 32  # as long as the SHA-256 of the HMAC that it keys
_WAL_RETRY_SECONDS: Final = 0.01  # SQLite's busy timeout does not cover the switch to WAL

_JSON: Final[Mapping[str, Mapping[str, str]]] = {
    "operations": {"files": "array", "changes": "array", "outcome": "object"},
    "holds": {"body": "object", "shown": "object", "result": "object"},
    "grants": {"terms": "object"},
    "instances": {"roots": "array"},
}
"""What is written as JSON, beside the events: their chain proves them."""

_WORDS: Final[Mapping[str, str]] = {
    "SQLITE_BUSY": "another program kept the database locked",
    "SQLITE_LOCKED": "another program kept the database locked",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the database may only be read",
    "SQLITE_CORRUPT": "the database is damaged",
    "SQLITE_NOTADB": "the file is not a database",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_IOERR": "the disk failed",
    "SQLITE_INTERRUPT": "the time for it was over",
}


_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "DAMAGED")
_UNSURE: Final = ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_READONLY")
# Also said where the log and its index find no place beside the file, of which SQLite keeps no errno.
_PROBED_BYTES: Final = 65_536  # the index alone takes half of that
_ELSEWHERE: Final = "set CODESPACE_OPERATIONS_DB or CODESPACE_STATE_DIR to where it may"
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "Make room on its disk, then call again.",
    errno.EDQUOT: "Make room within this account's quota on its disk, then call again.",
    errno.EROFS: f"Have its disk mounted so that it can be written, or {_ELSEWHERE} be.",
    errno.EACCES: f"Let this account write in its directory, or {_ELSEWHERE}.",
}


def refusal(error: sqlite3.Error | OSError, left: str, path: str | None = None) -> Refusal:
    """Return STORE_UNAVAILABLE for what SQLite or the system said. `left` says what is stored.

    Args:
        path: The database's, where what stands in the way may be found out by writing beside it. It may block.
    """
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    cause = (_in_the_way(path) if path is not None and name.startswith(_UNSURE) else None) or error
    told = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
    words = _WORDS if cause is error else {}
    word = next((each for prefix, each in words.items() if name.startswith(prefix)), told)
    number = errno.ENOSPC if name == "SQLITE_FULL" else getattr(cause, "errno", None)
    return Refusal(
        "STORE_UNAVAILABLE",
        f"{word[:1].upper()}{word[1:]}. {left}",
        next_step=_REMEDIES.get(number or 0),
        details={"cause": name, "outcome": "nothing"},
    )


def _in_the_way(path: str) -> OSError | None:
    """Return why no file can be written beside the database; None where one can, or for a reason of another kind."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(path)) as file:
            file.write(bytes(_PROBED_BYTES))
            file.flush()
            os.fsync(file.fileno())  # where some filesystems first look for room
    except OSError as error:
        return error if error.errno in _REMEDIES else None
    return None


def is_damage(refusal: Refusal) -> bool:
    """Return whether it says that the file itself is damaged, and not that it cannot be reached now."""
    return str((refusal.details or {}).get("cause")).startswith(_DAMAGED)


def prepare(path: str) -> tuple[Database, dict[str, bytes]]:
    """Open the database for a daemon: made or migrated where needed, 0600, and its secrets.

    Raises: Refusal STORE_UNAVAILABLE.
    """
    try:
        if path != MEMORY:
            _inspect(path, create=True)
        db = connect_raw(path)
        try:
            known = _migrate(db, path)
            if path != MEMORY:
                _use_wal(db, path)
        except BaseException:
            db.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise refusal(error, f"{path} was not opened.", path) from error
    return db, known


@contextlib.contextmanager
def connect(path: str) -> Iterator[Database]:
    """Open an existing database without threads, for the command line.

    On a filesystem that may only be read it is read as it is.

    Raises: Refusal STORE_UNAVAILABLE, also where there is no such file; nothing is created.
    """
    try:
        _inspect(path, create=False)
        db = _connect_read(path)
    except (OSError, sqlite3.Error) as error:
        raise refusal(error, f"{path} was not opened.", path) from error
    with contextlib.closing(db):
        yield db


def _connect_read(path: str) -> Database:
    """Return a connection that has read; where SQLite cannot make its log beside the file, one that needs none.

    Raises: sqlite3.Error; Refusal STORE_UNAVAILABLE, where there is a log that it cannot read there.
    """
    db = connect_raw(path)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        db.close()
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
    except BaseException:
        db.close()
        raise
    else:
        return db
    log = f"{path}-wal"
    if os.path.exists(log) and os.path.getsize(log) > 0:
        raise Refusal(
            "STORE_UNAVAILABLE",
            f"{path} cannot be read without its log ({log}), which takes a directory that may be written.",
            next_step="Copy both to where they may be written, and set CODESPACE_OPERATIONS_DB to the copy.",
        )
    return Database(sqlite3.connect(_as_it_is(path), uri=True, isolation_level=None))


def _as_it_is(path: str) -> str:
    return f"file:{quote(path)}?mode=ro&immutable=1"


def connect_raw(path: str) -> Database:
    """Return one more connection to a database that `prepare` has seen, with the settings of every connection."""
    connection = sqlite3.connect(path, timeout=limits.STORE_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    return Database(connection)


def place_of(path: str) -> tuple[int, int] | None:
    """Return which file the path names now; None where it names none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _inspect(path: str, *, create: bool) -> None:
    """Make a new file for us alone, or see whose an existing one is: without a lock, a side file or a write."""
    if create:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise Refusal(
            "STORE_UNAVAILABLE",
            f"{path} is not a regular file; nothing was opened.",
            next_step="Move it away, or set CODESPACE_OPERATIONS_DB to a file of its own.",
        )
    if found.st_size > 0:
        _check_owner_program(path)
    if stat.S_IMODE(found.st_mode) & 0o077 and (create or os.access(path, os.W_OK)):  # a copy may only be read
        os.chmod(path, 0o600)


def _check_owner_program(path: str) -> None:
    # Never os.open and os.close here: closing any descriptor of the file would drop the locks that
    # another connection of this process has on it. SQLite knows that and defers the close.
    application, version = _header(path)
    if application != schema.APPLICATION_ID:
        raise Refusal(
            "STORE_UNAVAILABLE",
            f"{path} is a database of another program; it was left untouched.",
            next_step="Set CODESPACE_OPERATIONS_DB to a file of its own.",
        )
    _check_version(path, version)


def _header(path: str) -> tuple[int, int]:
    """Return whose database it is and its schema's version.

    It is read without a lock, so while a daemon folds its log into the file, the first page may already
    count pages that are still in the log only: SQLite calls that damage unless the schema may be written,
    which it cannot be through this connection.
    """
    with contextlib.closing(sqlite3.connect(_as_it_is(path), uri=True)) as look:
        look.execute("PRAGMA writable_schema = ON")
        (application,) = look.execute("PRAGMA application_id").fetchone()
        (version,) = look.execute("PRAGMA user_version").fetchone()
    return application, version


def _check_version(path: str, version: int) -> None:
    if version > schema.VERSION:
        raise Refusal(
            "STORE_UNAVAILABLE",
            f"{path} was written by a newer CodeSpace (schema {version}, this one knows {schema.VERSION}); "
            "it was left untouched.",
            next_step="Update CodeSpace, or set CODESPACE_OPERATIONS_DB to another file.",
        )


def _migrate(db: Database, path: str) -> dict[str, bytes]:
    # One immediate transaction, so that daemons that start together migrate one after the other, and
    # a database that may only be read is noticed now. Where nothing changes it is rolled back: a
    # commit would need the file for itself while it is not in WAL.
    changes = db.conn.total_changes
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        _check_version(path, version)
        if version < schema.VERSION:
            schema.MIGRATIONS.apply(db)
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {schema.VERSION}")
        known = {name: _secret(db, name) for name in SECRETS}
        if db.conn.total_changes > changes or version < schema.VERSION:
            db.execute("COMMIT")
    finally:
        if db.conn.in_transaction:
            db.execute("ROLLBACK")
    return known


def damage(db: Database) -> str | None:
    """Return what of the schema is missing, or which row a daemon cannot read; None where nothing is.

    Of a database that the next start migrates nothing is told. Source: limits.DOCTOR_ROWS, the newest of each table.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != schema.VERSION:
        return None
    whole = Database(memory=True)
    with contextlib.closing(whole):
        schema.MIGRATIONS.apply(whole)
        missing = _parts(whole) - _parts(db)
    if missing:
        return f"it lacks {', '.join(sorted(missing)[:5])}"
    for table, columns in _JSON.items():
        for column, kind in columns.items():
            found = db.execute(
                f"SELECT rowid FROM (SELECT rowid, {column} AS told FROM {table} ORDER BY rowid DESC LIMIT ?) "  # noqa: S608
                "WHERE CASE WHEN json_valid(told) THEN json_type(told) <> ? ELSE told IS NOT NULL END LIMIT 1",
                (limits.DOCTOR_ROWS, kind),
            ).fetchone()
            if found is not None:
                return f"{column} of row {found[0]} of {table} is not what a daemon writes there"
    return None


def _parts(db: Database) -> set[str]:
    """Return the tables with their columns, and the indexes."""
    sql = (
        "SELECT m.name || coalesce('.' || c.name, '') FROM sqlite_master AS m LEFT JOIN pragma_table_info(m.name) AS c"
    )
    return {str(name) for (name,) in db.execute(sql)}


def check_secrets(db: Database) -> None:
    """See whether a daemon can use the secrets that there are. Raises: Refusal STORE_UNAVAILABLE."""
    for name in SECRETS:
        _known_secret(db, name)


def _known_secret(db: Database, name: str) -> bytes | None:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (f"secret:{name}",)).fetchone()
    return None if row is None else _read_secret(row[0])


def _secret(db: Database, name: str) -> bytes:
    known = _known_secret(db, name)
    if known is not None:
        return known
    fresh = secrets.token_bytes(_SECRET_BYTES)
    db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (f"secret:{name}", fresh.hex()))
    return fresh


def _read_secret(written: str) -> bytes:
    try:
        found = bytes.fromhex(written)
    except ValueError:
        found = b""
    if len(found) != _SECRET_BYTES:  # whoever knows a short one can make up what it is to prove
        raise Refusal(
            "STORE_UNAVAILABLE",
            "The database is damaged. It was not opened.",
            details={"cause": "DAMAGED", "outcome": "nothing"},
        )
    return found


def _use_wal(db: Database, path: str) -> None:
    deadline = time.monotonic() + limits.STORE_BUSY_SECONDS
    while True:
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY_SECONDS)
    if mode != "wal":
        raise Refusal(
            "STORE_UNAVAILABLE",
            f"The filesystem of {path} has no shared memory for SQLite's write-ahead log; nothing was opened.",
            next_step="Put the database on a local filesystem with CODESPACE_OPERATIONS_DB or CODESPACE_STATE_DIR.",
        )
