"""Heads that are taken, heads that are not, and what goes on to the server."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.proxy.decision import Refused
from helper.proxy.names import Target
from helper.proxy.request import Request, read

INSIDE = Target("listed.example", 80)


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join((line, *fields, "", "")).encode("latin-1")


def taken(line: str, *fields: str, within: Target | None = None) -> Request:
    return read(head(line, *fields), b"", within)


def goes_on(request: Request) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        found.setdefault(name.lower(), []).append(value)
    return found


@pytest.mark.parametrize(
    ("line", "target", "path"),
    [
        ("GET http://pypi.org/simple/ HTTP/1.1", Target("pypi.org", 80), b"/simple/"),
        ("GET HTTP://PyPI.org.:8080/a?b=http://evil/ HTTP/1.1", Target("pypi.org", 8080), b"/a?b=http://evil/"),
        ("GET http://pypi.org HTTP/1.1", Target("pypi.org", 80), b"/"),
        ("GET http://pypi.org?x HTTP/1.1", Target("pypi.org", 80), b"/?x"),
        ("GET http://pypi.org//evil/@x HTTP/1.1", Target("pypi.org", 80), b"//evil/@x"),
        ("PROPFIND http://pypi.org/ HTTP/1.1", Target("pypi.org", 80), b"/"),
        ("CONNECT pypi.org:443 HTTP/1.1", Target("pypi.org", 443), b""),
    ],
)
def test_the_request_line_alone_says_where_it_goes(line: str, target: Target, path: bytes) -> None:
    request = taken(line, "Host: evil.example")
    assert (request.target, request.path) == (target, path)
    assert goes_on(request)[b"host"] == [str(target).removesuffix(":80").encode()]


def test_what_was_meant_for_the_proxy_does_not_go_on() -> None:
    request = taken(
        "POST http://pypi.org/ HTTP/1.1",
        "Host: pypi.org",
        "Connection: keep-alive, X-Secret",
        "X-Secret: 1",
        "Proxy-Authorization: Basic eA==",
        "Proxy-Connection: keep-alive",
        "TE: trailers",
        "Trailer: X",
        "Upgrade: h2c",
        "HTTP2-Settings: x",
        "Keep-Alive: 5",
        "Expect: 100-continue",
        "Content-Length: 3",
        "X-Mine: kept",
        "Cookie: a=b",
    )
    assert goes_on(request) == {
        b"host": [b"pypi.org"],
        b"connection": [b"close"],
        b"content-length": [b"3"],
        b"x-mine": [b"kept"],
        b"cookie": [b"a=b"],
    }


def test_framing_cannot_be_named_away() -> None:
    request = taken(
        "POST http://pypi.org/ HTTP/1.1", "Host: a", "Connection: content-length, host", "Content-Length: 3"
    )
    assert goes_on(request) == {b"host": [b"pypi.org"], b"connection": [b"close"], b"content-length": [b"3"]}
    request = taken("POST http://pypi.org/ HTTP/1.1", "Host: a", "Transfer-Encoding: chunked")
    assert goes_on(request)[b"transfer-encoding"] == [b"chunked"]


GET = "GET http://pypi.org/ HTTP/1.1"


@pytest.mark.parametrize(
    "data",
    [
        head("GET / HTTP/1.1", "Host: pypi.org"),
        head("OPTIONS * HTTP/1.1", "Host: pypi.org"),
        head("GET https://pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET ftp://pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET //pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET pypi.org HTTP/1.1", "Host: pypi.org"),
        head("GET http:///x HTTP/1.1", "Host: pypi.org"),
        head("GET http://a@pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi.org:80@evil/ HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi.org\\@evil/ HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi.org/#x HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi%2eorg/ HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi.org/ HTTP/1.1"),
        head("GET http://pypi.org/ HTTP/2.0", "Host: pypi.org"),
        head("GET http://pypi.org/ HTTP/0.9", "Host: pypi.org"),
        head("GET  http://pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET\thttp://pypi.org/ HTTP/1.1", "Host: pypi.org"),
        head("GET http://pypi.org/ x HTTP/1.1", "Host: pypi.org"),
        head(GET, "Host: pypi.org", "Host: evil"),
        head(GET, "Host: pypi.org", "host: pypi.org"),
        head(GET, "Host: pypi.org", "Content-Length: 1", "Content-Length: 1"),
        head(GET, "Host: pypi.org", "Content-Length: 1, 1", "Content-Length: 1"),
        head(GET, "Host: pypi.org", "Content-Length: 1", "Transfer-Encoding: chunked"),
        head(GET, "Host: pypi.org", "Content-Length: -1"),
        head(GET, "Host: pypi.org", "Content-Length: 0x1"),
        head(GET, "Host: pypi.org", "Transfer-Encoding: gzip, chunked"),
        head(GET, "Host: pypi.org", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head(GET, "Host: pypi.org", "Transfer-Encoding : chunked"),
        head(GET, "Host: pypi.org", "X: a", " folded"),
        head(GET, "Host: pypi.org", "X: a", "\tfolded"),
        head(GET, " Host: pypi.org"),
        head(GET, "Host: pypi.org", "X: a\0b"),
        head(GET, "Host: pypi.org", "X: a\nY: b"),
        head(GET, "Host: pypi.org", "X: a\rY: b"),
        head(GET, "Host: pypi.org", "no colon"),
        head(GET, "Host: pypi.org", ": no name"),
        head(GET, "Host: pypi.org", "X y: z"),
        head("CONNECT pypi.org HTTP/1.1", "Host: pypi.org"),
        head("CONNECT http://pypi.org:443 HTTP/1.1", "Host: pypi.org"),
        head("CONNECT /pypi.org:443 HTTP/1.1", "Host: pypi.org"),
        head("CONNECT a@pypi.org:443 HTTP/1.1", "Host: pypi.org"),
        head("CONNECT pypi.org:443 HTTP/1.1", "Host: pypi.org", "Content-Length: 3"),
        head("CONNECT pypi.org:443 HTTP/1.1", "Host: pypi.org", "Transfer-Encoding: chunked"),
        head("connect pypi.org:443 HTTP/1.1", "Host: pypi.org"),
        b"\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(data, b"")
    assert refused.value.status == 400


def test_inside_a_tunnel_only_the_tunnel_is_a_target() -> None:
    assert taken("GET /a HTTP/1.1", "Host: evil", within=INSIDE).target == INSIDE
    assert taken("GET http://listed.example/a HTTP/1.1", "Host: evil", within=INSIDE).path == b"/a"
    for line in ("GET http://evil/a HTTP/1.1", "CONNECT listed.example:80 HTTP/1.1", "OPTIONS * HTTP/1.1"):
        with pytest.raises(Refused):
            taken(line, "Host: listed.example", within=INSIDE)


TOKENS = st.sampled_from(
    [
        *("GET", "CONNECT", " ", "http://", "pypi.org", ":443", "/", "@", "\\", " HTTP/1.1", "\r\n", "\n", "\r", "\0"),
        *("Host: ", "Content-Length: ", "Transfer-Encoding: chunked", "1", "Connection: ", ",", "\t", ":", "#", "é"),
        *("http://listed.example/", "CONNECT listed.example:443 HTTP/1.1\r\nHost: a\r\n\r\n"),
        *("%00", "[::1]", "GET http://pypi.org/ HTTP/1.1\r\nHost: a\r\n"),
    ]
)


@given(st.lists(TOKENS, max_size=30).map(lambda parts: "".join(parts).encode("latin-1")))
def test_whatever_is_taken_goes_on_as_one_request_of_one_meaning(data: bytes) -> None:
    try:
        request = read(data + b"\r\n\r\n", b"")
    except Refused as refused:
        refused.answer().decode()
        return
    if request.opens_tunnel:
        return
    written = h11.Connection(h11.CLIENT).send(
        h11.Request(method=request.method, target=request.path, headers=request.headers)
    )
    server = h11.Connection(h11.SERVER)
    server.receive_data(written or b"")
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert [value.decode() for name, value in event.headers if name == b"host"] == [
        str(request.target).removesuffix(":80")
    ]


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reading_of_a_head(data: bytes) -> None:
    for text in (data, b"GET http://pypi.org/ HTTP/1.1\r\n" + data):
        try:
            read(text + b"\r\n\r\n", b"")
        except Refused as refused:
            refused.answer().decode()
