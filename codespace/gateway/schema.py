"""The tables of the operations database, as migrations; nothing here reads or writes rows.

A migration that was released is never edited: a later one follows it.
"""

from __future__ import annotations

from typing import Final

from sqlite_utils import Database, Migrations

APPLICATION_ID: Final = 0x43445350
# "CDSP" in SQLite's header: how a CodeSpace database is told from any other file.

VERSION: Final = 9
# The number of migrations below, in SQLite's user_version: a higher one means a newer CodeSpace.

MIGRATIONS: Final = Migrations("codespace")


@MIGRATIONS()
def m001_operations_holds_events(db: Database) -> None:
    """Create the ledger, holds, instances, the audit chain and secrets."""
    for statement in _M001:
        db.execute(statement)


@MIGRATIONS()
def m002_works_intents(db: Database) -> None:
    """Create the tables of works, and of what the operator wants in them."""
    for statement in _M002:
        db.execute(statement)


@MIGRATIONS()
def m003_spools_stop_requests(db: Database) -> None:
    """Say where a process's output lies, and let one daemon ask another to end a process."""
    for statement in _M003:
        db.execute(statement)


@MIGRATIONS()
def m004_grants(db: Database) -> None:
    """Say who may decide a hold and who did, and keep what the operator granted for more than once."""
    for statement in _M004:
        db.execute(statement)


@MIGRATIONS()
def m005_roots_of_works(db: Database) -> None:
    """Say which directory a work is of: daemons that share a database may give one id to two."""
    for statement in _M005:
        db.execute(statement)


@MIGRATIONS()
def m006_waiting_holds(db: Database) -> None:
    """Count and sweep what waits by an index alone: each row lies behind a body of up to megabytes."""
    for statement in _M006:
        db.execute(statement)


@MIGRATIONS()
def m007_operations_of_holds(db: Database) -> None:
    """Find what a hold was resumed as without a look at all of history."""
    for statement in _M007:
        db.execute(statement)


@MIGRATIONS()
def m008_roots_of_holds_lists(db: Database) -> None:
    """Say which directory a hold is of, as of a work, and list by indexes what history only gets longer by."""
    for statement in _M008:
        db.execute(statement)


@MIGRATIONS()
def m009_sizes_of_holds(db: Database) -> None:
    """Keep how large a hold is where holds are counted: together they may be too large to be listed in time."""
    for statement in _M009:
        db.execute(statement)


_M001: Final = (
    """CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT""",
    """CREATE TABLE instances (
        id TEXT PRIMARY KEY, pid INTEGER NOT NULL, started_at REAL NOT NULL, ended_at REAL,
        state_dir TEXT NOT NULL, lock_path TEXT NOT NULL, roots TEXT NOT NULL) STRICT""",
    """CREATE TABLE operations (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL CHECK (kind IN ('patch', 'exec')), tool TEXT NOT NULL,
        workspace_id TEXT NOT NULL, root TEXT NOT NULL, operation_key TEXT, fingerprint TEXT NOT NULL,
        state TEXT NOT NULL, instance_id TEXT NOT NULL, created_at REAL NOT NULL, finished_at REAL,
        work_id TEXT, process_id TEXT, files TEXT NOT NULL, changes TEXT NOT NULL, outcome TEXT,
        approval_id TEXT) STRICT""",
    # A key names one operation, across workspaces, kinds and daemons: the promise of P5 is this index.
    """CREATE UNIQUE INDEX operations_key ON operations (operation_key) WHERE operation_key IS NOT NULL""",
    """CREATE INDEX operations_unfinished ON operations (instance_id) WHERE finished_at IS NULL""",
    """CREATE INDEX operations_created ON operations (created_at)""",
    """CREATE INDEX operations_process ON operations (process_id) WHERE process_id IS NOT NULL""",
    """CREATE TABLE holds (
        id TEXT PRIMARY KEY, tool TEXT NOT NULL, workspace_id TEXT NOT NULL, operation_key TEXT,
        fingerprint TEXT NOT NULL, state TEXT NOT NULL, body TEXT, shown TEXT NOT NULL, caller TEXT NOT NULL,
        reason TEXT, expires_at REAL NOT NULL, created_at REAL NOT NULL, decided_at REAL, result TEXT,
        instance_id TEXT NOT NULL, operation_id TEXT) STRICT""",
    # While a hold is active it owns its key and its fingerprint: sent again, a request finds it.
    """CREATE UNIQUE INDEX holds_active_key ON holds (operation_key)
        WHERE operation_key IS NOT NULL AND state IN ('pending', 'granted', 'resuming')""",
    """CREATE INDEX holds_fingerprint ON holds (fingerprint)""",
    """CREATE INDEX holds_key ON holds (operation_key) WHERE operation_key IS NOT NULL""",
    """CREATE INDEX holds_state ON holds (state)""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY, at REAL NOT NULL, instance_id TEXT NOT NULL, kind TEXT NOT NULL,
        subject TEXT NOT NULL, event TEXT NOT NULL, source TEXT, target TEXT, reason TEXT NOT NULL,
        details TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL) STRICT""",
    """CREATE INDEX events_subject ON events (subject)""",
)

