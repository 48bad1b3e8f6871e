"""The network decisions of a run in the audit while it goes on, so that a daemon that is killed takes few along.

What it takes along is at most what was decided within limits.TRAIL_SECONDS, and counts between two that are told.

It decides nothing and holds nothing up: the door has told its decision to the runner before it acts on
it, and what is not recorded yet when the run ends stands in the record of the end, with the whole counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
import trio

from codespace import limits
from codespace.contract import NetworkNews, Runner
from codespace.errors import Refusal
from codespace.gateway.event import Event
from codespace.gateway.ledger import Ledger
from codespace.gateway.runs import Run

log = structlog.get_logger("codespace.network")

_REASON: Final = "The network door decided this while the command ran."
_KIND: Final = ("host", "port", "allowed", "code", "rule")


class Trail:
    """Follows runs; one for a daemon."""

    def __init__(self, runner: Runner, ledger: Ledger) -> None:
        self._runner = runner
        self._ledger = ledger

    @contextmanager
    def following(self, run: Run, nursery: trio.Nursery) -> Iterator[None]:
        """Follow a run that was spawned, where it has a network door, for as long as the block waits for its end.

        What is being recorded when the block ends is recorded before anything that is recorded behind it.
        """
        scope = trio.CancelScope()
        if run.workspace.network == "enabled" and run.spawned is not None and run.spawned.network == "enforced":
            nursery.start_soon(self._follow, run, scope, name=f"trail of {run.process_id}")
        try:
            yield
        finally:
            scope.cancel()

    async def _follow(self, run: Run, scope: trio.CancelScope) -> None:
        """Record what the door decides until nothing more will be decided.

        Never raises: a fault here costs rows of the audit until the end's, never the run.
        Cancel: what was recorded stays recorded, the rest stands in the record of the run's end.
        Source: limits.TRAIL_SECONDS.
        """
        with scope:
            await self._tell(run)

    async def _tell(self, run: Run) -> None:
        cursor = 0
        try:
            while (news := await self._runner.wait_decisions(run.process_id, cursor=cursor)) is not None:
                if await self._record(run, news):
                    cursor = news.cursor
                await trio.sleep(limits.TRAIL_SECONDS)
        except Refusal as refusal:
            log.info("network decisions are recorded at the run's end", process_id=run.process_id, code=refusal.code)
        except Exception:
            log.exception("network decisions could not be followed", process_id=run.process_id)

    async def _record(self, run: Run, news: NetworkNews) -> bool:
        details: dict[str, Any] = {"network_decisions": [dict(each) for each in news.decisions]}
        if news.not_kept:
            details["not_kept"] = news.not_kept
        try:
            await self._ledger.note("network", run.operation_id, "decided", _REASON, details)
        except Refusal as refusal:  # the database is away: the same news is asked for again
            log.warning("a network decision could not be recorded yet", process_id=run.process_id, code=refusal.code)
            return False
        return True


def decisions(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return each different decision that the events of a run tell of once, with its largest count, oldest first.

    Not the latest: where a runner was lost, the record of the end knows less than the rows before it.
    """
    found = dict[tuple[Any, ...], dict[str, Any]]()
    for event in events:
        for each in event.details.get("network_decisions", ()):
            key = tuple(each.get(name) for name in _KIND)
            if key not in found or each["times"] >= found[key]["times"]:
                found[key] = dict(each)
    return list(found.values())
