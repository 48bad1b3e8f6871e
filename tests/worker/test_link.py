"""The gateway's end of the wire against a worker that breaks it: one clean end, with the reason, for everybody."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from codespace import limits
from codespace.contract import ProcessState, Spawned
from codespace.errors import Refusal
from codespace.runner.worker.codec import codec
from codespace.runner.worker.crew import _pass_on
from codespace.runner.worker.frames import HEAD, pack
from codespace.runner.worker.line import Line
from codespace.runner.worker.link import Link, Lost
from codespace.runner.worker.mirror import Mirror
from codespace.runner.worker.verbs import TELLINGS, VERBS

STATE = ProcessState("proc-1", "running", 1.0, {"combined": 0, "stdout": 0, "stderr": 0})


class Pair:
    """A link, and the raw other end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.news: list[ProcessState] = []
        self.line = Line(ours)
        self.link = Link(self.line, self.news.append)
        self.theirs = trio.socket.from_stdlib_socket(theirs)
        self.heard = Line(theirs.dup())
        self.why = ""

    async def live(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        self.why = await self.link.run()

    async def ask(self) -> Any:
        return await self.link.call(VERBS["leftovers"], {"state_dir": None}, 1.0, lambda _: None)


@asynccontextmanager
async def open_pair() -> AsyncIterator[Pair]:
    pair = Pair()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(pair.live)
            yield pair
            nursery.cancel_scope.cancel()
    finally:
        pair.theirs.close()
        pair.heard.close()


async def lost(pair: Pair, *sent: bytes, then_close: bool = False) -> str:
    """Ask, answer with `sent`, and return the reason of the loss, which is the end's too."""

    async def answer() -> None:
        request = await pair.heard.receive()
        assert request == {"id": 1, "verb": "leftovers", "at": 1.0, "arguments": {"state_dir": None}}
        for part in sent:
            await pair.theirs.send(part)
        if then_close:
            pair.theirs.shutdown(socket.SHUT_RDWR)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(Lost) as caught:
                await pair.ask()
        assert caught.value.sent
        with pytest.raises(Lost) as after:
            await pair.ask()
        assert not after.value.sent
    return caught.value.reason


async def test_an_answer_and_a_refusal_come_to_who_asked() -> None:
    async with open_pair() as pair:
        answers: dict[int, Any] = {}

        async def ask(number: int) -> None:
            try:
                answers[number] = await pair.ask()
            except Refusal as refusal:
                answers[number] = refusal.code

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, number)
                await pair.heard.receive()
            for number, answer in ((3, {"ok": ["c"]}), (1, {"ok": ["a"]}), (2, {"refusal": {"code": "TIMEOUT"}})):
                pair.heard.send_nowait({"id": number, **answer})
        assert answers == {0: ("a",), 1: "TIMEOUT", 2: ("c",)}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"id": 2, "ok": []}, "no question"),
        ({"id": "1", "ok": []}, "no question"),
        ({"id": 1, "ok": [1]}, "belongs"),
        ({"id": 1, "ok": "x"}, "belongs"),
        ({"id": 1, "ok": [], "refusal": {}}, "no question"),
        ({"id": 1}, "no question"),
        ({"id": 1, "cancelled": True}, "no known kind"),
        ({"id": 1, "refusal": []}, "no known kind"),
        ({"id": 1, "refusal": {"code": 5}}, "refusal is none"),
        ({"id": 1, "refusal": {"surprise": 5}}, "refusal is none"),
        ({"id": 1, "refusal": {"details": "x"}}, "refusal is none"),
        ({"id": 1, "dance": 5}, "no known kind"),
        ({"news": {"process_id": "proc-1"}}, "fields"),
        ({"news": None}, "belongs"),
        ({"hello": 1}, "neither"),
        ({}, "neither"),
    ],
    ids=repr,
)
async def test_an_answer_that_is_not_as_it_must_be_ends_the_connection(message: dict[str, Any], reason: str) -> None:
    async with open_pair() as pair:
        assert reason in await lost(pair, pack(message))
        assert not pair.link.in_order


async def test_a_state_that_leaves_out_a_stream_ends_the_connection_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Mirror(60, lambda: 1.0)
    known.begin("proc-1", Spawned(started_at=1.0, sandbox="none", network="none", spool=None), 1)
    torn = codec(ProcessState).encode(STATE) | {"output_total": {"stdout": 1}}
    async with open_pair() as pair:
        monkeypatch.setattr(pair.link, "_news", known.update)
        assert "every stream" in await lost(pair, pack({"news": torn}))
    async with open_pair() as pair, trio.open_nursery() as nursery:

        async def end() -> None:
            with pytest.raises(Lost, match="every stream"):
                await pair.link.call(
                    VERBS["terminate"], {"process_id": "proc-1", "grace_seconds": 0.0}, 1.0, known.update
                )

        nursery.start_soon(end)
        await pair.heard.receive()
        pair.heard.send_nowait({"id": 1, "ok": torn})
    assert known.find("proc-1").state.output_total["combined"] == 0