_M002: Final = (
    """CREATE TABLE works (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, title TEXT NOT NULL, state TEXT NOT NULL,
        created_at REAL NOT NULL, finished_at REAL) STRICT""",
    """CREATE INDEX works_workspace ON works (workspace_id, state)""",
    """CREATE INDEX works_created ON works (created_at)""",
    """CREATE TABLE intents (
        id TEXT PRIMARY KEY, work_id TEXT NOT NULL REFERENCES works (id), kind TEXT NOT NULL,
        delivery TEXT NOT NULL, text TEXT NOT NULL, state TEXT NOT NULL, revision INTEGER NOT NULL,
        position INTEGER NOT NULL, created_at REAL NOT NULL, supersedes TEXT, carried_from TEXT,
        claimed_at REAL, finished_at REAL, note TEXT) STRICT""",
    """CREATE INDEX intents_work ON intents (work_id, state)""",
    """CREATE INDEX operations_work ON operations (work_id) WHERE work_id IS NOT NULL AND finished_at IS NULL""",
)

_M003: Final = (
    """ALTER TABLE operations ADD COLUMN spool TEXT""",
    """CREATE TABLE stop_requests (
        process_id TEXT PRIMARY KEY, instance_id TEXT NOT NULL, grace_seconds REAL NOT NULL,
        requested_at REAL NOT NULL) STRICT""",
    """CREATE INDEX stop_requests_instance ON stop_requests (instance_id)""",
)

_M004: Final = (
    # Whoever opens the database later must not decide what was held for the operator alone.
    """ALTER TABLE holds ADD COLUMN approvals TEXT NOT NULL DEFAULT 'confirm'""",
    """ALTER TABLE holds ADD COLUMN decided_by TEXT""",
    """CREATE INDEX holds_created ON holds (created_at)""",
    """CREATE TABLE grants (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, scope TEXT NOT NULL, terms TEXT NOT NULL,
        state TEXT NOT NULL, approval_id TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL,
        instance_id TEXT, uses INTEGER NOT NULL, used_at REAL, ended_at REAL) STRICT""",
    """CREATE INDEX grants_active ON grants (workspace_id) WHERE state = 'active'""",
)

_M005: Final = ("""ALTER TABLE works ADD COLUMN root TEXT""",)

_M006: Final = (
    """CREATE INDEX holds_waiting ON holds (state, expires_at, workspace_id)""",
    """DROP INDEX holds_state""",
)

_M007: Final = ("""CREATE INDEX operations_approval ON operations (approval_id) WHERE approval_id IS NOT NULL""",)

_M008: Final = (
    """ALTER TABLE holds ADD COLUMN root TEXT""",
    """UPDATE holds SET root = (SELECT root FROM operations WHERE approval_id = holds.id)""",
    """DROP INDEX holds_waiting""",
    """CREATE INDEX holds_waiting ON holds (state, expires_at, workspace_id, root)""",
    """CREATE INDEX operations_kind ON operations (kind, created_at)""",
    """CREATE INDEX works_open ON works (workspace_id) WHERE state <> 'closed'""",
    """CREATE INDEX intents_next ON intents (work_id) WHERE delivery = 'next_work' AND state IN ('draft', 'queued')""",
    """DROP INDEX works_workspace""",
    """CREATE INDEX instances_unended ON instances (id) WHERE ended_at IS NULL""",
    """CREATE INDEX grants_listed ON grants (state = 'active', created_at)""",
)

_M009: Final = (
    """ALTER TABLE holds ADD COLUMN size_bytes INTEGER NOT NULL DEFAULT 0""",
    """DROP INDEX holds_waiting""",
    """CREATE INDEX holds_waiting ON holds (state, expires_at, workspace_id, root, size_bytes)""",
)
