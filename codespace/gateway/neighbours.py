"""What other daemons on the same database do in a root, as far as the ledger tells."""

from __future__ import annotations

from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.occupancy import Occupant


class Neighbours:
    """Looks at the unfinished operations of every instance but this one."""

    def __init__(self, ledger: Ledger, instance_id: str) -> None:
        self._ledger = ledger
        self._instance_id = instance_id

    async def occupant(self, root: str) -> Occupant | None:
        """Return who is in `root` for another daemon; None where the database does not say.

        Asked only once the root's lock was found taken, so an operation that a dead daemon left
        unfinished is at worst the wrong name for a lock that is really held.
        """
        theirs = [
            operation
            for operation in await self._ledger.unfinished()
            if operation.root == root and operation.instance_id != self._instance_id
        ]
        if not theirs:
            return None
        return _occupant(max(theirs, key=lambda operation: operation.created_at))


def _occupant(operation: Operation) -> Occupant:
    if operation.kind == "patch":
        return Occupant("patch", operation.id, operation.created_at)
    return Occupant("process", operation.id, operation.created_at, operation.process_id)
