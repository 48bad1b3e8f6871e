"""The book of this daemon's processes: from before a start until the runner has forgotten them.

It keeps who they belong to and what was told of their start. It starts, ends and records nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from codespace.contract import ProcessState, Runner, Spawned, Workspace
from codespace.gateway.ticket import Ticket


@dataclass(slots=True)
class Run:
    """One process. It keeps few arguments: stdin and env may be large, and secret."""

    process_id: str
    operation_id: str
    workspace: Workspace
    command: tuple[str, ...]
    """As it is shown, cut where it is long."""
    operation_key: str | None
    fingerprint: str
    timeout_seconds: float
    started: Ticket = field(default_factory=Ticket)
    spawned: Spawned | None = None
    notes: tuple[str, ...] = ()
    """What the gateway has to add to the runner's own notes."""
    ended: bool = False
    """Whether its driver has seen its end: the tree is gone, or never was."""
    stdin_granted: bool = False
    """Whether the hold that it was granted by said that it accepts stdin."""
    gathers: bool = False
    """Whether the next read waits for output to pause: it follows another one, or a line of input."""
    told: trio.Event = field(default_factory=trio.Event)
    """Set once its end is in the ledger, or it was seen that it cannot be there soon."""


class Runs:
    """All processes of this daemon that can still be asked about."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def add(self, run: Run) -> None:
        """Enter a run before its start; those that the runner has forgotten go first."""
        self.tidy()
        self._runs[run.process_id] = run

    def drop(self, run: Run) -> None:
        self._runs.pop(run.process_id, None)

    def held(self, process_id: str) -> Run | None:
        """Return a run that was started and that the runner still has."""
        run = self._runs.get(process_id)
        if run is None or run.spawned is None:
            return None
        if run.ended and not self._runner.knows(run.process_id):
            self.drop(run)
            return None
        return run

    @property
    def any_live(self) -> bool:
        """Whether a process runs or is being started."""
        return any(not run.ended for run in self._runs.values())

    def of_process(self, process_id: str | None) -> Run | None:
        return self._runs.get(process_id or "")

    def of_key(self, operation_key: str | None) -> Run | None:
        if operation_key is None:
            return None
        return next((run for run in self._runs.values() if run.operation_key == operation_key), None)

    def live(self, workspace_id: str) -> int:
        """Return how many processes of a workspace run or are being started."""
        return sum(1 for run in self._runs.values() if run.workspace.id == workspace_id and not run.ended)

    def known(self) -> list[tuple[Run, ProcessState]]:
        """Return every started process with its state, oldest first."""
        self.tidy()
        return [(run, self._runner.process(run.process_id)) for run in self._runs.values() if run.spawned is not None]

    def tidy(self) -> None:
        """Forget what the runner has: it bounds how many ended processes are kept, and for how long.

        One that was never started stays until its driver drops it: its key is answered from here meanwhile.
        """
        for run in self:
            if run.ended and run.spawned is not None and not self._runner.knows(run.process_id):
                self.drop(run)
