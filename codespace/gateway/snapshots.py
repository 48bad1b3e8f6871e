"""Keeps what undo needs within the operator's limits, in the background."""

from __future__ import annotations

import structlog
import trio

from codespace import limits
from codespace.contract import Runner
from codespace.errors import Refusal
from codespace.gateway.ledger import Ledger

log = structlog.get_logger("codespace.snapshots")


async def prune(runner: Runner, ledger: Ledger, snapshot_bytes: int, snapshot_age_seconds: float) -> None:
    """Remove snapshots that are too old, and the oldest while there are too many bytes, until cancelled.

    Cancel: what was removed is gone, each snapshot whole.
    """
    while True:
        try:
            gone = await _prune_once(runner, ledger, snapshot_bytes, snapshot_age_seconds)
        except (Refusal, OSError) as problem:
            log.warning("snapshots could not be pruned", problem=repr(problem))
        except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
            log.exception("snapshots could not be pruned")
        else:
            if gone:
                log.info("snapshots were pruned", operations=len(gone), oldest=gone[0])
        await trio.sleep(limits.PRUNE_SECONDS)


async def _prune_once(runner: Runner, ledger: Ledger, snapshot_bytes: int, snapshot_age_seconds: float) -> list[str]:
    """Return whose snapshots were removed.

    The ledger is asked behind the journals: a patch that had ended on the disk and has no end in the ledger then still
    waits for it, and its journal may be all that can tell it.
    """
    expired = await runner.expired(snapshot_bytes, snapshot_age_seconds)
    unsettled = {operation.id for operation in await ledger.unfinished()} if expired else set()
    return [each for each in expired if each not in unsettled and await runner.discard(each)]
