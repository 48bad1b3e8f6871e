"""How gateway and worker make sure of each other before anything else is said on the socket.

Each shows that it has the secret of this start, which only the inherited pipe carried, without saying
it; and the kernel says who is at the other end. Pure, but for that question to the kernel.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from codespace.runner.worker.frames import BadFrame

VERSION: Final = 2
SECRET_BYTES: Final = 32
SOCKET: Final = "socket"
"""Its name in the leaf directory."""

_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid


def hello(secret: bytes, who: str, **said: Any) -> dict[str, Any]:
    """Return the first message of `gateway` or `worker`."""
    return {"hello": VERSION, "proof": _proof(secret, who), **said}


def check_hello(message: Mapping[str, Any] | None, secret: bytes, who: str) -> Mapping[str, Any]:
    """Return the first message of the other side. Raises: BadFrame, which says what is wrong with it."""
    if message is None:
        raise BadFrame("it ended before its hello")
    if "bye" in message:
        raise BadFrame(str(message["bye"]))
    if message.get("hello") != VERSION:
        raise BadFrame(f"it does not speak version {VERSION} of the protocol")
    proof = message.get("proof")
    # JSON can carry half a surrogate pair, which has no other bytes than these.
    said = proof.encode("utf-8", "surrogatepass") if isinstance(proof, str) else b""
    if not hmac.compare_digest(said, _proof(secret, who).encode()):
        raise BadFrame("it does not have the secret")
    return message


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user id of who made the other end, as the kernel knows them (SO_PEERCRED)."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(said)
    return pid, uid


def _proof(secret: bytes, who: str) -> str:
    return hmac.new(secret, f"codespace-runner {who}".encode(), hashlib.sha256).hexdigest()
