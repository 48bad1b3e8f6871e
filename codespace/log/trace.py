"""An exception as a log may tell it: where it came from and of which type, not what it said.

The text of an exception often repeats what was being worked on (`KeyError: '<line of a patch>'`),
so it is left out; code and place are enough to find the fault.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from typing import Any

from codespace import limits
from codespace.errors import Refusal


def describe(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn `exc_info` into `exception`; a processor of structlog."""
    given = event.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else None
    if isinstance(given, tuple):
        error = given[1]
    elif given and error is None:
        error = sys.exc_info()[1]
    if error is not None:
        event["exception"] = "\n".join(_lines(error, limits.LOG_DEPTH))
    return event


def name(error: BaseException) -> str:
    """Return what the type of the exception tells: its name, and the code where there is one."""
    kind = type(error).__name__
    if isinstance(error, Refusal):
        return f"{kind} {error.code}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{kind} {errno.errorcode.get(error.errno, str(error.errno))}"
    return kind


def _lines(error: BaseException, depth: int) -> Iterator[str]:
    frames = traceback.extract_tb(error.__traceback__, limit=-limits.LOG_ITEMS)
    for frame in frames:
        yield f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    yield name(error)
    if depth == 0:
        return
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield "after"
        yield from _lines(cause, depth - 1)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions[: limits.LOG_ITEMS]:
            yield "holds"
            yield from _lines(part, depth - 1)
