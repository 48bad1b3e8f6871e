"""Frames: whatever arrives in whatever pieces is exactly what was sent, or the connection's end with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace.runner.worker.frames import HEAD, BadFrame, TooLarge, Unpacker, pack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
MESSAGES = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "aside"), JSON, max_size=4)
LONG = st.sampled_from(["a line\n", '"\\', "\udcff", "\u00e9\U0001f600\0"]).map(lambda text: text * 700)
WITH_TEXTS = st.builds(
    lambda holder, texts: {"id": 1, holder: texts},
    st.sampled_from(["ok", "arguments", "refusal"]),
    st.dictionaries(st.text(max_size=5), LONG | JSON, max_size=4),
)


def taken(unpacker: Unpacker) -> list[dict[str, Any]]:
    found = []
    while (message := unpacker.take()) is not None:
        found.append(message)
    return found


@given(st.lists(MESSAGES | WITH_TEXTS, max_size=5), st.lists(st.integers(1, 5000), min_size=1))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[dict[str, Any]], cuts: list[int]
) -> None:
    stream = b"".join(map(pack, messages))
    unpacker, found = Unpacker(), []
    at = 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        unpacker.feed(stream[at : at + size])
        found += taken(unpacker)
        at += size
    assert found == messages
    assert not unpacker.is_partial


@given(st.binary(max_size=300), st.integers(0, 64))
def test_garbage_is_a_message_or_refused_and_nothing_else(garbage: bytes, limit: int) -> None:
    unpacker = Unpacker(limit)
    unpacker.feed(garbage)
    try:
        for message in taken(unpacker):
            assert isinstance(message, dict)
    except BadFrame:
        return


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"\xff\xfe{\0}\0",
        b"[" * 20_000,
        b"{}x",
    ],
    ids=repr,
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    unpacker = Unpacker()
    unpacker.feed(HEAD.pack(len(body)) + body)
    with pytest.raises(BadFrame):
        unpacker.take()


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    unpacker = Unpacker(100)
    unpacker.feed(HEAD.pack(101))
    with pytest.raises(BadFrame, match="over the limit"):
        unpacker.take()


def test_a_message_of_ours_that_is_too_large_is_refused_before_it_is_sent() -> None:
    assert len(pack({"a": "x" * 8}, 100)) < 100
    with pytest.raises(TooLarge):
        pack({"a": "x" * 100}, 100)


def test_a_name_that_is_no_unicode_crosses_as_it_is() -> None:
    unpacker = Unpacker()
    unpacker.feed(pack({"path": "a\udcff"}))
    assert unpacker.take() == {"path": "a\udcff"}
    assert json.loads(pack({"path": "a\udcff"})[HEAD.size :]) == {"path": "a\udcff"}


def test_a_long_text_crosses_beside_its_message_and_unescaped() -> None:
    text = "a line\n" * 10_000
    frame = pack({"id": 1, "ok": {"text": text, "cursor": 5}})
    (length,) = HEAD.unpack_from(frame)
    body = json.loads(frame[HEAD.size : HEAD.size + length])
    assert body == {"id": 1, "ok": {"text": "", "cursor": 5}, "aside": {"text": len(text)}}
    assert frame[HEAD.size + length :] == text.encode()


def test_a_text_that_has_not_arrived_leaves_the_frame_partial() -> None:
    unpacker = Unpacker()
    unpacker.feed(pack({"ok": {"text": "x" * 5000}})[:-1])
    assert unpacker.take() is None
    assert unpacker.is_partial
    unpacker.feed(b"x")
    assert unpacker.take() == {"ok": {"text": "x" * 5000}}
    assert not unpacker.is_partial


@pytest.mark.parametrize(
    ("message", "behind", "reason"),
    [
        ({"ok": {"text": ""}, "aside": {"text": 101}}, b"", "over the limit"),
        ({"ok": {"text": ""}, "aside": {"text": 2**70}}, b"", "over the limit"),
        ({"ok": {"text": ""}, "aside": {"text": -1}}, b"", "no text"),
        ({"ok": {"text": ""}, "aside": {"text": True}}, b"", "no text"),
        ({"ok": {"text": ""}, "aside": {"text": "2"}}, b"", "no text"),
        ({"ok": {"text": "x"}, "aside": {"text": 1}}, b"y", "no text"),
        ({"ok": {}, "aside": {"text": 1}}, b"y", "no text"),
        ({"ok": [], "aside": {"text": 1}}, b"y", "belongs to nothing"),
        ({"aside": {}}, b"", "belongs to nothing"),
        ({"ok": {}, "aside": []}, b"", "belongs to nothing"),
        ({"ok": {"text": ""}, "aside": {"text": 1}}, b"\xff", "is none"),
    ],
    ids=repr,
)
def test_what_is_set_aside_is_a_text_of_its_message_or_refused(
    message: dict[str, Any], behind: bytes, reason: str
) -> None:
    body = json.dumps(message).encode()
    unpacker = Unpacker(len(body) + 100)
    unpacker.feed(HEAD.pack(len(body)) + body + behind)
    with pytest.raises(BadFrame, match=reason):
        unpacker.take()


def test_long_texts_count_for_the_limit_of_what_is_sent() -> None:
    with pytest.raises(TooLarge):
        pack({"ok": {"text": "x" * 5000}}, 5000)
    assert len(pack({"ok": {"text": "x" * 5000}}, 5100)) <= 5100 + HEAD.size
