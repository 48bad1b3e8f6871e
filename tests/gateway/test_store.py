"""The store: transactions on real files, with cancels, other daemons and failing disks."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from sqlite_utils import Database

from codespace import limits
from codespace.drive import UNKNOWN
from codespace.errors import Refusal
from codespace.gateway import database, schema
from codespace.gateway.audit import Audit
from codespace.gateway.database import connect
from codespace.gateway.store import Store
from codespace.testing.shortage import descriptors


@asynccontextmanager
async def open_store(path: Path | str) -> AsyncIterator[Store]:
    store = Store.open(str(path))
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operations.sqlite"


def put(name: str, value: str = "x") -> Callable[[Database], None]:
    def insert(db: Database) -> None:
        db.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))

    return insert


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine write as slowly as it does: no call is given up that a test does not hold up."""
    monkeypatch.setattr(limits, "STORE_BUSY_SECONDS", 60.0)
    monkeypatch.setattr(limits, "STORE_WAIT_SECONDS", 90.0)


def names(db: Database) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM meta WHERE name NOT LIKE 'secret:%'")}


class Gate:
    """A function of the store that a test holds open: `entered` is set in its thread, `leave` lets it go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entered = trio.Event()
        self.leave = threading.Event()
        self._token = trio.lowlevel.current_trio_token()

    def __call__(self, db: Database) -> str:
        put(self.name)(db)
        self._token.run_sync_soon(self.entered.set)
        assert self.leave.wait(60)
        return self.name


# --- transactions ---


@pytest.mark.parametrize("where", ["file", "memory"])
async def test_what_a_write_returns_is_committed_and_read_by_a_later_read(where: str, path: Path) -> None:
    async with open_store(path if where == "file" else ":memory:") as store:
        assert await store.write(lambda db: db.execute("SELECT 7").fetchone()[0]) == 7
        await store.write(put("a"), durable=True)
        await store.write(put("b"))
        assert await store.read(names) == {"a", "b"}


async def test_a_write_that_raises_leaves_nothing_and_the_store_goes_on(path: Path) -> None:
    def half(db: Database) -> None:
        put("half")(db)
        raise LookupError("in the middle")

    async with open_store(path) as store:
        with pytest.raises(LookupError, match="in the middle"):
            await store.write(half)
        await store.write(put("whole"))
        assert await store.read(names) == {"whole"}


async def test_a_broken_constraint_reaches_the_caller_as_it_is_and_leaves_nothing(path: Path) -> None:
    def twice(db: Database) -> None:
        put("a")(db)
        put("a")(db)

    async with open_store(path) as store:
        with pytest.raises(sqlite3.IntegrityError):
            await store.write(twice)
        assert await store.read(names) == set()


async def test_a_chain_whose_last_number_has_no_next_is_told_as_damaged(path: Path) -> None:
    chain = Audit(lambda: 0.25, "inst-a")

    def append(db: Database) -> None:
        chain.append(db, "patch", "op-a", "admitted", "minted", "planning", "Because.")

    async with open_store(path) as store:
        await store.write(append)
        await store.write(lambda db: db.execute("UPDATE events SET seq = 9223372036854775807") and None)
        with pytest.raises(Refusal) as caught:
            await store.write(append)
        assert (caught.value.code, (caught.value.details or {})["cause"]) == ("STORE_UNAVAILABLE", "DAMAGED")


async def test_a_read_of_a_file_may_not_write(path: Path) -> None:
    async with open_store(path) as store:
        with pytest.raises(Refusal, match="may only be read"):
            await store.read(put("sneaked"))
        assert await store.read(names) == set()


async def test_what_a_read_of_memory_writes_is_dropped() -> None:
    async with open_store(":memory:") as store:
        await store.read(put("sneaked"))
        assert await store.read(names) == set()


async def test_rows_that_would_be_read_after_their_transaction_are_refused(path: Path) -> None:
    async with open_store(path) as store:
        with pytest.raises(TypeError, match="plain values"):
            await store.read(lambda db: db.query("SELECT 1"))
        with pytest.raises(TypeError, match="plain values"):
            await store.write(lambda db: db.execute("SELECT 1"))


async def test_durable_writes_are_flushed_and_the_next_ordinary_one_is_not(path: Path) -> None:
    def synchronous(db: Database) -> int:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])

    async with open_store(path) as store:
        found = [await store.write(synchronous, durable=durable) for durable in (False, True, False, True)]
        assert found == [1, 2, 1, 2]


async def test_every_connection_overwrites_what_it_deletes(path: Path) -> None:
    def secure(db: Database) -> tuple[int, int]:
        return db.execute("PRAGMA secure_delete").fetchone()[0], db.execute("PRAGMA foreign_keys").fetchone()[0]

    async with open_store(path) as store:
        assert await store.read(secure) == (1, 1)
        assert await store.write(secure) == (1, 1)
    with connect(str(path)) as db:
        assert secure(db) == (1, 1)


async def test_scrubbed_bytes_are_gone_from_every_file(path: Path) -> None:
    canary = "canary-" + "c" * 40
    async with open_store(path) as store:
        await store.write(put("a", canary))
        await store.write(lambda db: db.execute("UPDATE meta SET value = '' WHERE name = 'a'").rowcount)
        assert await store.scrub()
        for file in path.parent.iterdir():
            assert canary.encode() not in file.read_bytes(), file.name


async def test_a_scrub_says_at_once_that_another_connection_still_reads(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("a"))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM meta").fetchall()
            await store.write(put("b"))

            async def seconds() -> float:
                began = trio.current_time()
                assert not await store.scrub()
                return trio.current_time() - began

            took = [await seconds() for _ in range(5)]  # one is as good as another, on a machine that others use
            assert min(took) < limits.STORE_BUSY_SECONDS / 2
            reader.execute("ROLLBACK")
        assert await store.scrub()


async def test_a_closed_store_refuses_and_can_be_closed_again(path: Path) -> None:
    store = Store.open(str(path))
    store.close()
    store.close()
    for call in (store.write, store.read):
        with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
            await call(names)


async def test_closing_leaves_one_file(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("a"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_an_inline_store_works_on_a_fake_clock(autojump_clock: trio.testing.MockClock) -> None:
    store = Store.open(":memory:", inline=True)
    began = trio.current_time()
    await store.write(put("a"))
    assert await store.read(names) == {"a"}
    assert trio.current_time() == began
    store.close()


# --- cancels and time limits ---


async def test_a_cancel_before_the_call_writes_nothing(path: Path) -> None:
    async with open_store(path) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.write(put("a"))
        assert scope.cancelled_caught
        assert await store.read(names) == set()


async def test_a_cancel_before_the_call_keeps_even_an_inline_store_from_writing() -> None:
    store = Store.open(":memory:", inline=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.write(put("a"))
    assert scope.cancelled_caught
    assert await store.read(names) == set()
    store.close()


async def test_a_write_that_has_started_finishes_and_its_cancelled_caller_gets_the_result(path: Path) -> None:
    async with open_store(path) as store:
        gate, scope, told = Gate("started"), trio.CancelScope(), list[str]()

        async def call() -> None:
            with scope:
                told.append(await store.write(gate))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await gate.entered.wait()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert told == []  # it waits: whatever it said now could be false
            gate.leave.set()
        assert told == ["started"]
        assert await store.read(names) == {"started"}


async def test_a_write_in_line_is_taken_back_by_a_cancel_and_never_runs(path: Path) -> None:
    async with open_store(path) as store, trio.open_nursery() as nursery:
        gate = Gate("first")
        nursery.start_soon(store.write, gate)
        await gate.entered.wait()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(store.write, put("in line"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught  # while the first write still runs
        gate.leave.set()
        await store.write(put("last"))
        assert await store.read(names) == {"first", "last"}


async def test_reads_go_on_while_a_write_runs(path: Path) -> None:
    async with open_store(path) as store, trio.open_nursery() as nursery:
        gate = Gate("slow")
        nursery.start_soon(store.write, gate)
        await gate.entered.wait()
        assert await store.read(names) == set()  # overlapped: the write is still open
        gate.leave.set()


async def test_a_write_whose_time_is_over_is_refused_and_rolled_back(
    path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with open_store(path) as store:
        gate, refusals = Gate("late"), list[Refusal]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_write, store, gate, refusals)
            await gate.entered.wait()
            mock_clock.jump(limits.STORE_WAIT_SECONDS)
        assert [refusal.details for refusal in refusals] == [{"outcome": "nothing"}]
        gate.leave.set()
        await store.write(put("next"))
        assert await store.read(names) == {"next"}


async def test_a_write_in_line_whose_time_is_over_is_refused_and_never_runs(
    path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with open_store(path) as store:
        gate, refusals = Gate("first"), list[Refusal]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_write, store, gate, refusals)
            await gate.entered.wait()
            nursery.start_soon(refused_write, store, put("second"), refusals)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(limits.STORE_WAIT_SECONDS)
        assert [refusal.details for refusal in refusals] == [{"outcome": "nothing"}] * 2
        gate.leave.set()
        await store.write(put("third"))
        assert await store.read(names) == {"third"}


async def refused_write(store: Store, fn: Callable[[Database], object], refusals: list[Refusal]) -> None:
    with pytest.raises(Refusal) as caught:
        await store.write(fn)
    refusals.append(caught.value)


async def test_a_statement_without_end_is_interrupted_when_its_time_is_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    async with open_store(path) as store:
        monkeypatch.setattr(limits, "STORE_WAIT_SECONDS", 0.05)
        for call in (store.read, store.write):
            with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
                await call(lambda db: db.execute(endless).fetchone()[0])
        monkeypatch.undo()
        with trio.fail_after(60):  # both lanes are free again
            await store.write(put("next"))
            assert await store.read(names) == {"next"}


class HungCommit(Database):
    """A database whose COMMIT hangs in the disk until it is let go."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.entered = trio.Event()
        self.leave = threading.Event()
        self._token = trio.lowlevel.current_trio_token()

    def execute(self, sql: str, parameters: object = None) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self._token.run_sync_soon(self.entered.set)
            assert self.leave.wait(60)
        return super().execute(sql, parameters)  # type: ignore[arg-type]


