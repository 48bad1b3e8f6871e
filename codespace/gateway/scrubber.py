"""Makes what was scrubbed leave the database's file: until its log is cut, deleted bytes are in there."""

from __future__ import annotations

import structlog
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.store import Store

log = structlog.get_logger("codespace.holds")


class Scrubber:
    """Cuts the log soon, and again where a reader was in the way.

    Args:
        nursery: The daemon's own; at the latest the last daemon's end cuts the log.
    """

    def __init__(self, store: Store, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery
        self._at_work = False
        self._unscrubbed = False

    def soon(self) -> None:
        """Have the log cut, behind what was written until now."""
        self._unscrubbed = True
        if not self._at_work:
            self._at_work = True
            self._nursery.start_soon(self._scrub)

    async def _scrub(self) -> None:
        try:
            while self._unscrubbed:
                self._unscrubbed = False  # what is scrubbed from here on may not be in this cut
                if not await self._cut():
                    self._unscrubbed = True
                    await trio.sleep(limits.SCRUB_RETRY_SECONDS)
        finally:
            self._at_work = False

    async def _cut(self) -> bool:
        try:
            return await self._store.scrub()
        except Refusal as refusal:
            log.warning("the database's log could not be cut yet", code=refusal.code)
            return False
