"""What the gateway's side knows of the worker's processes, from news and answers; asking it costs no message.

A process that its worker took along has ended as `lost`; what it wrote can still be read from its
spool. Ended ones are forgotten by the same rule as in the supervisor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from codespace import duration, limits
from codespace.contract import ProcessState, Spawned
from codespace.errors import Refusal
from codespace.runner.output import kept
from codespace.runner.threads import run_patiently

LOST_NOTE = "The runner's process ended first and took this one along: how it would have ended is not known."


@dataclass(slots=True)
class Known:
    """One process."""

    state: ProcessState
    spool: str | None
    worker: int
    """Which worker has it, counted from the first."""
    ended: trio.Event = field(default_factory=trio.Event)
    ended_time: float = 0.0
    is_left: bool = False
    """Whether its worker is gone."""


class Mirror:
    """All processes of this daemon that can still be asked about."""

    def __init__(self, retention_seconds: float, wall_clock: Callable[[], float]) -> None:
        self._retention_seconds = retention_seconds
        self._wall_clock = wall_clock
        self._known: dict[str, Known] = {}
        self._ended: deque[str] = deque()

    def begin(self, process_id: str, spawned: Spawned, worker: int) -> None:
        """Enter a process that was started."""
        nothing = {"combined": 0, "stdout": 0, "stderr": 0}
        state = ProcessState(process_id, "running", spawned.started_at, nothing)
        self._known[process_id] = Known(state, spawned.spool, worker)

    def update(self, state: ProcessState) -> None:
        """Take what was told of a process; what is older than what is known changes nothing."""
        known = self._known.get(state.process_id)
        if known is None or known.ended.is_set():
            return
        if state.state == "running" and state.output_total["combined"] < known.state.output_total["combined"]:
            return
        known.state = state
        if state.state == "exited":
            self._end(state.process_id, known)

    async def leave(self, worker: int) -> None:
        """A worker is gone: its live processes are lost, and the output of the others is on disk or nowhere.

        Cancel: not possible; bounded by limits.WORKER_TOTALS_SECONDS.
        """
        left = {process_id: known for process_id, known in self._known.items() if known.worker == worker}
        live = {process_id: known for process_id, known in left.items() if not known.ended.is_set()}
        there = await _there([known.spool for known in live.values() if known.spool is not None])
        for known in left.values():
            known.is_left = True
        for process_id, known in live.items():
            # What was told last lags behind what was written, and so does the disk where it could not follow.
            told, written = known.state.output_total, there.get(known.spool, {})
            known.state = replace(
                known.state,
                state="exited",
                termination="lost",
                ended_at=self._wall_clock(),
                output_total={stream: max(total, written.get(stream, 0)) for stream, total in told.items()},
                notes=(*known.state.notes, LOST_NOTE),
            )
            self._end(process_id, known)

    def _end(self, process_id: str, known: Known) -> None:
        known.ended_time = trio.current_time()
        self._ended.append(process_id)
        known.ended.set()

    def find(self, process_id: str) -> Known:
        """Return what is known of a process. Raises: Refusal PROCESS_NOT_FOUND."""
        self._drop_old()
        try:
            return self._known[process_id]
        except KeyError:
            raise Refusal(
                "PROCESS_NOT_FOUND",
                f"No process of this id is live, or ended within the last {duration.words(self._retention_seconds)}.",
            ) from None

    def knows(self, process_id: str) -> bool:
        """Return whether a process is live or still kept."""
        self._drop_old()
        return process_id in self._known

    def forget(self, process_id: str) -> bool:
        """Drop an ended process; return whether there was one."""
        known = self._known.get(process_id)
        if known is None or not known.ended.is_set():
            return False
        del self._known[process_id]
        self._ended.remove(process_id)  # else it would count among those that are kept
        return True

    def _drop_old(self) -> None:
        oldest = trio.current_time() - self._retention_seconds
        while self._ended:
            known = self._known.get(self._ended[0])
            if known is not None and known.ended_time >= oldest and len(self._ended) <= limits.RETAINED_PROCESSES:
                return
            self._known.pop(self._ended.popleft(), None)


async def _there(spools: Sequence[str]) -> Mapping[str | None, Mapping[str, int]]:
    """Return how far each stream goes in these spools, as far as the disk answers."""
    if spools:
        # Protects the last word on processes that are lost; without an answer, what was told of them stands.
        with trio.move_on_after(limits.WORKER_TOTALS_SECONDS, shield=True):
            return await run_patiently(lambda: {spool: kept.look(spool).totals() for spool in spools})
    return {}
