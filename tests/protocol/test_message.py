"""What a message is read as: how much it may hold, and to which id a refusal goes."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from typing import Any

import mcp_types as types
import pytest

from codespace import limits
from codespace.protocol.message import NoMessage, read, seen_id

HEAD = b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":'


def message(values: bytes) -> bytes:
    return HEAD + values + b"}}"


def refused(data: bytes) -> types.JSONRPCError:
    with pytest.raises(NoMessage) as refusal:
        read(data)
    return refusal.value.answer


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1.5", b'"a"', b'{"a":1}', b'"\\\\"', b'"\\""', b'["\\\\\\"", 1]'])
def test_a_message_may_have_many_values_and_no_more_than_the_limit(value: bytes) -> None:
    each = 1 + len(re.findall(rb"[\[{]", value)) + len(re.findall(rb",", value))
    fitting = (limits.MESSAGE_VALUES - 10) // each
    assert isinstance(read(message(b"[" + b",".join([value] * fitting) + b"]")), types.JSONRPCRequest)
    answer = refused(message(b"[" + b",".join([value] * (limits.MESSAGE_VALUES + 1)) + b"]"))
    assert (answer.id, answer.error.code) == (7, types.INVALID_REQUEST)
    assert str(limits.MESSAGE_VALUES) in answer.error.message


@pytest.mark.parametrize("sign", [b",", b"[", b"{", b'\\",', b"\\\\,", b'\\\\\\"['])
def test_what_stands_in_a_text_is_no_value(sign: bytes) -> None:
    text = sign * (2 * limits.MESSAGE_VALUES)
    read_back = read(message(b'["' + text + b'", 1]'))
    assert isinstance(read_back, types.JSONRPCRequest)
    assert read_back.params is not None
    assert read_back.params["x"][0] == json.loads(b'"' + text + b'"')


def test_the_names_in_an_object_are_not_counted_as_values_beside_what_they_name() -> None:
    members = {f"a, name {number}": f"value {number}" for number in range(limits.MESSAGE_VALUES - 10)}
    assert isinstance(read(message(json.dumps(members).encode())), types.JSONRPCRequest)


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_values_within_values_are_counted_too(opened: bytes, closed: bytes) -> None:
    deep = opened * 100 + b"1" + closed * 100
    assert isinstance(
        read(message(b"[" + b",".join([deep] * (limits.MESSAGE_VALUES // 200)) + b"]")), types.JSONRPCRequest
    )
    refused(message(b"[" + b",".join([deep] * (limits.MESSAGE_VALUES // 99)) + b"]"))


def test_many_short_texts_are_refused_without_a_part_in_memory_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_VALUES", 1000)
    data = message(b"[" + b",".join([b'"a"'] * 500_000) + b"]")
    tracemalloc.start()
    refused(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(data)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1.5", b'"a"', b'"\\""'])
def test_the_longest_message_of_the_smallest_values_is_refused_in_the_time_that_its_bytes_take(value: bytes) -> None:
    data = message(b"[" + b",".join([value] * (limits.REQUEST_BYTES // (len(value) + 1) - 100)) + b"]")
    started = time.process_time()
    refused(data)
    assert time.process_time() - started < 5  # a second on a slow machine; to make objects of it takes thirty


@pytest.mark.parametrize("id", [b"0x1", b"01", b"-01", b"7_000", b"7abc", b"1.5", b"1e3", b'"\xed\xa0\x80"'])
def test_an_answer_goes_to_no_id_that_was_not_sent(id: bytes) -> None:
    assert refused(b'{"jsonrpc":"2.0","id":' + id + b',"method":5}').id is None


@pytest.mark.parametrize("name", ["id", r"\u0069d", r"i\u0064"])
def test_an_id_that_is_none_is_refused_however_its_name_is_written(name: str) -> None:
    written = f'{{"jsonrpc":"2.0","{name}":7.5,"method":"ping"}}'.encode()
    assert refused(written).error.code == types.INVALID_REQUEST
    within = f'{{"jsonrpc":"2.0","method":"told","params":{{"{name}":7.5}}}}'.encode()
    assert isinstance(read(within), types.JSONRPCNotification)


@pytest.mark.parametrize("id", [0, -1, 10, "é", "0x1"])
def test_an_answer_goes_to_an_id_that_can_be_seen(id: Any) -> None:
    written = json.dumps(id, ensure_ascii=False).encode()
    assert seen_id(b'{"jsonrpc":"2.0","id":' + written + b',"method":5}', b"") == id
