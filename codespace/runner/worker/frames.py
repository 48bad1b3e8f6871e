"""Frames on the worker's socket: a u32 length, big-endian, then so many bytes of one JSON object.

Behind a frame whose object has `aside` come, as they are, the long texts that it names: a page of output that is
escaped as JSON, and read as such, costs several times what all else of its call does.

Pure: no socket and no clock. Whatever is not exactly that is `BadFrame`, and the connection is of no
more use: guessing where the next frame begins would be worse.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from codespace import limits

HEAD: Final = struct.Struct(">I")
_ASIDE: Final = "aside"
_HOLDERS: Final = ("ok", "arguments")
"""What of a message may have its own texts set aside."""
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class BadFrame(Exception):
    """The other side broke the protocol; the text says how."""


class TooLarge(Exception):
    """A message of ours does not fit into a frame; nothing of it was sent."""


def pack(message: Mapping[str, Any], limit_bytes: int = limits.WORKER_FRAME_BYTES) -> bytes:
    """Return a message as a frame, long texts behind it.

    The object is ASCII, so that names with undecodable bytes cross as lone surrogates; texts have them likewise.

    Raises: TooLarge.
    """
    message, texts = _set_aside(message)
    body = _ENCODER.encode(message).encode("ascii")
    size = len(body) + sum(map(len, texts))
    if size > limit_bytes:
        raise TooLarge(f"{size:,} bytes")
    return b"".join((HEAD.pack(len(body)), body, *texts))


def _set_aside(message: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[bytes]]:
    """Return a message without the long texts of its answer or arguments, and those."""
    for part in _HOLDERS:
        holder = message.get(part)
        if type(holder) is dict:
            long = {
                name: text.encode("utf-8", "surrogatepass")
                for name, text in holder.items()
                if type(text) is str and len(text) >= limits.WORKER_ASIDE_CHARACTERS
            }
            if long:
                sizes = {name: len(text) for name, text in long.items()}
                return {**message, part: {**holder, **dict.fromkeys(long, "")}, _ASIDE: sizes}, list(long.values())
    return message, []


class _Behind(NamedTuple):
    """A message whose texts have not arrived yet."""

    message: dict[str, Any]
    holder: dict[str, Any]
    sizes: dict[str, int]
    total: int


class Unpacker:
    """Cuts what arrives into messages.

    Attributes:
        limit_bytes: The longest frame, with what is behind it, that is taken; a longer one is refused by its
            length alone.
    """

    def __init__(self, limit_bytes: int = limits.WORKER_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._start = 0
        self._behind: _Behind | None = None

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended; ask it when `take` has said that there is no whole one."""
        return len(self._buffer) > self._start or self._behind is not None

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def take(self) -> dict[str, Any] | None:
        """Return the next whole message, None where more must arrive first. Raises: BadFrame."""
        if self._behind is None:
            body = self._body()
            if body is None:
                return None
            message = _message(body)
            if _ASIDE not in message:
                return message
            self._behind = _behind(message, self.limit_bytes - len(body))
        if len(self._buffer) < self._start + self._behind.total:
            return None
        whole, self._behind = self._behind, None
        for name, size in whole.sizes.items():
            whole.holder[name] = _text(self._cut(size))
        return whole.message

    def _body(self) -> bytes | None:
        body = self._start + HEAD.size
        if len(self._buffer) < body:
            return None
        (length,) = HEAD.unpack_from(self._buffer, self._start)
        if length > self.limit_bytes:
            raise BadFrame(f"a frame of {length:,} bytes is over the limit of {self.limit_bytes:,}")
        if len(self._buffer) < body + length:
            return None
        self._start = body
        return self._cut(length)

    def _cut(self, size: int) -> bytes:
        begin, self._start = self._start, self._start + size
        with memoryview(self._buffer) as view:
            return bytes(view[begin : self._start])


def _behind(message: dict[str, Any], room: int) -> _Behind:
    """Return what must arrive behind a frame. Raises: BadFrame where it names no texts of its own."""
    sizes = message.pop(_ASIDE)
    holder = next((message[part] for part in _HOLDERS if part in message), None)
    if not isinstance(sizes, dict) or not isinstance(holder, dict):
        raise BadFrame("what is set aside belongs to nothing")
    if any(holder.get(name) != "" or type(size) is not int or size < 0 for name, size in sizes.items()):
        raise BadFrame("what is set aside is no text of the message")
    total = sum(sizes.values())
    if total > room:
        raise BadFrame(f"a frame and {total:,} bytes behind it are over the limit")
    return _Behind(message, holder, sizes, total)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadFrame("a text behind a frame is none") from None


def _message(body: bytes) -> dict[str, Any]:
    try:
        found = _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadFrame("a frame is no JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("a frame is no JSON object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
