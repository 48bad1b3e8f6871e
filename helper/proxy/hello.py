"""The first message of TLS, read far enough to know which server it asks for.

A CONNECT says one name and the ClientHello inside may say another; a server that hosts both would
answer for the one that is not on the list. Only what is needed is read (RFC 8446 sections 4.1.2 and
5.1, RFC 6066 section 3), and a message that is odd in any way is refused, not guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codespace import limits

HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_RECORD_BYTES: Final = 16_384
_RECORDS: Final = 64
# Clients that cut it on purpose use two to ten; a thousand of one byte would only be work.
_SERVER_NAME: Final = 0
_ENCRYPTED_HELLO: Final = 0xFE0D
UNRECOGNIZED_NAME: Final = b"\x15\x03\x01\x00\x02\x02\x70"
"""A fatal alert (RFC 6066): what a client shows as `unrecognized name`."""


class BadHello(ValueError):
    """The bytes are no ClientHello that can be judged."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a ClientHello asks for."""

    server_name: str | None
    """Lower case; None where it says none."""
    encrypted: bool
    """It carries an encrypted ClientHello, whose true server name only the server can read."""


class _Bytes:
    """A cursor; reading past the end is a BadHello."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise BadHello("It ends too early.")
        part, self._at = self._data[self._at : end], end
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    def __bool__(self) -> bool:
        return self._at < len(self._data)


def read(data: bytes) -> Hello | None:
    """Return what the ClientHello at the start of `data` asks for; None where more bytes are needed.

    The message may be cut into any number of records, as some clients do on purpose.
    Raises: BadHello, at the first byte that cannot be right, and past limits.PROXY_HELLO_BYTES.
    """
    message = bytearray()
    at = count = 0
    while at < len(data):
        if (count := count + 1) > _RECORDS:
            raise BadHello(f"It is cut into more than {_RECORDS} records.")
        if data[at] != HANDSHAKE:
            raise BadHello("It is not the beginning of TLS.")
        if len(data) < at + 5:
            break
        if data[at + 1] != 3:
            raise BadHello("It is no version of TLS that is known.")
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if not 0 < length <= _RECORD_BYTES:
            raise BadHello("A record has no possible length.")
        message += data[at + 5 : at + 5 + length]
        if message and message[0] != _CLIENT_HELLO:
            raise BadHello("It is not the first message of a client.")
        if len(message) >= 4 and len(message) >= 4 + (whole := int.from_bytes(message[1:4], "big")):
            return _parse(bytes(message[4 : 4 + whole]))
        at += 5 + length
    if len(data) >= limits.PROXY_HELLO_BYTES:
        raise BadHello(f"It is over {limits.PROXY_HELLO_BYTES} bytes.")
    return None


def _parse(body: bytes) -> Hello:
    hello = _Bytes(body)
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    extensions = _Bytes(hello.vector(2) if hello else b"")
    if hello:
        raise BadHello("It goes on behind its end.")
    found: dict[int, bytes] = {}
    while extensions:
        kind = extensions.number(2)
        if kind in found:
            raise BadHello("It says the same thing twice.")
        found[kind] = extensions.vector(2)
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return Hello(name, encrypted=_ENCRYPTED_HELLO in found)


def _server_name(extension: bytes) -> str:
    outer = _Bytes(extension)
    names = _Bytes(outer.vector(2))
    kind, name = names.number(1), names.vector(2)
    if outer or names or kind != 0 or not name:
        raise BadHello("It does not say exactly one server name.")
    try:
        return name.decode("ascii").lower()
    except UnicodeDecodeError:
        raise BadHello("Its server name is not ASCII.") from None
