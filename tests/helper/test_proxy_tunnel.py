"""CONNECT: what may go through a tunnel, with a real TLS client and a real TLS server at its ends."""

from __future__ import annotations

import json
import ssl

import pytest
import trio
import trustme

from helper.proxy.hello import UNRECOGNIZED_NAME

from .street import HANG, OK, PUBLIC, SECONDS, Street, Talk, everything, replies, street, until
from .test_proxy_hello import client_hello, hello, records, sni

AUTHORITY = trustme.CA()
OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


def secure(name: str, answer: bytes = OK) -> Talk:
    """A server that speaks TLS as `name`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(name).configure_cert(context)

    async def talk(visitor: trio.SocketStream) -> None:
        tls = trio.SSLStream(visitor, context, server_side=True, https_compatible=True)
        await replies(answer)(tls)  # type: ignore[arg-type]  # it only sends and receives

    return talk


async def through(town: Street, target: str, name: str) -> bytes:
    """Ask `name` for a page by TLS through a tunnel to `target`; raises ssl.SSLError where TLS is refused."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    with trio.fail_after(SECONDS):
        async with await town.enter() as stream:
            await stream.send_all(connect(target))
            assert await until(stream, b"\r\n\r\n") == OPEN
            tls = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
            try:
                await tls.send_all(b"GET / HTTP/1.1\r\n\r\n")
                return await everything(tls)
            except trio.BrokenResourceError as error:
                raise error.__cause__ or error from None


async def refused_inside(town: Street, sent: bytes, target: str = "listed.example:443") -> bytes:
    """Open a tunnel, send `sent` and return what comes back."""
    with trio.fail_after(SECONDS):
        async with await town.enter() as stream:
            await stream.send_all(connect(target))
            assert await until(stream, b"\r\n\r\n") == OPEN
            await stream.send_all(sent)
            return await everything(stream)


async def test_tls_for_the_listed_name_goes_through() -> None:
    async with street("listed.example") as town:
        house = await town.host("listed.example", secure("listed.example"), port=443)
        assert (await through(town, "listed.example:443", "listed.example")).endswith(b"hi")
        assert (house.connections, town.lookups, town.dials) == (1, {"listed.example": 1}, [(PUBLIC, 443)])
        assert [(told.code, told.allowed, told.address) for told in town.decisions] == [("listed", True, PUBLIC)]


async def test_an_unlisted_name_gets_no_tunnel() -> None:
    async with street("listed.example") as town:
        house = await town.host("evil.example", secure("evil.example"), port=443)
        answer = await town.ask(connect("evil.example:443"))
        assert answer.startswith(b"HTTP/1.1 403 CodeSpace: evil.example:443 is not in allowed_domains.\r\n")
        assert (house.connections, town.lookups) == (0, {})


async def test_another_server_name_inside_a_tunnel_is_refused_and_no_byte_arrives() -> None:
    async with street("listed.example") as town:
        house = await town.host("listed.example", port=443)
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await through(town, "listed.example:443", "evil.example")
        assert house.received == b""
        told = town.last()
        assert (told.host, told.allowed, told.code) == ("listed.example", False, "other-server-name")
        assert "evil.example" in told.reason


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (client_hello(None), "no-server-name"),
        (records(hello(sni(b"listed.example"), (0xFE0D, b"\0"))), "encrypted-hello"),
        (records(hello(sni(b"listed.example", b"evil"))), "bad-hello"),
        (records(hello(sni(b"listed.example.evil"))), "other-server-name"),
        (records(hello(sni(b"a.listed.example"))), "other-server-name"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "bad-hello"),
        (records(hello(sni(b"evil.example")), 7, 60, 61), "other-server-name"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not-tls"),
        (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", "not-tls"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not-tls"),
    ],
)
async def test_what_cannot_be_judged_does_not_go_through(sent: bytes, code: str) -> None:
    async with street("*") as town:
        house = await town.host("listed.example", port=443)
        assert UNRECOGNIZED_NAME in await refused_inside(town, sent)
        assert (town.last().code, town.last().allowed, house.received) == (code, False, b"")


async def test_no_name_that_a_client_says_makes_more_than_a_short_line_of_news() -> None:
    async with street("*") as town:
        await town.host("listed.example", port=443)
        assert UNRECOGNIZED_NAME in await refused_inside(town, records(hello(sni(b"\x01" * 30_000)), 15_000))
        assert len(await town.ask(connect(f"[{'1' * 30_000}]:443"))) < 6_000
        assert [told.code for told in town.decisions] == ["other-server-name", "address-literal"]
        assert all(len(json.dumps(told.event())) < 6_000 for told in town.decisions)


