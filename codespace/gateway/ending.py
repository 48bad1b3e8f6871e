"""A last step that must get into the ledger, also where the database is away when it is due.

What happened has happened: the caller is told it at once, and the row follows. It decides nothing;
the drivers say which events end a subject from each state that it may be recorded in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio

from codespace import limits
from codespace.drive import Impossible, Motion, Stale
from codespace.errors import Refusal

log = structlog.get_logger("codespace.ending")


class Ending:
    """The end of one subject, recorded once.

    Args:
        ways: For each state that may be recorded, the events that lead from it to the end; every other
            state is the end. More than one, because a step before may have been recorded though its
            answer was lost.
        changes, details: As for Motion.move.
    """

    def __init__(
        self,
        motion: Motion,
        ways: Mapping[str, tuple[str, ...]],
        *,
        changes: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self._motion = motion
        self._ways = ways
        self._changes = changes
        self._details = details

    async def attempt(self) -> bool:
        """Record the end and return True; False where the database does not take it now.

        Cancel: none while it is being recorded.
        """
        while (state := self._motion.state) in self._ways:
            try:
                await self._motion.move(*self._ways[state], changes=self._changes, details=self._details)
            except Impossible:
                if self._motion.state == state:
                    raise
            except Stale as stale:
                log.warning("somebody else recorded an end", subject=stale.subject, recorded=stale.actual)
                return True
            except Refusal as refusal:
                log.warning("an end could not be recorded yet", subject=self._motion.subject, code=refusal.code)
                return False
        return True

    async def persist(self) -> None:
        """Try until it is recorded. Cancel: it is not; recovery finds the row."""
        while True:
            if await self.attempt():
                return
            await trio.sleep(limits.RECORD_RETRY_SECONDS)
