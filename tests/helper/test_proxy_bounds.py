"""What is slow, endless or many ends, and the rest goes on meanwhile."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from codespace import limits
from helper.proxy.bounds import Bounds

from .street import HANG, OK, PUBLIC, SECONDS, everything, replies, street, until
from .test_proxy_forward import get
from .test_proxy_hello import client_hello
from .test_proxy_tunnel import connect


def test_the_numbers_are_those_of_the_program() -> None:
    for field in dataclasses.fields(Bounds):
        assert field.default == getattr(limits, f"PROXY_{field.name.upper()}")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET http://listed.example/ HTTP/1.1\r\n",
        b"GET http://listed.example/ HTTP/1.1\r\nHost: a\r\nX: ",
        b"GET",
    ],
)
async def test_a_head_that_does_not_end_is_cut_while_others_are_served(sent: bytes, mock_clock: MockClock) -> None:
    async with street("listed.example", bounds=Bounds(head_seconds=0.2)) as town:
        await town.host("listed.example", replies(OK))
        async with await town.enter() as slow:
            await slow.send_all(sent)
            assert (await town.ask(get("http://listed.example/"))).startswith(b"HTTP/1.1 200 ")
            mock_clock.rate = 1.0  # until here no time went by
            with trio.fail_after(SECONDS):
                assert (await everything(slow)).startswith(b"HTTP/1.1 400 ")
        assert town.last().code == "bad-request"


async def test_a_head_over_the_limit_is_refused_and_one_below_it_is_taken() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK))
        room = limits.PROXY_HEAD_BYTES - len(get("http://listed.example/", "X: "))
        assert (await town.ask(get("http://listed.example/", f"X: {'a' * room}"))).startswith(b"HTTP/1.1 200 ")
        answer = await town.ask(get("http://listed.example/", f"X: {'a' * (room + 1)}"))
        assert answer.startswith(b"HTTP/1.1 400 CodeSpace: The head is over 65536 bytes.")
        assert (await town.ask(b"GET http://" + b"a" * 200_000)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"", client_hello("listed.example")[:100]], ids=["nothing", "a-part"])
async def test_a_tunnel_in_which_no_tls_begins_is_cut(sent: bytes, mock_clock: MockClock) -> None:
    async with street("listed.example", bounds=Bounds(hello_seconds=0.2)) as town:
        await town.host("listed.example", port=443)
        async with await town.enter() as stream:
            await stream.send_all(connect("listed.example:443"))
            await until(stream, b"\r\n\r\n")
            await stream.send_all(sent)
            mock_clock.rate = 1.0
            with trio.fail_after(SECONDS):
                await everything(stream)
        assert town.last().code == "not-tls"


async def test_a_look_up_that_hangs_is_given_up() -> None:
    async with street("*", bounds=Bounds(resolve_seconds=0.2)) as town:
        town.names["slow.example"] = [[HANG]]
        answer = await town.ask(get("http://slow.example/"))
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"did not answer in time" in answer


async def test_an_address_that_hangs_gives_way_to_the_next(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with street("*", bounds=Bounds(dial_seconds=0.3, dial_each_seconds=0.1)) as town:
        dial = town.connect

        async def time_goes_by_where_it_hangs(address: str, port: int) -> trio.SocketStream:
            mock_clock.rate = 0.0 if address == PUBLIC else 1.0
            return await dial(address, port)

        monkeypatch.setattr(town, "connect", time_goes_by_where_it_hangs)
        await town.host("two.example", replies(OK))
        town.houses["1.1.1.1", 80] = HANG
        town.names["two.example"] = [["1.1.1.1", PUBLIC]]
        assert (await town.ask(get("http://two.example/"))).startswith(b"HTTP/1.1 200 ")
        assert town.last().address == PUBLIC
        town.names["two.example"] = [["1.1.1.1"] * 10]
        assert b"cannot be reached: no answer in time" in await town.ask(get("http://two.example/"))
        assert len(town.dials) < 10


async def test_a_name_with_too_many_addresses_is_refused() -> None:
    async with street("*") as town:
        town.names["many.example"] = [[f"1.1.1.{last}" for last in range(limits.PROXY_ADDRESSES + 1)]]
        assert (await town.ask(get("http://many.example/"))).startswith(b"HTTP/1.1 502 ")
        assert town.dials == []


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with street("listed.example", bounds=Bounds(idle_seconds=0.3)) as town:
        house = await town.host("listed.example")
        assert (await town.ask(get("http://listed.example/"))).startswith(b"HTTP/1.1 502 ")
        assert house.connections == 1


@pytest.mark.parametrize("half", [False, True])
async def test_a_tunnel_on_which_nothing_moves_is_closed(half: bool, mock_clock: MockClock) -> None:
    bounds = Bounds(half_seconds=0.1) if half else Bounds(idle_seconds=0.3)
    async with street({"host": "idle", "port": 80, "address": "127.0.0.1"}, bounds=bounds) as town:

        async def silent(visitor: trio.SocketStream) -> None:
            while await visitor.receive_some():
                pass
            await trio.sleep_forever()

        await town.build("127.0.0.1", 80, silent)
        async with await town.enter() as stream:
            await stream.send_all(connect("idle:80"))
            await until(stream, b"\r\n\r\n")
            if half:
                await stream.send_eof()
            mock_clock.rate = 1.0
            with trio.fail_after(SECONDS):
                assert await everything(stream) == b""


async def test_a_client_that_takes_no_answer_is_cut() -> None:
    async def flood(visitor: trio.SocketStream) -> None:
        try:
            while True:
                await visitor.send_all(bytes(1_000_000))
        except trio.BrokenResourceError:
            cut.set()

    cut = trio.Event()
    bounds = Bounds(idle_seconds=0.3)
    async with street({"host": "flood", "port": 80, "address": "127.0.0.1"}, bounds=bounds) as town:
        await town.build("127.0.0.1", 80, flood)
        async with await town.enter() as stream:
            await stream.send_all(connect("flood:80"))
            with trio.fail_after(SECONDS):
                await cut.wait()


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """Both ends of a thousand connections are in this process here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors", "mock_clock")  # no head comes too late, however long this takes
async def test_a_thousand_connections_are_held_the_next_is_turned_away_and_the_first_still_works() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK))
        crowd = []
        try:
            for _ in range(limits.PROXY_CONNECTIONS):
                crowd.append(await town.enter())
            for stream in (crowd[0], crowd[-1]):  # the last one is let in, so all before it are
                await stream.send_all(b"GET http://listed.example/ HTTP/1.1\r\nHost: a\r\n")
            assert (await town.ask(get("http://listed.example/"))).startswith(b"HTTP/1.1 503 CodeSpace: ")
            await crowd[0].send_all(b"\r\n")
            assert (await everything(crowd[0])).startswith(b"HTTP/1.1 200 ")
            await crowd[-1].send_all(b"\r\n")
            assert (await everything(crowd[-1])).startswith(b"HTTP/1.1 200 ")
        finally:
            for stream in crowd:
                await trio.aclose_forcefully(stream)