async def test_a_hello_in_pieces_goes_through_as_it_came() -> None:
    whole = records(client_hello("listed.example")[5:], 1, 3, 100, 200)
    async with street("listed.example") as town:
        house = await town.host("listed.example", port=443)
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(connect("listed.example:443"))
                await until(stream, b"\r\n\r\n")
                for at in range(0, len(whole), 50):
                    await stream.send_all(whole[at : at + 50])
                await stream.send_eof()
                assert await everything(stream) == b""
        assert house.received == whole


async def test_a_hello_that_comes_with_the_connect_is_judged_too() -> None:
    async with street("listed.example") as town:
        house = await town.host("listed.example", port=443)
        answer = await town.ask(connect("listed.example:443") + client_hello("evil.example"))
        assert answer == OPEN + UNRECOGNIZED_NAME
        assert (town.last().code, house.received) == ("other-server-name", b"")


async def test_plain_http_in_a_tunnel_is_treated_as_outside() -> None:
    heard = bytearray()
    async with street("listed.example") as town:
        await town.host("listed.example", replies(OK, heard=heard))
        answer = await refused_inside(town, b"GET /a HTTP/1.1\r\nHost: evil.example\r\n\r\n", "listed.example:80")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert heard.startswith(b"GET /a HTTP/1.1\r\nHost: listed.example\r\n")
        assert b"evil" not in heard
        answer = await refused_inside(town, b"GET http://evil/a HTTP/1.1\r\nHost: a\r\n\r\n", "listed.example:80")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert len(town.decisions) == 2


async def test_a_pinned_tunnel_carries_anything_both_ways() -> None:
    async def banner(visitor: trio.SocketStream) -> None:
        await visitor.send_all(b"220 hello\r\n")
        assert await until(visitor, b"quit\r\n") == b"\x00\x01quit\r\n"
        await visitor.send_all(b"bye\r\n")

    async with street({"host": "mail", "port": 25, "address": "127.0.0.1"}) as town:
        await town.build("127.0.0.1", 25, banner)
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(connect("mail:25"))
                assert await until(stream, b"hello\r\n") == OPEN + b"220 hello\r\n"
                await stream.send_all(b"\x00\x01quit\r\n")
                assert await until(stream, b"bye\r\n") == b"bye\r\n"


async def test_one_side_may_end_before_the_other() -> None:
    async def count(visitor: trio.SocketStream) -> None:
        total = 0
        while block := await visitor.receive_some():
            total += len(block)
        await visitor.send_all(b"%d" % total)

    async with street({"host": "sink", "port": 80, "address": "127.0.0.1"}) as town:
        await town.build("127.0.0.1", 80, count)
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(connect("sink:80"))
                await until(stream, b"\r\n\r\n")
                await stream.send_all(bytes(3_000_000))
                await stream.send_eof()
                assert await everything(stream) == b"3000000"


async def test_a_server_that_refuses_is_told_before_a_tunnel_is_open() -> None:
    async with street("listed.example") as town:
        town.names["listed.example"] = [[PUBLIC]]
        assert (await town.ask(connect("listed.example:443"))).startswith(b"HTTP/1.1 502 CodeSpace: ")
        assert (town.last().code, town.last().allowed) == ("unreachable", True)


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"])
async def test_a_tunnel_that_was_opened_and_left_unused_is_told_too(first: bytes) -> None:
    """Its name was looked up and its server was dialled: both carry what a name says."""
    async with street("*.listed.example") as town:
        await town.host("secret.listed.example", port=443)
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(connect("secret.listed.example:443"))
                assert await until(stream, b"\r\n\r\n") == OPEN
                await stream.send_all(first)
            await town.decided.wait()
        assert town.dials == [(PUBLIC, 443)]
        told = [(told.host, told.code, told.allowed, told.address) for told in town.decisions]
        assert told == [("secret.listed.example", "listed", True, PUBLIC)]


async def test_a_name_that_is_being_looked_up_when_the_run_ends_is_told_too() -> None:
    async with street("*.listed.example") as town:
        town.names["secret.listed.example"] = [[HANG]]
        with trio.fail_after(SECONDS):
            async with await town.enter() as stream:
                await stream.send_all(connect("secret.listed.example:443"))
                await town.looking.wait()
                town.end()
                await town.decided.wait()
    told = [(told.host, told.code, told.allowed, told.address) for told in town.decisions]
    assert told == [("secret.listed.example", "listed", True, None)]
