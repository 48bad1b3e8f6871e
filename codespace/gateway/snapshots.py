"""Keeps what undo needs within the operator's limits, in the background."""

from __future__ import annotations

import structlog
import trio

from codespace import limits
from codespace.contract import Runner
from codespace.errors import Refusal

log = structlog.get_logger("codespace.snapshots")


async def prune(runner: Runner, snapshot_bytes: int, snapshot_age_seconds: float) -> None:
    """Remove snapshots that are too old, and the oldest while there are too many bytes, until cancelled.

    Cancel: what was removed is gone, each snapshot whole.
    """
    while True:
        try:
            gone = await runner.prune(snapshot_bytes, snapshot_age_seconds)
        except (Refusal, OSError) as problem:
            log.warning("snapshots could not be pruned", problem=repr(problem))
        else:
            if gone:
                log.info("snapshots were pruned", operations=len(gone), oldest=gone[0])
        await trio.sleep(limits.PRUNE_SECONDS)
