"""One thread with one SQLite connection, and the wait for what it does. It knows no table.

A thread of its own rather than trio's pool: the connection stays on one thread, and a hop costs
about a third less. A call is in line, running, committing or over; it can be taken back until it
commits, so that "nothing was written" is a fact and not a guess.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

import outcome
import trio
from sqlite_utils import Database

from codespace import limits
from codespace.drive import UNKNOWN
from codespace.errors import Refusal

Phase = Literal["waiting", "running", "committing", "over", "withdrawn"]
_STARTED: Final = object()
_PROGRESS_STEPS: Final = 20_000
# SQLite looks at the clock once in so many steps of its machine: never in a short statement.


class Withdrawn(Exception):
    """Raised in the thread where a call's time ran out; its transaction is rolled back."""


class Call:
    """One function to run on the lane's connection."""

    def __init__(self, work: Callable[[Call], Any]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._phase: Phase = "waiting"
        self._result: outcome.Outcome[Any] | None = None
        self._task: trio.lowlevel.Task | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    # --- on the lane's thread ---

    def run(self) -> None:
        if self._enter("waiting", "running"):
            self._finish(outcome.capture(self._work, self))

    def commit_begins(self) -> None:
        """Pass the point of no return, or raise Withdrawn."""
        if not self._enter("running", "committing"):
            raise Withdrawn

    @property
    def withdrawn(self) -> bool:
        return self._phase == "withdrawn"

    def _enter(self, source: Phase, target: Phase) -> bool:
        with self._lock:
            if self._phase != source:
                return False
            self._phase = target
            return True

    def _finish(self, result: outcome.Outcome[Any]) -> None:
        with self._lock:
            self._result = result
            if self._phase != "withdrawn":
                self._phase = "over"
            token, task = self._token, self._task
        if token is None or task is None:
            return
        try:
            token.run_sync_soon(self._wake, task)
        except trio.RunFinishedError:
            return  # the loop that waited is gone, and its task with it

    # --- on the loop ---

    def _wake(self, task: trio.lowlevel.Task) -> None:
        if self._task is task:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def _sleep(self) -> bool:
        """Wait until it is over; False where a cancel came after it had started."""
        task = trio.lowlevel.current_task()
        with self._lock:
            over = self._result is not None
            if not over:
                self._task, self._token = task, trio.lowlevel.current_trio_token()
        if over:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return True

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._task = None
            if self._enter("waiting", "withdrawn"):
                return trio.lowlevel.Abort.SUCCEEDED
            trio.lowlevel.reschedule(task, outcome.Value(_STARTED))
            return trio.lowlevel.Abort.FAILED

        return await trio.lowlevel.wait_task_rescheduled(abort) is not _STARTED

    async def wait(self) -> Any:
        """Return what the work returned, or raise what it raised.

        Raises: Refusal STORE_UNAVAILABLE when the time is over: nothing was written, or, where a
            commit hangs, `outcome: unknown` in its details.
        Cancel: a call in line is taken back; one that had started is waited for.
        """
        with trio.move_on_after(limits.STORE_WAIT_SECONDS) as patience:
            if await self._sleep():
                return self._unwrap()
        if not patience.cancel_called:  # it was the caller who was cancelled, after the start
            # Protects the truth of what the caller will say about this write; ends when its time does.
            with trio.move_on_at(patience.deadline, shield=True):
                if await self._sleep():
                    return self._unwrap()
        if self.withdrawn or self._enter("running", "withdrawn"):
            raise _too_slow()
        # Protects the end of a commit, which nothing can stop; after it the answer is "unknown".
        with trio.move_on_after(limits.STORE_GRACE_SECONDS, shield=True):
            if await self._sleep():
                return self._unwrap()
        raise _unknown()

    def _unwrap(self) -> Any:
        assert self._result is not None
        return self._result.unwrap()


class Lane:
    """The thread, its line of calls, and the connection that only it uses.

    Args:
        db: Opened with check_same_thread=False.
        inline: Run each call in the loop itself, for tests on a fake clock, which knows no threads.
    """

    def __init__(self, db: Database, name: str, *, inline: bool = False) -> None:
        self.db = db
        self._line: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._current: Call | None = None
        self._closed = False
        connection: sqlite3.Connection = db.conn
        connection.set_progress_handler(self._must_stop, _PROGRESS_STEPS)
        self._thread = None if inline else threading.Thread(target=self._serve, name=name, daemon=True)
        # A daemon thread: a disk that hangs in a commit must not keep the program from ending.
        if self._thread is not None:
            self._thread.start()

    async def run(self, work: Callable[[Call], Any]) -> Any:
        """Run `work` on the lane; see Call.wait."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise Refusal("STORE_UNAVAILABLE", "The database is closed; nothing was written.")
        call = Call(work)
        if self._thread is None:
            self._serve_one(call)
        else:
            self._line.put(call)
        return await call.wait()

    def close(self) -> None:
        """Finish what is in line and close the connection; bounded by limits.STORE_GRACE_SECONDS."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._line.put(None)
            self._thread.join(limits.STORE_GRACE_SECONDS)
            if self._thread.is_alive():
                return  # it hangs in the disk, and so would closing the connection
        self.db.close()

    def _serve(self) -> None:
        while (call := self._line.get()) is not None:
            self._serve_one(call)

    def _serve_one(self, call: Call) -> None:
        self._current = call
        call.run()
        self._current = None

    def _must_stop(self) -> bool:
        return self._current is not None and self._current.withdrawn


def _too_slow() -> Refusal:
    return Refusal(
        "STORE_UNAVAILABLE",
        f"The database did not answer within {limits.STORE_WAIT_SECONDS:g} s; nothing was written to it.",
        details={"outcome": "nothing"},
    )


def _unknown() -> Refusal:
    return Refusal(
        "STORE_UNAVAILABLE",
        "The database began to commit and did not come back; whether it was written cannot be said yet.",
        details={"outcome": UNKNOWN},
    )
