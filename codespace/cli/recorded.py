"""The database as a command of the operator's opens it: whose it is, that it is there, and what a refusal looks like.

Whoever may write the file is the operator. A daemon may run or not; each step is the same compare-and-set.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from codespace import cli, interrupts
from codespace.cli import configured
from codespace.display import display
from codespace.errors import Refusal
from codespace.gateway.operation import Operation
from codespace.gateway.operator import Operator, open_operator
from codespace.gateway.view import known
from codespace.settings import MEMORY_DATABASE, Settings

Act = Callable[[Operator], Awaitable[int]]


def run(config: str | None, act: Act) -> int:
    """Let `act` work on the database of the settings; return its exit code, or 2 after saying why it did not."""
    settings = configured.settings(config)
    if settings is None:
        return cli.USAGE
    if settings.database == MEMORY_DATABASE:
        return refused("the database is in memory; nothing but its daemon can reach it.")
    if not configured.is_begun(settings.database):
        return refused(f"nothing has been recorded yet: there is no database at {display(settings.database)}.")
    return interrupts.run(partial(_run, settings, act))


async def _run(settings: Settings, act: Act) -> int:
    ended: BaseException
    expiry = settings.approval_expiry_seconds
    try:
        async with open_operator(settings.database, settings.workspaces, time.time, expiry_seconds=expiry) as operator:
            try:
                return await act(operator)
            except Refusal as refusal:
                return tell(refusal)
            except (KeyboardInterrupt, OSError) as end:  # as itself, not as a group of the nursery's
                ended = end
    except Refusal as refusal:
        return tell(refusal)
    raise ended


def refused(why: str) -> int:
    """Say why nothing was done; return the exit code for that."""
    print(f"codespace: {why}", file=sys.stderr)
    return cli.USAGE


def tell(refusal: Refusal) -> int:
    """Say what was refused; return the exit code for that."""
    return refused(f"{refusal.code}: {display(refusal.message)}\n  {display(refusal.next_step)}")


def as_json(facts: Mapping[str, Any]) -> str:
    """Return one line of JSON in ASCII: a hostile text comes as escapes, which act on no terminal."""
    return json.dumps(dict(facts), sort_keys=True)


def facts(operation: Operation, dead: Container[str]) -> dict[str, Any]:
    """Return what is recorded of an operation, its id under the name too that every other answer has for it.

    Args:
        dead: The daemons that ended without a word: what they left open waits for the next start; nothing of it runs.
    """
    return known(operation) | {"operation_id": operation.id, "daemon_ended": _is_left(operation, dead)}


def state(operation: Operation, dead: Container[str]) -> str:
    """Return how an operation stands, for people. `dead` as for `facts`."""
    return operation.state + (" when its daemon ended" if _is_left(operation, dead) else "")


def tell_unlisted(listed: int, recorded: int) -> None:
    """Say on stderr that a list is not all, where it is not; only what has its end is ever left out."""
    if recorded > listed:
        print(
            f"codespace: the newest {listed} are listed; {recorded - listed} older ones, which have their end, are "
            "not. `codespace operations show ID` shows each.",
            file=sys.stderr,
        )


def _is_left(operation: Operation, dead: Container[str]) -> bool:
    return operation.finished_at is None and operation.instance_id in dead


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns. Cells have passed `display`."""
    lines = [tuple(heads), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def ago(seconds: float) -> str:
    """Return a length of time as a person says it: `45 s`, `12 min`, `3 h`, `2 d`."""
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
