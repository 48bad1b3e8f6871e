"""The chain: whatever is done to recorded events shows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from codespace import limits
from codespace.gateway import audit, schema
from codespace.gateway.audit import GENESIS, Audit, Head

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def chain(length: int = 0) -> Database:
    """Return a chain in memory, of `length` events that all differ."""
    db = Database(sqlite3.connect(":memory:", isolation_level=None))
    schema.MIGRATIONS.apply(db)
    for number in range(length):
        append(db, number)
    return db


def append(db: Database, number: int, *, at: float = 0.25) -> Head:
    writer = Audit(lambda: at + number, f"inst-{number % 2}")
    return writer.append(db, "patch", f"op-{number}", "admitted", "minted", "planning", "Because.", {"n": number})


@pytest.fixture
def five() -> Iterator[Database]:
    with closing(chain(5)) as db:
        yield db


def faults(db: Database, exported: Head | None = None) -> list[tuple[int, str]]:
    verdict = audit.verify(db, exported)
    assert verdict.ok == (not verdict.problems)
    return [(problem.seq, problem.fault) for problem in verdict.problems]


def test_an_empty_chain_is_sound_and_its_head_is_the_genesis() -> None:
    with closing(chain()) as db:
        assert audit.head(db) == (0, GENESIS)
        assert audit.verify(db).ok


def test_a_sound_chain_says_how_long_it_is_and_where_it_ends(five: Database) -> None:
    verdict = audit.verify(five)
    assert (verdict.ok, verdict.events, verdict.head) == (True, 5, audit.head(five))
    assert verdict.head.seq == 5


def test_append_returns_the_new_head(five: Database) -> None:
    assert append(five, 5) == audit.head(five)


def test_events_of_a_subject_come_back_as_they_were_written(five: Database) -> None:
    (event,) = audit.events(five, "op-3")
    assert (event.seq, event.at, event.instance_id) == (4, 3.25, "inst-1")
    assert (event.kind, event.subject, event.event) == ("patch", "op-3", "admitted")
    assert (event.source, event.target, event.reason) == ("minted", "planning", "Because.")
    assert event.details == {"n": 3}


@pytest.mark.parametrize("column", ["at", "instance_id", "kind", "subject", "event", "source", "target", "reason"])
def test_an_edit_of_any_column_is_found(five: Database, column: str) -> None:
    value = 99.5 if column == "at" else "another"
    five.execute(f"UPDATE events SET {column} = ? WHERE seq = 3", (value,))
    assert faults(five) == [(3, "edited")]


def test_an_edit_of_the_details_is_found(five: Database) -> None:
    five.execute("UPDATE events SET details = '{\"n\": 7}' WHERE seq = 3")
    assert faults(five) == [(3, "edited")]


def test_an_emptied_column_is_told_from_a_missing_one(five: Database) -> None:
    writer = Audit(lambda: 1.0, "inst-1")
    writer.append(five, "daemon", "inst-1", "started", None, None, "It began.")
    five.execute("UPDATE events SET source = '' WHERE seq = 6")
    assert faults(five) == [(6, "edited")]


def test_text_that_is_pushed_from_one_column_into_the_next_is_found(five: Database) -> None:
    five.execute("UPDATE events SET kind = 'patcho', subject = 'p-2' WHERE seq = 3")
    assert faults(five) == [(3, "edited")]


def test_an_edit_whose_own_hash_was_made_to_fit_is_found_at_the_next_event(five: Database) -> None:
    row = list(five.execute("SELECT * FROM events WHERE seq = 3").fetchone())
    row[5] = "forged"
    fields = tuple(row[1:10])
    five.execute("UPDATE events SET event = 'forged', hash = ? WHERE seq = 3", (audit._digest(row[10], fields),))
    assert faults(five) == [(4, "gap")]


def test_a_removed_event_is_found_as_a_gap_also_when_the_rest_is_renumbered(five: Database) -> None:
    five.execute("DELETE FROM events WHERE seq = 3")
    assert faults(five) == [(4, "gap")]
    five.execute("UPDATE events SET seq = seq - 1 WHERE seq > 3")
    assert faults(five) == [(3, "gap")]


def test_a_chain_that_is_broken_everywhere_is_looked_through_only_for_what_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "AUDIT_PROBLEMS", 3)
    asked = list[str]()
    with closing(chain(40)) as db:
        db.execute("DELETE FROM events WHERE seq % 2 = 0")
        db.execute("UPDATE events SET seq = (seq + 1) / 2")
        db.conn.set_trace_callback(asked.append)
        verdict = audit.verify(db)
    assert (verdict.problems_total, len(verdict.problems)) == (19, 3)
    assert len([statement for statement in asked if "WHERE hash" in statement]) == 3


def test_numbers_that_were_moved_are_found_although_every_link_holds(five: Database) -> None:
    five.execute("UPDATE events SET seq = seq + 10 WHERE seq > 3")
    assert faults(five) == [(14, "gap")]


def test_a_removed_beginning_is_found(five: Database) -> None:
    five.execute("DELETE FROM events WHERE seq <= 2")
    assert faults(five) == [(3, "gap")]


def test_two_events_that_changed_places_are_found_as_reordered(five: Database) -> None:
    for source, target in ((2, 99), (3, 2), (99, 3)):
        five.execute("UPDATE events SET seq = ? WHERE seq = ?", (target, source))
    assert {fault for _, fault in faults(five)} == {"reordered"}


def test_an_event_that_was_copied_in_is_found(five: Database) -> None:
    five.execute("UPDATE events SET seq = 6 WHERE seq = 5")
    five.execute("UPDATE events SET seq = 5 WHERE seq = 4")
    five.execute(
        "INSERT INTO events SELECT 4, * FROM (SELECT at, instance_id, kind, subject, event, source, target, "
        "reason, details, previous, hash FROM events WHERE seq = 2)"
    )
    assert (4, "reordered") in faults(five)


def test_a_cut_tail_is_sound_by_itself_and_found_against_an_exported_head(five: Database) -> None:
    exported = audit.head(five)
    five.execute("DELETE FROM events WHERE seq > 3")
    assert faults(five) == []
    assert faults(five, exported) == [(5, "cut")]


def test_a_tail_that_was_cut_and_grown_again_is_found_against_an_exported_head(five: Database) -> None:
    exported = audit.head(five)
    five.execute("DELETE FROM events WHERE seq > 3")
    for number in (13, 14, 15):
        append(five, number)
    assert faults(five) == []
    assert faults(five, exported) == [(5, "rewritten")]


def test_a_chain_that_only_grew_agrees_with_every_head_that_was_exported(five: Database) -> None:
    exported = [Head(0, GENESIS), audit.head(five)]
    append(five, 5)
    assert [faults(five, head) for head in [*exported, audit.head(five)]] == [[], [], []]


def test_many_problems_are_counted_and_the_first_ones_named() -> None:
    with closing(chain(limits.AUDIT_PROBLEMS + 15)) as db:
        db.execute("UPDATE events SET reason = 'Another.'")
        verdict = audit.verify(db)
    assert len(verdict.problems) == limits.AUDIT_PROBLEMS
    assert verdict.problems_total == limits.AUDIT_PROBLEMS + 15


@pytest.mark.parametrize("details", [{"x": float("nan")}, {"x": object()}, {"x": b"bytes"}])
def test_details_that_are_not_plain_json_are_refused_and_nothing_is_appended(details: dict[str, object]) -> None:
    with closing(chain(1)) as db:
        with pytest.raises((TypeError, ValueError)):
            Audit(lambda: 1.0, "inst-1").append(db, "patch", "op-1", "admitted", None, None, "Because.", details)
        assert audit.head(db).seq == 1


def test_a_clock_of_whole_seconds_makes_a_sound_chain() -> None:
    with closing(chain()) as db:
        Audit(lambda: 5, "inst-1").append(db, "patch", "op-1", "admitted", None, None, "Because.")
        assert audit.verify(db).ok


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0, 4e9), words, words, words, st.none() | words, st.dictionaries(words, plain_json, max_size=3)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_number_and_json_is_stored_exactly_and_verifies(
    rows: list[tuple[float, str, str, str, str | None, dict[str, object]]],
) -> None:
    with closing(chain()) as db:
        for at, kind, subject, event, source, details in rows:
            writer = Audit(lambda at=at: at, "inst-1")  # type: ignore[misc]
            writer.append(db, kind, subject, event, source, None, "Because.", details)
        assert audit.verify(db).ok
        for at, kind, subject, event, source, details in rows:
            assert any(
                (found.at, found.kind, found.event, found.source) == (at, kind, event, source)
                and found.details == json.loads(json.dumps(details))
                for found in audit.events(db, subject)
            )


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tampering_with_stored_rows_is_found(data: st.DataObject) -> None:
    with closing(chain(6)) as db:
        exported = audit.head(db)
        rows = [tuple(row) for row in db.execute("SELECT * FROM events ORDER BY seq")]
        kept = data.draw(st.lists(st.integers(0, 5), unique=True, max_size=6), "rows kept, in this order")
        renumbered = data.draw(st.booleans(), "numbered anew")
        edited = data.draw(st.none() | st.sampled_from(kept), "row edited") if kept else None
        db.execute("DELETE FROM events")
        places = range(1, 7) if renumbered else sorted(number + 1 for number in kept)
        for seq, number in zip(places, kept, strict=False):
            row = list(rows[number])
            row[0] = seq
            if number == edited:
                row[8] += " And more."
            db.execute(f"INSERT INTO events VALUES ({', '.join('?' * 12)})", row)

        unchanged = kept == list(range(6)) and edited is None
        assert (faults(db, exported) == []) == unchanged
