"""A stop of a whole workspace: every command in it is ended, whichever daemon of the database runs it."""

from __future__ import annotations

import structlog
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.elsewhere import Elsewhere
from codespace.gateway.execution import Execution
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.work import Work

log = structlog.get_logger("codespace.brake")


class Brake:
    """Ends commands; it records nothing itself.

    Args:
        execution: Of this daemon.
        elsewhere: How other daemons are asked.
        instance_id: Of this daemon.
    """

    def __init__(self, ledger: Ledger, execution: Execution, elsewhere: Elsewhere, instance_id: str) -> None:
        self._ledger = ledger
        self._execution = execution
        self._elsewhere = elsewhere
        self._instance_id = instance_id

    async def stop(self, work: Work) -> bool:
        """End every live command of a work's workspace; return whether the end of each is recorded.

        One that hangs in the kernel is not waited for: it is still being ended, and the answer says so.

        Cancel: this daemon's trees still end with the runner; other daemons may still end theirs.
        """
        ended = list[bool]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_ours, work, ended)
            for operation in await self._theirs(work, ended):
                nursery.start_soon(self._end_theirs, operation, ended)
        return all(ended)

    async def _end_ours(self, work: Work, ended: list[bool]) -> None:
        ended.append(await self._execution.end_all(limits.GRACE_SECONDS, work.workspace_id, work.root))

    async def _theirs(self, work: Work, ended: list[bool]) -> list[Operation]:
        try:
            return [operation for operation in await self._ledger.unfinished() if self._is_theirs(operation, work)]
        except Refusal as refusal:  # our own are ended all the same
            log.warning("other daemons' commands could not be looked for", work_id=work.id, code=refusal.code)
            ended.append(False)
            return []

    def _is_theirs(self, operation: Operation, work: Work) -> bool:
        there = operation.workspace_id == work.workspace_id and work.root in (None, operation.root)
        return there and operation.instance_id != self._instance_id and operation.kind == "exec"

    async def _end_theirs(self, operation: Operation, ended: list[bool]) -> None:
        try:
            await self._elsewhere.end(operation, limits.GRACE_SECONDS)
        except Refusal as refusal:  # of one; the others are ended all the same
            log.warning("another daemon's command was not ended", operation_id=operation.id, code=refusal.code)
            ended.append(False)
