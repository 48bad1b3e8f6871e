"""JSON lines on two descriptors: one request, one reply, in order.

A line that is over the bound, or no JSON object, ends the conversation: its sender is broken, and
guessing where the next request begins would be worse.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Mapping
from io import FileIO
from typing import Any, BinaryIO, Final

from codespace import limits
from codespace.errors import Refusal
from helper.patch.confine import confine
from helper.patch.session import Session

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
# What a disk says that takes no more.


def claim() -> tuple[BinaryIO, FileIO]:
    """Take stdin and stdout for the wire; everything else sees /dev/null and stderr there."""
    reading, writing = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb", limits.HELPER_PIPE_BYTES), FileIO(writing, "wb")


def serve(reading: BinaryIO, writing: FileIO) -> None:
    """Answer requests until the other side closes; the first one is `open`."""
    session: Session | None = None
    try:
        while request := _next(reading):
            reply: dict[str, Any]
            try:
                if session is None:
                    session = Session.open(request)
                    confined = confine(session.root, session.folder, request["readable"], session.bounds.file_bytes)
                    reply = {"ok": {"primitive": session.root.primitive, "confined": confined}}
                else:
                    reply = {"ok": session.call(request)}
            except Refusal as refusal:
                reply = {"refusal": refusal.body()}
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                reply = {"refusal": _failed(error).body()}
            _send(writing, {"id": request["id"], **reply})
    finally:
        if session is not None:
            session.close()


def _failed(error: Exception) -> Refusal:
    """Return the refusal of a disk that takes no more, where it is that; the root's own errors each verb tells."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return Refusal("INTERNAL", "The patch helper met a fault of its own.")
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"The journal could not be written: {error.strerror} ({errno.errorcode[error.errno]}).",
        next_step="Ask the operator to make room in the state directory; operation_status says what became of it.",
        details={"errno": errno.errorcode[error.errno]},
    )


def _next(reading: BinaryIO) -> Mapping[str, Any] | None:
    line = reading.readline(limits.HELPER_LINE_BYTES + 1)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise ValueError("a request was cut off or is over the bound")
    request = json.loads(line)
    if not isinstance(request, dict) or "id" not in request:
        raise ValueError("a request is no JSON object with an id")
    return request


def _send(writing: FileIO, reply: Mapping[str, Any]) -> None:
    left = memoryview(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
    while left:
        left = left[writing.write(left) or 0 :]
