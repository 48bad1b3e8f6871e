"""The head of a request, taken apart strictly. h11 parses; what it forgives is refused before.

A proxy and a server that read the same bytes differently are how requests are smuggled. So lines end
with CRLF, nothing is folded, framing is said once, and what goes on is written anew from what was
understood. The target of the request line alone says where it goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import h11

from codespace import limits
from codespace.display import display
from helper.proxy.decision import bad_request
from helper.proxy.names import BadTarget, Target, parse

Headers = list[tuple[bytes, bytes]]

HEAD_END: Final = b"\r\n\r\n"
_LINE: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,32} [\x21-\x7e]+ HTTP/1\.[01]")
_SHOWN_CHARACTERS: Final = 200  # of what h11 says, which repeats what it was given
_ONCE: Final = (b"host", b"content-length", b"transfer-encoding")
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_OURS: Final = frozenset((b"host", b"content-length", b"expect"))


@dataclass(frozen=True, slots=True)
class Request:
    """One understood request."""

    method: bytes
    target: Target
    path: bytes
    """Origin form, for the server."""
    headers: Headers
    """What goes on to the server: Host as the target says, framing as understood, no hop-by-hop fields."""
    connection: h11.Connection
    """Reads the body and writes the answer."""

    @property
    def opens_tunnel(self) -> bool:
        """It is a CONNECT."""
        return self.method == b"CONNECT"


def check_start(received: bytes) -> None:
    """Refuse early what cannot become a head, so that it need not be waited for. Raises: Refused."""
    line, end, _ = received.partition(b"\n")
    if end and not _LINE.fullmatch(line.removesuffix(b"\r")):
        raise bad_request("The first line is no request of HTTP/1.0 or 1.1.")
    if received and not (received[:1].isalpha() and received[:1].isascii()):
        raise bad_request("It does not begin like HTTP.")


def read(head: bytes, rest: bytes, within: Target | None = None) -> Request:
    """Return the request that `head` describes.

    Args:
        head: Up to and with the empty line.
        rest: What has arrived behind it.
        within: The target of the tunnel in which it came; then the request line need not name it.
    Raises: Refused.
    """
    check_start(head)
    _check_lines(head)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.PROXY_HEAD_BYTES)
    try:
        connection.receive_data(head + rest)
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise bad_request(f"The head is not valid: {display(str(error), limit=_SHOWN_CHARACTERS)}.") from error
    if not isinstance(event, h11.Request):
        raise bad_request("The head is not complete.")
    target, path = _where(event.method, event.target, within)
    headers = [(name, value) for name, value in end_to_end(event.headers.raw_items()) if name.lower() not in _OURS]
    return Request(event.method, target, path, [*_own(target, event), *headers], connection)


def end_to_end(headers: Headers) -> Headers:
    """Return the fields that are meant for the other end and not for the next hop (RFC 9110, 7.6.1)."""
    named = {
        option.strip().lower()
        for name, value in headers
        if name.lower() in (b"connection", b"proxy-connection")
        for option in value.split(b",")
    }
    dropped = _HOP_BY_HOP | named
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]


def _check_lines(head: bytes) -> None:
    lines = head.removesuffix(HEAD_END).split(b"\r\n")
    if b"\0" in head or any(b"\r" in line or b"\n" in line for line in lines):
        raise bad_request("The head holds a NUL, or a line that does not end with CR LF.")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise bad_request("The head holds a folded line.")
    names = [line.partition(b":")[0].strip().lower() for line in lines[1:]]
    if any(names.count(name) > 1 for name in _ONCE):
        raise bad_request("Host, Content-Length or Transfer-Encoding stands more than once.")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise bad_request("Content-Length and Transfer-Encoding stand together.")
    if lines[0].startswith(b"CONNECT ") and not {b"content-length", b"transfer-encoding"}.isdisjoint(names):
        raise bad_request("A CONNECT has no body.")


def _where(method: bytes, raw: bytes, within: Target | None) -> tuple[Target, bytes]:
    text = raw.decode("ascii")
    try:
        if method == b"CONNECT":
            if within is not None:
                raise bad_request("There is a tunnel already.")
            return parse(text), b""
        if "#" in text:
            raise bad_request("The target holds a fragment.")
        if within is not None and text.startswith("/"):
            return within, raw
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() != "http":
            raise bad_request("The target is not `http://name/...`; for https use CONNECT.")
        authority, path = re.fullmatch(r"([^/?#\\]*)(.*)", rest).groups()  # type: ignore[union-attr]  # matches any text
        target = parse(authority, 80)
    except BadTarget as error:
        raise bad_request(f"The target is not valid. {error}") from error
    if path.startswith("\\"):
        raise bad_request("A backslash ends the host.")
    if within is not None and target != within:
        raise bad_request("The target is not that of the tunnel.")
    return target, (path if path.startswith("/") else f"/{path}").encode()


def _own(target: Target, event: h11.Request) -> Headers:
    host = str(target).removesuffix(":80") if target.port == 80 else str(target)
    framing = [
        (name.title(), value) for name, value in event.headers if name in (b"content-length", b"transfer-encoding")
    ]
    return [(b"Host", host.encode()), (b"Connection", b"close"), *framing]
