"""Plain HTTP through a door: what is decided, what reaches a server, and what comes back."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from .street import HANG, OK, PUBLIC, SECONDS, House, everything, replies, street, until
from .test_proxy_names import LITERALS, PRIVATE
from .test_proxy_request import TOKENS


def get(url: str, *fields: str) -> bytes:
    return "\r\n".join((f"GET {url} HTTP/1.1", "Host: whatever", *fields, "", "")).encode()


async def test_a_listed_name_is_reached_and_the_answer_comes_back() -> None:
    async with street("listed.example") as town:
        house = await town.host("listed.example", replies(OK))
        answer = await town.ask(get("http://listed.example/a"))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhi")
        assert (house.connections, town.lookups, town.dials) == (1, {"listed.example": 1}, [(PUBLIC, 80)])
        told = town.last()
        assert (told.host, told.port, told.allowed, told.code) == ("listed.example", 80, True, "listed")
        assert (told.rule, told.address) == ("listed.example", PUBLIC)


async def test_an_unlisted_name_is_refused_without_a_look_up_and_the_answer_says_what_to_do() -> None:
    async with street("listed.example") as town:
        house = await town.host("evil.example", replies(OK))
        answer = await town.ask(get("http://evil.example/a"))
        assert answer.startswith(b"HTTP/1.1 403 CodeSpace: evil.example:80 is not in allowed_domains.\r\n")
        assert b'the operator would add "evil.example" to allowed_domains' in answer
        assert (house.connections, town.lookups, town.dials) == (0, {}, [])
        told = town.last()
        assert (told.allowed, told.code, told.rule, told.address) == (False, "not-listed", None, None)


@pytest.mark.parametrize("literal", LITERALS)
async def test_an_address_is_refused_in_every_spelling_though_everything_is_listed(literal: str) -> None:
    async with street("*") as town:
        for sent in (get(f"http://{literal}/"), f"CONNECT {literal}:443 HTTP/1.0\r\n\r\n".encode()):
            assert (await town.ask(sent)).startswith(b"HTTP/1.1 403 ")
            assert town.last().code == "address-literal"
        assert (town.lookups, town.dials) == ({}, [])


@pytest.mark.parametrize("address", [address for address in PRIVATE if address])
async def test_a_name_that_leads_inside_is_refused_and_nothing_is_dialled(address: str) -> None:
    async with street("*") as town:
        house = await town.host("inside.example", replies(OK), address=address)
        for sent in (get("http://inside.example/"), b"CONNECT inside.example:80 HTTP/1.0\r\n\r\n"):
            answer = await town.ask(sent)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"the operator can pin it" in answer
            assert address.encode() not in answer
            assert town.last().code == "not-global"
        assert (house.connections, town.dials) == (0, [])


async def test_one_address_inside_among_public_ones_refuses_the_name() -> None:
    async with street("*") as town:
        house = await town.host("mixed.example", replies(OK))
        town.names["mixed.example"] = [[PUBLIC, "10.0.0.1"]]
        assert (await town.ask(get("http://mixed.example/"))).startswith(b"HTTP/1.1 403 ")
        town.names["mixed.example"] = [[PUBLIC]]
        assert (await town.ask(get("http://mixed.example/"))).startswith(b"HTTP/1.1 200 ")
        assert house.connections == 1


async def test_a_public_address_of_this_machine_is_inside_too() -> None:
    async with street("*") as town:
        house = await town.host("self.example", replies(OK))
        town.mine.add(PUBLIC)
        assert (await town.ask(get("http://self.example/"))).startswith(b"HTTP/1.1 403 ")
        assert (town.last().code, house.connections) == ("not-global", 0)


async def test_a_name_that_changes_its_mind_is_looked_up_once_and_dialled_as_checked() -> None:
    async with street("*") as town:
        house = await town.host("flip.example", replies(OK))
        inside = await town.build("127.0.0.1", 80)
        town.names["flip.example"] = [[PUBLIC], ["127.0.0.1"]]
        assert (await town.ask(get("http://flip.example/"))).startswith(b"HTTP/1.1 200 ")
        assert (town.lookups["flip.example"], town.dials) == (1, [(PUBLIC, 80)])
        assert (await town.ask(get("http://flip.example/"))).startswith(b"HTTP/1.1 403 ")
        assert (house.connections, inside.connections) == (1, 0)


async def test_a_pin_is_dialled_without_a_look_up() -> None:
    async with street({"host": "db", "port": 5432, "address": "127.0.0.1"}) as town:
        house = await town.build("127.0.0.1", 5432, replies(OK))
        assert (await town.ask(get("http://db:5432/"))).startswith(b"HTTP/1.1 200 ")
        assert (await town.ask(get("http://db/"))).startswith(b"HTTP/1.1 403 ")
        assert (house.connections, town.lookups) == (1, {})


async def test_a_redirect_is_just_an_answer() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
    async with street("listed.example") as town:
        evil = await town.host("evil.example", replies(OK), address="1.1.1.1")
        await town.host("listed.example", replies(redirect))
        answer = await town.ask(get("http://listed.example/"))
        assert b"Location: http://evil.example/\r\n" in answer
        assert (await town.ask(get("http://evil.example/"))).startswith(b"HTTP/1.1 403 ")
        assert evil.connections == 0


@pytest.mark.parametrize(
    "url",
    ["http://LISTED.example/", "http://listed.example./", "http://listed.example:80/", "HTTP://Listed.Example.:80/"],
)
async def test_other_spellings_of_a_listed_name_reach_the_same_server_under_one_name(url: str) -> None:
    heard = bytearray()
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK, heard=heard))
        assert (await town.ask(get(url, "X-Other: 1"))).startswith(b"HTTP/1.1 200 ")
        assert heard.count(b"Host: listed.example\r\n") == 1
        assert b"whatever" not in heard


@pytest.mark.parametrize(
    "url", ["http://listed.example:81/", "http://a.listed.example/", "http://listed.example.evil/"]
)
async def test_a_neighbour_of_a_listed_name_is_not_listed(url: str) -> None:
    async with street("listed.example") as town:
        assert (await town.ask(get(url))).startswith(b"HTTP/1.1 403 ")
        assert town.lookups == {}


async def test_the_host_field_sends_nobody_elsewhere() -> None:
    heard = bytearray()
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK, heard=heard))
        evil = await town.host("evil.example", replies(OK), address="1.1.1.1")
        await town.ask(b"GET http://listed.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b"evil" not in heard
        answer = await town.ask(b"GET http://evil.example/ HTTP/1.1\r\nHost: listed.example\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert evil.connections == 0


async def test_a_second_request_on_a_connection_goes_nowhere() -> None:
    heard = bytearray()
    async with street("listed.example") as town:
        house = await town.host("listed.example", replies(OK, heard=heard))
        answer = await town.ask(get("http://listed.example/1") + get("http://listed.example/2"))
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close\r\n" in answer
        assert house.connections == 1
        assert b"/2" not in heard


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 11\r\n\r\nhello world",
        "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n",
    ],
)
async def test_a_body_arrives_whole_and_framed_anew(framing: str) -> None:
    async with street("listed.example") as town:
        house: House

        async def talk(visitor: trio.SocketStream) -> None:
            whole = b"hello world" if "Length" in framing else b"0\r\n\r\n"
            house.received += await until(visitor, whole)
            await visitor.send_all(OK)

        house = await town.host("listed.example", talk)
        sent = f"POST http://listed.example/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}"
        assert b"HTTP/1.1 200 OK" in await town.ask(sent.encode())
        assert b"Expect" not in house.received
        assert b"x=y" not in house.received
        assert b"X: y" not in house.received
        body = house.received.partition(b"\r\n\r\n")[2]
        assert body in (b"hello world", b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")


WAITING = b"POST http://listed.example/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"


async def test_a_client_that_waits_to_be_told_to_go_on_is_told() -> None:
    async def read_it_all(visitor: trio.SocketStream) -> None:
        await until(visitor, b"hi")
        await visitor.send_all(OK)

    async with street("listed.example") as town:
        await town.host("listed.example", read_it_all)
        async with await town.enter() as stream:
            await stream.send_all(WAITING)
            assert (await until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            await stream.send_all(b"hi")
            assert b"200 OK" in await everything(stream)


async def test_an_answer_that_comes_while_a_client_waits_to_go_on_arrives_whole() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK))
        for _ in range(20):
            async with await town.enter() as stream:
                await stream.send_all(WAITING)
                with trio.fail_after(SECONDS):
                    assert (await everything(stream)).endswith(b"\r\n\r\nhi")


async def test_a_broken_body_ends_the_request() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example")
        sent = b"POST http://listed.example/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"
        assert (await town.ask(sent)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", b"502"),
        (b"220 smtp ready\r\n", b"502"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"502"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000, b"502"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK, b"200"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"200"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"204"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"304"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"200"),
    ],
)
async def test_whatever_a_server_says_becomes_one_clean_answer(said: bytes, status: bytes) -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(said))
        answer = await town.ask(get("http://listed.example/"))
        assert answer.startswith(b"HTTP/1.1 " + status)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert not (b"Content-Length: 7" in head and b"chunked" in head)
        if b"until the end" in said:
            assert b"until the end" in body
        if b"early" in said.lower():
            assert b"103" not in head


async def test_an_answer_that_breaks_off_is_seen_to_break_off() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"))
        answer = await town.ask(get("http://listed.example/"))
        assert b"Content-Length: 100" in answer
        assert answer.endswith(b"half")


async def test_an_early_answer_to_a_long_body_arrives() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"))
        sent = b"POST http://listed.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + bytes(200_000)
        assert (await town.ask(sent)).startswith(b"HTTP/1.1 413 ")


async def test_a_head_answer_has_a_length_and_no_body() -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"))
        answer = await town.ask(b"HEAD http://listed.example/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"Content-Length: 5" in answer
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(("answers", "code"), [(None, "unresolved"), ([[]], "unresolved"), ([[PUBLIC]], "unreachable")])
async def test_a_listed_name_that_leads_nowhere_is_told_as_that(answers: list[list[str]] | None, code: str) -> None:
    async with street("listed.example") as town:
        if answers is not None:
            town.names["listed.example"] = answers
        assert (await town.ask(get("http://listed.example/"))).startswith(b"HTTP/1.1 502 ")
        assert (town.last().code, town.last().allowed, town.last().rule) == (code, True, "listed.example")


async def test_a_hanging_look_up_does_not_hold_another_request() -> None:
    async with street("*") as town:
        await town.host("listed.example", replies(OK))
        town.names["slow.example"] = [[HANG]]
        async with await town.enter() as stuck:
            await stuck.send_all(get("http://slow.example/"))
            assert (await town.ask(get("http://listed.example/"))).startswith(b"HTTP/1.1 200 ")
            assert [told.host for told in town.decisions] == ["listed.example"]


async def test_no_byte_goes_out_before_the_decision_is_taken_down() -> None:
    async with street("listed.example") as town:
        house = await town.host("listed.example")
        town.recorded = trio.Event()
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(get("http://listed.example/"))
                await town.decided.wait()
                await house.visited.wait()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert house.received == b""
                town.recorded.set()
                await house.heard.wait()


@settings(max_examples=60)
@given(st.lists(TOKENS, max_size=20).map(lambda parts: "".join(parts).encode("latin-1")))
async def test_no_words_of_a_client_lead_anywhere_but_to_the_list(sent: bytes) -> None:
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK))
        for name in ("pypi.org", "1", "xn--x.example"):
            town.names[name] = [[PUBLIC]]
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(sent)
                await stream.send_eof()
                await everything(stream)
        assert set(town.lookups) <= {"listed.example"}
        assert set(town.dials) <= {(PUBLIC, 80), (PUBLIC, 443)}
        assert all(told.host == "listed.example" for told in town.decisions if told.allowed)
