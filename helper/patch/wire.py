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
from typing import Any, BinaryIO

from codespace import limits
from codespace.errors import Refusal
from helper.patch.confine import confine
from helper.patch.session import Session


def claim() -> tuple[BinaryIO, FileIO]:
    """Take stdin and stdout for the wire; everything else sees /dev/null and stderr there."""
    reading, writing = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return os.fdopen(reading, "rb"), FileIO(writing, "wb")


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
            except OSError as error:
                reply = {"refusal": _failed(error).body()}
            except Exception:
                traceback.print_exc(file=sys.stderr)
                reply = {"refusal": Refusal("INTERNAL", "The patch helper met a fault of its own.").body()}
            _send(writing, {"id": request["id"], **reply})
    finally:
        if session is not None:
            session.close()


def _failed(error: OSError) -> Refusal:
    """Return the refusal of a disk that took no more: of the root's own errors each verb tells by itself."""
    traceback.print_exception(error, file=sys.stderr)
    number = errno.errorcode.get(error.errno or 0, str(error.errno))
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"The journal could not be written: {error.strerror or 'unknown'} ({number}).",
        next_step="Ask the operator to make room in the state directory; operation_status says what became of it.",
        details={"errno": number},
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
