"""Logs are structured, on the descriptor that was given, without secrets, and never waited for."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace import log
from codespace.errors import Refusal
from codespace.log.redaction import Redaction, names_content
from codespace.log.sink import Sink

CANARY = "canary-5f0c1d"


class Reader:
    """The other end of stderr."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()

    def lines(self) -> list[str]:
        os.set_blocking(self._read, False)
        collected = b""
        try:
            while chunk := os.read(self._read, 65_536):
                collected += chunk
        except BlockingIOError:
            pass
        return collected.decode().splitlines()

    def close(self) -> None:
        os.close(self._read)
        os.close(self.descriptor)


@pytest.fixture
def reader() -> Iterator[Reader]:
    opened = Reader()
    yield opened
    opened.close()


def read_json(reader: Reader) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reader.lines()]


def test_a_line_is_one_json_object_with_time_and_level(reader: Reader) -> None:
    log.configure(level="info", form="json", descriptor=reader.descriptor)
    log.get_logger(workspace="app").info("patch applied", operation_id="op-1")
    (line,) = read_json(reader)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "patch applied", "level": "info", "operation_id": "op-1", "workspace": "app"}


def test_what_is_below_the_level_is_not_written(reader: Reader) -> None:
    log.configure(level="warning", form="json", descriptor=reader.descriptor)
    log.get_logger().info("quiet")
    log.get_logger().warning("loud")
    assert [line["event"] for line in read_json(reader)] == ["loud"]


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize(
    "fields",
    [
        {"token": CANARY},
        {"http_token": CANARY},
        {"Authorization": f"Bearer {CANARY}"},
        {"note": f"authorization: bearer {CANARY}"},
        {"patch": f"*** Begin Patch\n+{CANARY}"},
        {"stdin": CANARY},
        {"arguments": {"anything": CANARY}},
        {"env": {"API": CANARY}},
        {"environment": [CANARY]},
        {"password": CANARY},
        {"output": CANARY},
        {"nested": {"deep": [{"set-cookie": CANARY}]}},
        {"raw": CANARY.encode()},
        {"known": "before hunter22 after"},
        {"key-hunter22": 1},
        {"nested": {"hunter22": "as a key"}},
        {"object": RuntimeError("hunter22")},
    ],
)
def test_a_secret_never_shows_wherever_it_stands(reader: Reader, form: str, fields: dict[str, Any]) -> None:
    log.hide("hunter22")
    log.configure(level="debug", form=form, descriptor=reader.descriptor)
    log.get_logger().info("seen", **fields)
    written = "\n".join(reader.lines())
    assert "seen" in written
    assert CANARY not in written
    assert "hunter22" not in written


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_exception_says_where_and_which_but_not_what_it_was_working_on(reader: Reader, form: str) -> None:
    log.configure(level="info", form=form, descriptor=reader.descriptor)
    try:
        try:
            {}[CANARY]
        except KeyError as error:
            raise ExceptionGroup(CANARY, [Refusal("TIMEOUT", CANARY), OSError(2, CANARY)]) from error
    except ExceptionGroup:
        log.get_logger().exception("a fault")
    written = "\n".join(reader.lines())
    assert CANARY not in written
    for told in ("KeyError", "ExceptionGroup", "Refusal TIMEOUT", "FileNotFoundError ENOENT", "test_log.py"):
        assert told in written


@pytest.mark.parametrize("form", ["console", "json"])
def test_hostile_text_stays_on_its_line_and_never_acts(reader: Reader, form: str) -> None:
    log.configure(level="info", form=form, descriptor=reader.descriptor)
    log.get_logger().info("client \x1b]0;title\x07", name="a\nlevel=error forged\u202e", **{"k\ney": 1})
    lines = reader.lines()
    assert len(lines) == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(lines[0])


def test_a_library_is_heard_without_the_values_that_it_logs(reader: Reader) -> None:
    log.configure(level="debug", form="json", descriptor=reader.descriptor)
    library = logging.getLogger("mcp.server")
    library.warning("Failed to validate request: {'patch': '%s'}", CANARY)
    library.error(f"Bad input {{'stdin': {CANARY!r}}}")
    library.info("POST /mcp")
    assert [(line["event"], line["level"], line["logger"]) for line in read_json(reader)] == [
        ("Failed to validate request", "warning", "mcp.server"),
        ("Bad input", "error", "mcp.server"),
    ]


def test_a_reader_that_stopped_reading_never_holds_up_the_work(reader: Reader) -> None:
    sink = Sink(reader.descriptor)
    finished = threading.Event()

    def flood() -> None:
        for _ in range(3_000):
            sink.msg("x" * 100)
        finished.set()

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    assert finished.wait(60)
    thread.join()
    assert sink.dropped > 0
    kept = len(reader.lines())
    assert kept < 3_000
    dropped = sink.dropped
    sink.msg("again")
    assert reader.lines() == ["again", f"({dropped} log lines before this one were dropped: nobody read them)"]
    assert kept + dropped >= 3_000


def test_a_reader_that_is_gone_is_no_reason_to_fail() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        sink = Sink(write)
        sink.msg("to nobody")
        assert sink.dropped == 1
    finally:
        os.close(write)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_any_value_can_be_logged(value: object) -> None:
    json.dumps(Redaction()(None, "info", {"event": "e", "value": value}))


def test_a_value_without_end_costs_a_bounded_line() -> None:
    endless: list[Any] = []
    endless.append(endless)
    cleaned = Redaction()(None, "info", {"loop": endless, "long": "y" * 10_000_000, "many": list(range(100_000))})
    assert len(json.dumps(cleaned)) < 10_000


@pytest.mark.parametrize("key", ["patch", "TOKEN", "http_token", "proxy-authorization", "stdin", "argv", "Cookie"])
def test_content_and_credentials_are_known_by_their_key(key: str) -> None:
    assert names_content(key)


@pytest.mark.parametrize("key", ["event", "workspace_id", "operation_id", "path", "state", "reason", "token_file"])
def test_ids_paths_and_states_are_shown(key: str) -> None:
    assert not names_content(key)
