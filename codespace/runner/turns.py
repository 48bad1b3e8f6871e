"""How many threads may work in one root at once. It knows nothing of what they do.

Counted for each root by itself: a thread that a hung filesystem holds never ends, and those that wait
for its turn must be of the same root.
"""

from __future__ import annotations

import trio

from codespace.contract import Workspace


class Turns:
    """The limiters of all roots.

    Args:
        at_once: Most threads in one root.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._limiters: dict[str, trio.CapacityLimiter] = {}

    def of(self, workspace: Workspace) -> trio.CapacityLimiter:
        """Return the limiter of a workspace's root."""
        limiter = self._limiters.get(workspace.root)
        if limiter is None:
            limiter = self._limiters[workspace.root] = trio.CapacityLimiter(self._at_once)
        return limiter