async def test_a_commit_that_hangs_is_told_as_unknown_and_nothing_else_is_claimed(
    path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(path) as store:
        hung, refusals = HungCommit(store._writer.db.conn), list[Refusal]()
        monkeypatch.setattr(store._writer, "db", hung)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_write, store, put("a"), refusals)
            await hung.entered.wait()
            mock_clock.jump(limits.STORE_WAIT_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            assert refusals == []  # a commit that has begun gets its grace
            mock_clock.jump(limits.STORE_GRACE_SECONDS)
        assert [refusal.details for refusal in refusals] == [{"outcome": UNKNOWN}]
        assert await store.read(names) == set()
        hung.leave.set()
        await store.write(put("b"))
        assert await store.read(names) == {"a", "b"}


# --- two daemons on one file ---


async def test_two_daemons_write_at_once_and_no_write_is_lost(path: Path) -> None:
    async with open_store(path) as one, open_store(path) as other:

        def add(db: Database) -> None:
            (value,) = db.execute("SELECT value FROM meta WHERE name = 'count'").fetchone()
            db.execute("UPDATE meta SET value = ? WHERE name = 'count'", (str(int(value) + 1),))

        async def many(store: Store) -> None:
            for _ in range(100):
                await store.write(add)

        await one.write(put("count", "0"))
        async with trio.open_nursery() as nursery:
            for store in (one, other, one, other):
                nursery.start_soon(many, store)
        row = await other.read(lambda db: db.execute("SELECT value FROM meta WHERE name = 'count'").fetchone())
        assert row == ("400",)


async def test_a_write_shuts_out_other_writers_before_it_reads_anything(path: Path) -> None:
    def another_daemon_tries(db: Database) -> None:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    async with open_store(path) as store:
        await store.write(another_daemon_tries)


async def test_a_write_waits_for_another_daemons_write_and_then_succeeds(path: Path) -> None:
    async with open_store(path) as one, open_store(path) as other, trio.open_nursery() as nursery:
        gate = Gate("first")
        nursery.start_soon(one.write, gate)
        await gate.entered.wait()
        nursery.start_soon(other.write, put("second"))
        await trio.testing.wait_all_tasks_blocked()
        assert await other.read(names) == set()
        gate.leave.set()
    async with open_store(path) as store:
        assert await store.read(names) == {"first", "second"}


async def test_a_lock_that_is_never_given_back_ends_in_a_refusal_that_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_BUSY_SECONDS", 0.05)
    async with open_store(path) as store:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Refusal, match=r"kept the database locked.*Nothing was written") as caught:
                await store.write(put("a"))
            assert caught.value.retryable
            assert caught.value.details == {"cause": "SQLITE_BUSY", "outcome": "nothing"}
            other.execute("ROLLBACK")
        await store.write(put("b"))
        assert await store.read(names) == {"b"}