@pytest.mark.parametrize("level", [b"[]", b"{}", b"null", b'"dance"', b"1e999"])
def test_a_line_of_the_log_with_any_level_is_only_a_line(level: bytes) -> None:
    with structlog.testing.capture_logs() as lines:
        _pass_on(7, b'{"level": %b, "event": "happened"}' % level)
    assert lines == [{"log_level": "warning", "event": "happened", "worker": 7}]


async def test_a_second_answer_to_one_question_ends_the_connection() -> None:
    async with open_pair() as pair:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.ask)
            await pair.heard.receive()
            pair.heard.send_nowait({"id": 1, "ok": []})
        pair.heard.send_nowait({"id": 1, "ok": []})
        with trio.fail_after(60):
            while not pair.why:
                await trio.lowlevel.checkpoint()
        assert "no question" in pair.why


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "the connection ended"),
        (b"\0\0", "cut off"),
        (HEAD.pack(10) + b'{"id"', "cut off"),
        (HEAD.pack(limits.WORKER_FRAME_BYTES + 1), "over the limit"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "over the limit"),
        (HEAD.pack(2) + b"[]", "no JSON object"),
        (HEAD.pack(4) + b"\xff\xff\xff\xff", "no JSON"),
        (pack({"bye": "no disk"}), "it gave up: no disk"),
    ],
    ids=repr,
)
async def test_a_stream_that_is_cut_oversized_or_garbage_ends_with_its_reason(sent: bytes, reason: str) -> None:
    async with open_pair() as pair:
        assert reason in await lost(pair, sent, then_close=True)


async def test_a_frame_that_comes_byte_by_byte_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_FRAME_SECONDS", 0.1)
    async with open_pair() as pair:
        assert "took longer" in await lost(pair, HEAD.pack(1000), b"{")


async def test_a_worker_that_takes_nothing_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_SEND_SECONDS", 0.1)
    async with open_pair() as pair:
        with trio.fail_after(60), pytest.raises(Lost) as caught:
            await pair.link.call(VERBS["leftovers"], {"state_dir": "x" * 5_000_000}, 1.0, lambda _: None)
        assert "nothing was taken" in caught.value.reason


async def test_a_worker_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_VERB_SECONDS", 0.05)
    monkeypatch.setattr(limits, "WORKER_LOOK_SECONDS", 0.05)
    async with open_pair() as pair:
        assert "hangs" in await lost(pair)
        assert not pair.link.in_order


async def test_a_request_over_the_limit_is_refused_and_the_connection_goes_on() -> None:
    async with open_pair() as pair:
        with pytest.raises(Refusal) as caught:
            await pair.link.call(
                VERBS["leftovers"], {"state_dir": "x" * limits.WORKER_FRAME_BYTES}, 1.0, lambda _: None
            )
        assert caught.value.code == "LIMIT_REACHED"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.ask)
            assert (await pair.heard.receive() or {})["id"] == 2
            pair.heard.send_nowait({"id": 2, "ok": []})


async def test_a_cancelled_caller_waits_for_what_the_worker_made_of_it() -> None:
    async with open_pair() as pair:
        seen: list[str] = []

        async def ask(scope: trio.CancelScope) -> None:
            with scope:
                seen.append(str(await pair.ask()))
            seen.append("cancelled" if scope.cancelled_caught else "done")

        for answer, end in (({"cancelled": True}, ["cancelled"]), ({"ok": ["a"]}, ["('a',)", "done"])):
            seen.clear()
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, scope)
                number = (await pair.heard.receive() or {})["id"]
                scope.cancel()
                assert await pair.heard.receive() == {"cancel": number}
                await trio.testing.wait_all_tasks_blocked()
                assert seen == []
                pair.heard.send_nowait({"id": number, **answer})
            assert seen == end


async def test_news_arrive_and_what_is_told_is_sent() -> None:
    async with open_pair() as pair:
        pair.link.tell(TELLINGS["forget"], {"process_id": "proc-1"})
        assert await pair.heard.receive() == {"tell": "forget", "arguments": {"process_id": "proc-1"}}
        pair.heard.send_nowait({"news": codec(ProcessState).encode(STATE)})
        await trio.testing.wait_all_tasks_blocked()
        assert pair.news == [STATE]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["id", "ok", "news", "refusal", "bye", "cancelled", "code"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    parts=st.lists(
        st.binary(max_size=30)
        | st.dictionaries(st.text(max_size=3), JUNK).map(pack)
        | JUNK.map(lambda junk: pack(junk) if isinstance(junk, dict) else b""),
        max_size=4,
    )
)
def test_whatever_a_worker_sends_the_caller_gets_an_answer_or_a_reason(parts: list[bytes]) -> None:
    async def play() -> None:
        async with open_pair() as pair, trio.open_nursery() as nursery:

            async def ask() -> None:
                with suppress(Lost, Refusal):
                    await pair.ask()

            nursery.start_soon(ask)
            await pair.heard.receive()
            for part in parts:
                with suppress(OSError):
                    await pair.theirs.send(part or b"\0")
            with suppress(OSError):
                pair.theirs.shutdown(socket.SHUT_RDWR)

    async def bounded() -> None:
        with trio.fail_after(60):
            await play()

    trio.run(bounded)
