"""The server name of a ClientHello, as real clients send it, cut into pieces, and as nobody should."""

from __future__ import annotations

import itertools
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespace import limits
from helper.proxy.hello import BadHello, Hello, read


def client_hello(name: str | None = "pypi.org") -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def records(message: bytes, *cuts: int) -> bytes:
    """The handshake message cut into records at `cuts`."""
    edges = [0, *sorted(cut % (len(message) + 1) for cut in cuts), len(message)]
    parts = [message[start:end] for start, end in itertools.pairwise(edges) if end > start]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def hello(*extensions: tuple[int, bytes]) -> bytes:
    """A ClientHello message made by hand."""
    body = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    fixed = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    whole = fixed + len(body).to_bytes(2, "big") + body
    return b"\x01" + len(whole).to_bytes(3, "big") + whole


def sni(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    listed = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    return 0, len(listed).to_bytes(2, "big") + listed


@pytest.mark.parametrize(("asked", "read_as"), [("pypi.org", "pypi.org"), ("PyPI.org", "pypi.org"), (None, None)])
def test_the_server_name_of_a_real_client_is_read(asked: str | None, read_as: str | None) -> None:
    assert read(client_hello(asked)) == Hello(read_as, encrypted=False)


def test_every_beginning_of_a_real_hello_asks_for_more() -> None:
    whole = client_hello()
    assert all(read(whole[:length]) is None for length in range(len(whole)))
    assert read(whole + b"more") == Hello("pypi.org", encrypted=False)


@given(st.lists(st.integers(0, 5000), max_size=8))
def test_a_hello_in_any_number_of_records_is_read_the_same(cuts: list[int]) -> None:
    message = client_hello()[5:]
    assert read(records(message, *cuts)) == Hello("pypi.org", encrypted=False)


def test_an_encrypted_hello_is_seen() -> None:
    assert read(records(hello(sni(b"pypi.org"), (0xFE0D, b"\0\0")))) == Hello("pypi.org", encrypted=True)
    assert read(records(hello(sni(b"pypi.org")))) == Hello("pypi.org", encrypted=False)
    assert read(records(hello())) == Hello(None, encrypted=False)


@pytest.mark.parametrize(
    "data",
    [
        records(hello(sni(b"pypi.org"), sni(b"evil"))),
        records(hello(sni(b"pypi.org", b"evil"))),
        records(hello(sni(b""))),
        records(hello(sni())),
        records(hello(sni(b"pypi.org", kind=1))),
        records(hello(sni("bücher".encode()))),
        records(hello((0, sni(b"pypi.org")[1] + b"x"))),
        records(hello((0, b"\x00\xff"))),
        records(b"\x01\x00\x00\x04abcd"),
        records(hello()[:-1] + b"\x05"),
        records(b"\x02" + hello()[1:]),
        b"\x16\x02\x01\x00\x05hello",
        b"\x16\x03\x01\x00\x00" * 4,
        b"\x16\x03\x01\x50\x00" + bytes(10),
        records(hello())[:20] + b"GET / HTTP",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x00\x01\x01" * 3 + b"\x17\x03\x01\x00\x01\x01",
    ],
)
def test_an_odd_hello_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        read(data + bytes(limits.PROXY_HELLO_BYTES))  # so that none asks for more


def test_a_hello_in_a_thousand_pieces_is_refused() -> None:
    message = client_hello()[5:]
    assert read(records(message, *range(1, 64))) == Hello("pypi.org", encrypted=False)
    with pytest.raises(BadHello, match="more than 64 records"):
        read(records(message, *range(1, 65)))


def test_a_hello_without_end_is_refused() -> None:
    endless = records(b"\x01\xff\xff\xff" + bytes(16_000)) + records(b"\0" * 16_000) * 3
    assert read(endless[:30_000]) is None
    with pytest.raises(BadHello):
        read(endless)


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for text in (data, records(data) if data else b"", records(hello((0, data)))):
        try:
            found = read(text)
        except BadHello:
            continue
        assert found is None or found.server_name is None or found.server_name.isascii()


@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_hello_with_one_changed_byte_never_breaks_the_reader(at: int, value: int) -> None:
    data = bytearray(client_hello())
    data[at % len(data)] = value
    try:
        read(bytes(data))
    except BadHello:
        return