def test_a_file_whose_first_page_counts_pages_that_are_in_the_log_only_is_opened(path: Path) -> None:
    """As it is while a checkpoint copies them, and after one that was cut off."""
    Store.open(str(path)).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE large (value BLOB)")
        writer.execute("INSERT INTO large VALUES (zeroblob(100000))")
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        with path.open("r+b") as file:  # the first page, and none of the others
            file.seek(28)
            file.write(pages.to_bytes(4, "big"))
            file.seek(92)
            file.write(file_counter(path))
        with connect(str(path)) as db:
            assert db.execute("SELECT length(value) FROM large").fetchone() == (100_000,)


def file_counter(path: Path) -> bytes:
    """Return the change counter, which says that the count of pages is of use where its copy is the same."""
    return path.read_bytes()[24:28]


def test_daemons_that_start_together_on_a_new_file_all_open_it_and_share_its_secret(path: Path) -> None:
    together, opened, failed = threading.Barrier(6), list[Store](), list[BaseException]()

    def start() -> None:
        together.wait(60)
        try:
            opened.append(Store.open(str(path)))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    secrets = {store.secret("fingerprint") for store in opened}
    for store in opened:
        store.close()
    assert (failed, len(opened), len(secrets)) == ([], 6, 1)


def test_the_switch_to_a_log_is_tried_again_while_a_reader_is_in_the_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(str(path)).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("PRAGMA journal_mode = DELETE")
        monkeypatch.setattr(limits, "STORE_BUSY_SECONDS", 0.3)
        hold_open(reader)
        with pytest.raises(Refusal, match="locked"):
            Store.open(str(path))

        tries = list[float]()

        def give_way(seconds: float) -> None:
            tries.append(seconds)
            if reader.in_transaction:
                reader.execute("ROLLBACK")

        # The race that needs it (two daemons switch at once) is rare; here each try ends in the busy timeout.
        monkeypatch.setattr(database, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=give_way))
        Store.open(str(path)).close()
    assert tries


