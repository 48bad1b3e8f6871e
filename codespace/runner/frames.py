"""Frames on the worker's socket: a u32 length, big-endian, then so many bytes of one JSON object.

Pure: no socket and no clock. Whatever is not exactly that is `BadFrame`, and the connection is of no
more use: guessing where the next frame begins would be worse.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from codespace import limits

HEAD: Final = struct.Struct(">I")


class BadFrame(Exception):
    """The other side broke the protocol; the text says how."""


class TooLarge(Exception):
    """A message of ours does not fit into a frame; nothing of it was sent."""


def pack(message: Mapping[str, Any], limit_bytes: int = limits.WORKER_FRAME_BYTES) -> bytes:
    """Return a message as a frame. ASCII, so that names with undecodable bytes cross as lone surrogates.

    Raises: TooLarge.
    """
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(body) > limit_bytes:
        raise TooLarge(f"{len(body):,} bytes")
    return HEAD.pack(len(body)) + body


class Unpacker:
    """Cuts what arrives into messages.

    Attributes:
        limit_bytes: The longest frame that is taken; a longer one is refused by its length alone.
    """

    def __init__(self, limit_bytes: int = limits.WORKER_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._start = 0

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended; ask it when `take` has said that there is no whole one."""
        return len(self._buffer) > self._start

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def take(self) -> dict[str, Any] | None:
        """Return the next whole message, None where more must arrive first. Raises: BadFrame."""
        body = self._start + HEAD.size
        if len(self._buffer) < body:
            return None
        (length,) = HEAD.unpack_from(self._buffer, self._start)
        if length > self.limit_bytes:
            raise BadFrame(f"a frame of {length:,} bytes is over the limit of {self.limit_bytes:,}")
        if len(self._buffer) < body + length:
            return None
        message = _message(bytes(self._buffer[body : body + length]))
        self._start = body + length
        return message


def _message(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise BadFrame("a frame is no JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("a frame is no JSON object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
