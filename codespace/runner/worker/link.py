"""The gateway's end of one connection to a worker: requests by number, their cancellation, news, and one end.

It knows no verb's meaning. When the connection ends, every request under way is `Lost`, with the
reason; nothing of a worker that broke the protocol is believed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import structlog
import trio

from codespace import limits
from codespace.contract import Chunk, ProcessState
from codespace.errors import Refusal
from codespace.runner.output.segment import INDEX
from codespace.runner.worker.codec import codec
from codespace.runner.worker.frames import BadFrame, TooLarge
from codespace.runner.worker.line import Line
from codespace.runner.worker.verbs import Verb

log = structlog.get_logger("codespace.runner")

_STATE: Final = codec(ProcessState)


class Lost(Exception):
    """There is no answer. `sent`: whether the worker may have got the request."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


@dataclass(slots=True)
class _Pending:
    verb: Verb
    task: trio.lowlevel.Task
    landed: Callable[[Any], None]
    until: float
    raise_cancel: Callable[[], Any] | None = None
    answer: Callable[[], Any] | None = None
    """Gives the answer, or raises it."""


class Link:
    """One connection whose hello is done.

    Args:
        news: Told each state that the worker says of a process.
    """

    def __init__(self, line: Line, news: Callable[[ProcessState], None]) -> None:
        self._line = line
        self._news = news
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._arrived = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._why: str | None = None
        self.over = False
        """Whether nothing can be asked any more."""
        self.in_order = True
        """Whether the other side may be trusted to end by itself: it neither hangs nor broke the protocol."""

    # --- asking ---

    async def call(self, verb: Verb, arguments: Mapping[str, Any], at: float, landed: Callable[[Any], None]) -> Any:
        """Ask the worker and return its answer.

        Args:
            at: The gateway's wall clock, by which the worker stores times.
            landed: Given the answer the moment it comes, before any news behind it.
        Raises: Refusal, as the verb does; LIMIT_REACHED where the request is too large. Lost.
        Cancel: the verb is cancelled in the worker, and its answer to that is waited for, as if it ran here;
            a result that had come about is returned.
        """
        await self._line.wait_room()
        if self.over:
            raise Lost("it ended before", sent=False)
        self._number += 1
        number = self._number
        request = {"id": number, "verb": verb.name, "at": at, "arguments": verb.encode_arguments(arguments)}
        try:
            sent = self._line.send_nowait(request)
        except TooLarge as large:
            raise Refusal(
                "LIMIT_REACHED",
                f"The request is too large for the runner's wire ({large}). Nothing was done.",
                next_step="Send it in smaller pieces.",
                details={"limit": "WORKER_FRAME_BYTES", "maximum": limits.WORKER_FRAME_BYTES},
            ) from None
        if not sent:
            raise Lost("it ended before", sent=False)
        return await self._answer(number, verb, landed)

    async def _answer(self, number: int, verb: Verb, landed: Callable[[Any], None]) -> Any:
        pending = _Pending(verb, trio.lowlevel.current_task(), landed, trio.current_time() + _seconds(verb))

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            pending.raise_cancel = raise_cancel
            pending.until = min(pending.until, trio.current_time() + limits.WORKER_CANCEL_SECONDS)
            self._line.send_nowait({"cancel": number})
            return trio.lowlevel.Abort.FAILED

        self._pending[number] = pending
        self._arrived.unpark_all()
        await trio.lowlevel.wait_task_rescheduled(abort)
        assert pending.answer is not None
        return pending.answer()

    def tell(self, verb: Verb, arguments: Mapping[str, Any]) -> None:
        """Send what has no answer."""
        if not self.over:
            self._line.send_nowait({"tell": verb.name, "arguments": verb.encode_arguments(arguments)})

    def close(self) -> None:
        """End the connection, which has the worker end in order."""
        self._scope.cancel()

    # --- hearing ---

    async def run(self) -> str:
        """Serve the connection to its end and return why it ended. Never raises; cancel ends it too."""
        why = "the connection ended"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._line.write)
                    nursery.start_soon(self._watch)
                    while (message := await self._line.receive()) is not None:
                        self._hear(message)
                    nursery.cancel_scope.cancel()
        except* BadFrame as bad:
            self.in_order = False
            why = f"it broke the protocol: {_first(bad)}"
        finally:
            self._end(self._why or why)
        return self._why or why

    def _end(self, why: str) -> None:
        self.over = True
        self._line.close()
        pending, self._pending = self._pending, {}
        for each in pending.values():
            each.answer = _raising(Lost(why, sent=True))
            trio.lowlevel.reschedule(each.task)

    def _hear(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._land(message)
        elif message.keys() == {"news"}:
            self._news(_whole(_STATE.decode(message["news"])))
        elif message.keys() == {"bye"}:
            self._why = f"it gave up: {str(message['bye'])[: limits.SHOWN_NAME_CHARACTERS]}"
        else:
            raise BadFrame("a message is neither an answer nor news")

    def _land(self, message: dict[str, Any]) -> None:
        number = message.pop("id")
        pending = self._pending.get(number) if type(number) is int else None
        if pending is None or len(message) != 1:
            raise BadFrame("an answer belongs to no question")
        pending.answer = self._read(pending, *message.popitem())
        del self._pending[number]  # not before: where it cannot be believed, it is lost like the others
        trio.lowlevel.reschedule(pending.task)

    def _read(self, pending: _Pending, kind: str, body: Any) -> Callable[[], Any]:
        if kind == "ok":
            result = pending.verb.decode_result(body)
            if isinstance(result, (ProcessState, Chunk)):
                _whole(result if isinstance(result, ProcessState) else result.state)
            pending.landed(result)
            return lambda: result
        if kind == "refusal" and isinstance(body, dict):
            return _raising(_refusal(body))
        if kind == "cancelled" and pending.raise_cancel is not None:
            return pending.raise_cancel
        if kind == "fault":
            return _raising(Refusal("INTERNAL", "The runner met a fault of its own; its log has the details."))
        raise BadFrame("an answer is of no known kind")

    async def _watch(self) -> None:
        """End the connection to a worker that hangs.

        A look now and then will do: these deadlines are minutes, and cancels move them.
        """
        while True:
            while not self._pending:
                await self._arrived.park()
            await trio.sleep(limits.WORKER_LOOK_SECONDS)
            now = trio.current_time()
            late = [each.verb.name for each in self._pending.values() if each.until < now]
            if late:
                self.in_order = False
                self._why = f"it hangs: no answer to `{late[0]}`"
                self._scope.cancel()


def _seconds(verb: Verb) -> float:
    # How long one waits for what a command does is the caller's affair, and the command's time limit bounds it.
    return float("inf") if verb.name in ("wait_output", "wait_decisions") else limits.WORKER_VERB_SECONDS


def _whole(state: ProcessState) -> ProcessState:
    """Return a state that tells of every stream: they are looked up by name. Raises: BadFrame."""
    if state.output_total.keys() != INDEX.keys():
        raise BadFrame("a state does not tell of every stream")
    return state


def _first(group: BaseExceptionGroup[BadFrame]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def answer() -> NoReturn:
        raise error

    return answer


def _refusal(body: Mapping[str, Any]) -> Refusal:
    texts = ("code", "message", "next_step", "operation_id", "approval_id", "process_id")
    known = {*texts, "retryable", "details"}
    if body.keys() - known or any(not isinstance(body[name], str) for name in texts if name in body):
        raise BadFrame("a refusal is none")
    if not isinstance(body.get("retryable", False), bool) or not isinstance(body.get("details", {}), dict):
        raise BadFrame("a refusal is none")
    return Refusal.from_body(body)