def hold_open(reader: sqlite3.Connection) -> None:
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()


def test_the_secret_is_long_stays_the_same_and_differs_between_databases(path: Path, tmp_path: Path) -> None:
    found = []
    for where in (path, path, tmp_path / "other.sqlite"):
        store = Store.open(str(where))
        found.append(store.secret("fingerprint"))
        store.close()
    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 32


# --- files that are not as they should be ---


def refused(path: Path, words: str) -> Refusal:
    """Check that opening is refused for a daemon and the command line, and leaves bytes, mode and folder alone."""
    before, mode = path.read_bytes(), path.stat().st_mode
    neighbours = sorted(file.name for file in path.parent.iterdir())
    with pytest.raises(Refusal, match=words) as caught:
        Store.open(str(path))
    with pytest.raises(Refusal, match=words), connect(str(path)):
        pass
    assert (path.read_bytes(), path.stat().st_mode) == (before, mode)
    assert sorted(file.name for file in path.parent.iterdir()) == neighbours
    assert caught.value.code == "STORE_UNAVAILABLE"
    return caught.value


async def test_a_new_file_is_for_its_owner_alone_and_so_are_its_side_files(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("a"))
        names_of_files = {path.name, f"{path.name}-wal", f"{path.name}-shm"}
        assert {name: stat.S_IMODE(os.stat(path.parent / name).st_mode) for name in os.listdir(path.parent)} == (
            dict.fromkeys(names_of_files, 0o600)
        )


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    Store.open(str(path)).close()
    path.chmod(0o644)
    Store.open(str(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_place_where_no_file_can_be_is_told_in_words(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(Refusal) as caught:
        Store.open(str(path / "operations.db"))
    assert caught.value.code == "STORE_UNAVAILABLE"
    assert caught.value.message == f"Not a directory. {path}/operations.db was not opened."


def test_a_file_that_is_no_database_is_refused_and_left_untouched(path: Path) -> None:
    path.write_bytes(b"My diary. " * 1000)
    path.chmod(0o644)
    refused(path, "not a database")


def test_another_programs_database_is_refused_and_left_untouched(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE bookmarks (url TEXT)")
        other.commit()
    refusal = refused(path, "database of another program; it was left untouched")
    assert "CODESPACE_OPERATIONS_DB" in refusal.next_step


def test_what_a_crash_of_another_program_left_in_its_log_is_left_there(path: Path, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    with contextlib.closing(sqlite3.connect(origin / "db", isolation_level=None)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("INSERT INTO bookmarks VALUES ('only in the log')")
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(origin / f"db{suffix}", crashed / f"db{suffix}")
    log = (crashed / "db-wal").read_bytes()
    refused(crashed / "db", "database of another program")
    assert (crashed / "db-wal").read_bytes() == log


def test_a_database_of_a_newer_program_is_refused_and_left_untouched(path: Path) -> None:
    Store.open(str(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    refusal = refused(path, f"newer CodeSpace .schema {schema.VERSION + 1}")
    assert "Update CodeSpace" in refusal.next_step


def test_a_newer_version_that_is_still_in_the_log_is_refused_too(path: Path) -> None:
    store = Store.open(str(path))
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        with pytest.raises(Refusal, match="newer CodeSpace"):
            Store.open(str(path))
    store.close()


@pytest.mark.parametrize("keep_bytes", [50, 100, 600])
def test_a_database_that_was_cut_off_is_refused_or_says_that_it_is_damaged(path: Path, keep_bytes: int) -> None:
    Store.open(str(path)).close()
    os.truncate(path, keep_bytes)
    before = path.read_bytes()
    with pytest.raises(Refusal, match=r"damaged|not a database|another program"):
        Store.open(str(path))
    assert path.read_bytes() == before


def test_a_database_whose_pages_were_overwritten_says_that_it_is_damaged(path: Path) -> None:
    Store.open(str(path)).close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(Refusal, match="damaged"):
        Store.open(str(path))


@pytest.mark.parametrize("kind", ["folder", "missing folder", "fifo", "empty name"])
def test_a_path_where_no_database_can_be_is_refused(kind: str, tmp_path: Path) -> None:
    place = {"folder": tmp_path, "missing folder": tmp_path / "no" / "db", "fifo": tmp_path / "f", "empty name": ""}[
        kind
    ]
    if kind == "fifo":
        os.mkfifo(place)
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"):
        Store.open(str(place))
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"), connect(str(place)):
        pass


def test_the_command_line_never_creates_a_database(path: Path) -> None:
    with pytest.raises(Refusal, match="STORE_UNAVAILABLE"), connect(str(path)):
        pass
    assert not path.exists()


def test_names_that_mean_something_in_a_uri_are_plain_names(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=ro#100%.sqlite"
    for _ in range(2):
        Store.open(str(path)).close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


async def test_a_full_disk_refuses_the_write_keeps_what_was_there_and_heals(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("before"))
        # SQLite's own page limit ends in the same SQLITE_FULL as the disk's, and needs no mount.
        full = await store.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        store._writer.db.execute(f"PRAGMA max_page_count = {full}")
        with pytest.raises(Refusal, match=r"The disk is full\. Nothing was written") as caught:
            await store.write(put("big", "x" * 1_000_000))
        assert caught.value.details == {"cause": "SQLITE_FULL", "outcome": "nothing"}
        assert await store.read(names) == {"before"}
        store._writer.db.execute("PRAGMA max_page_count = 1000000")
        await store.write(put("after"))
        assert await store.read(names) == {"before", "after"}


async def test_a_disk_that_fails_refuses_the_write_keeps_what_was_there_and_heals(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("before"))
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, old[1]))  # the kernel refuses to grow a file beyond
        try:
            with pytest.raises(Refusal, match=r"The disk failed\. Nothing was written"):
                await store.write(put("big", "x" * 1_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        await store.write(put("after"))
        assert await store.read(names) == {"before", "after"}


async def test_a_database_that_became_read_only_refuses_the_write_and_still_reads(path: Path) -> None:
    async with open_store(path) as store:
        await store.write(put("before"))
        store._writer.db.execute("PRAGMA query_only = ON")
        with pytest.raises(Refusal, match=r"may only be read\. Nothing was written"):
            await store.write(put("after"))
        assert await store.read(names) == {"before"}


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_database_whose_file_is_gone_takes_no_write_that_nobody_would_find_and_heals(
    path: Path, replaced: bool
) -> None:
    away = path.with_name("away.sqlite")
    async with open_store(path) as store:
        await store.write(put("before"))
        path.rename(away)
        if replaced:
            path.touch()
        with pytest.raises(Refusal, match="removed or replaced") as caught:
            await store.write(put("lost"))
        assert (caught.value.code, caught.value.details) == (
            "STORE_UNAVAILABLE",
            {"cause": "REPLACED", "outcome": "nothing"},
        )
        away.rename(path)
        await store.write(put("after"))
        assert await store.read(names) == {"before", "after"}


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (
            "count(*), sum(size_bytes)",
            "workspace_id = 'w' AND root = '/w' AND state IN ('pending', 'granted') AND expires_at > 1.0",
        ),
        ("count(*)", "state = 'pending' AND expires_at > 1.0"),
        ("*", "state IN ('pending', 'granted') AND expires_at <= 1.0 ORDER BY rowid DESC"),
    ],
)
async def test_what_waits_is_counted_and_swept_by_an_index_and_not_through_bodies(
    path: Path, what: str, where: str
) -> None:
    async with open_store(path) as store:
        plan = await store.read(
            lambda db: str(db.execute(f"EXPLAIN QUERY PLAN SELECT {what} FROM holds WHERE {where}").fetchall())
        )
        covering = "COVERING " if "count(*)" in what else ""
        assert f"USING {covering}INDEX holds_waiting (state=? AND expires_at" in plan


@pytest.mark.parametrize("lane", ["read", "write"])
async def test_a_read_that_fails_half_way_leaves_nobody_behind_in_what_was_true_then(path: Path, lane: str) -> None:
    """Though somebody keeps the error, and with it what was being read: on an old snapshot nothing is ever news."""

    def stumble(db: Database) -> list[int]:
        return [int(name) for (name,) in db.execute("SELECT name FROM meta ORDER BY name DESC")]

    async with open_store(path) as store, open_store(path) as other:
        await store.write(put("a"))
        await store.write(put("b"))
        with pytest.raises(ValueError, match="invalid literal") as kept:
            await getattr(store, lane)(stumble)
        await other.write(put("c"))
        await store.write(put("d"))
        assert await store.read(names) == {"a", "b", "c", "d"}
        assert await other.scrub()
        assert kept.value.__traceback__ is not None


def test_an_opening_that_is_short_of_descriptors_is_refused_and_leaves_none_open(path: Path) -> None:
    Store.open(str(path)).close()
    ends: list[str] = []
    before = set(os.listdir("/proc/self/fd"))
    for left in range(8):
        try:
            with descriptors(left):
                store = Store.open(str(path))
        except Refusal as refused:
            ends.append(refused.code)
        else:
            store.close()
            ends.append("opened")
        assert set(os.listdir("/proc/self/fd")) == before
    assert ends == sorted(ends)
    assert set(ends) == {"STORE_UNAVAILABLE", "opened"}


def test_a_secret_that_is_damaged_is_told_as_damage(path: Path) -> None:
    Store.open(str(path)).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = 'f' || value")
    with pytest.raises(Refusal, match=r"The database is damaged\.") as caught:
        Store.open(str(path))
    assert caught.value.code == "STORE_UNAVAILABLE"
