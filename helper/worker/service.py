"""Serves the verbs on the connection: each request in a task of its own, cancelled where the gateway says so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import structlog
import trio

from codespace import limits
from codespace.contract import Runner
from codespace.errors import Refusal
from codespace.runner.worker.frames import BadFrame, TooLarge
from codespace.runner.worker.line import Line
from codespace.runner.worker.verbs import TELLINGS, VERBS, Verb
from helper.worker.news import tell_news

log = structlog.get_logger("codespace.worker")

_REQUEST: Final = {"id", "verb", "at", "arguments"}


class Clock:
    """The gateway's wall clock, as it was told with the latest request: stored times are by one clock."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead_seconds

    def set(self, now: float) -> None:
        self._ahead_seconds = now - time.time()


class Service:
    """One connection, from behind the hello to its end."""

    def __init__(self, line: Line, runner: Runner, clock: Clock) -> None:
        self._line = line
        self._runner = runner
        self._clock = clock
        self._latest = 0
        self._scopes: dict[int, trio.CancelScope] = {}

    async def run(self) -> None:
        """Serve until the gateway closes the connection.

        Raises: BadFrame, in a group, where it breaks the protocol.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._line.write)
            while (message := await self._line.receive()) is not None:
                self._hear(message, nursery)
            nursery.cancel_scope.cancel()

    def _hear(self, message: dict[str, Any], nursery: trio.Nursery) -> None:
        if message.keys() == _REQUEST:
            self._begin(message, nursery)
        elif message.keys() == {"cancel"}:
            self._cancel(message["cancel"])
        elif message.keys() == {"tell", "arguments"}:
            verb = _verb(TELLINGS, message["tell"])
            by_place, by_name = verb.decode_arguments(message["arguments"])
            getattr(self._runner, verb.name)(*by_place, **by_name)
        else:
            raise BadFrame("a message is no request")

    def _begin(self, message: dict[str, Any], nursery: trio.Nursery) -> None:
        number, at = message["id"], message["at"]
        if type(number) is not int or number <= self._latest:
            raise BadFrame("the numbers of requests must rise")
        if type(at) not in (int, float):
            raise BadFrame("a request has no time")
        verb = _verb(VERBS, message["verb"])
        self._latest = number
        self._clock.set(at)
        try:
            by_place, by_name = verb.decode_arguments(message["arguments"])
        except BadFrame as wrong:  # a fault of one caller in the gateway, which must not cost all the others
            problem = f"The runner was asked for `{verb.name}` in a wrong way: {wrong}. Nothing was done."
            self._answer(number, {"refusal": Refusal("INTERNAL", problem).body()})
            return
        self._scopes[number] = trio.CancelScope()
        nursery.start_soon(self._perform, nursery, number, verb, by_place, by_name)

    def _cancel(self, number: Any) -> None:
        if type(number) is not int or number > self._latest:
            raise BadFrame("what is cancelled was never asked for")
        scope = self._scopes.get(number)  # its answer may be on its way
        if scope is not None:
            scope.cancel()

    async def _perform(
        self, nursery: trio.Nursery, number: int, verb: Verb, by_place: list[Any], by_name: dict[str, Any]
    ) -> None:
        answer: dict[str, Any] = {"cancelled": True}
        try:
            with self._scopes[number]:
                result = await getattr(self._runner, verb.name)(*by_place, **by_name)
                answer = {"ok": verb.encode_result(result)}
        except Refusal as refusal:
            answer = {"refusal": refusal.body()}
        except Exception as problem:
            log.exception("a verb of the runner failed", verb=verb.name)
            answer = {"fault": type(problem).__name__}
        del self._scopes[number]
        await self._line.wait_room()
        self._answer(number, answer)
        if verb.name == "spawn" and "ok" in answer:
            nursery.start_soon(tell_news, self._runner, self._line, by_place[1].process_id)

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        try:
            self._line.send_nowait({"id": number, **answer})
        except TooLarge as large:
            refusal = Refusal(
                "OUTPUT_LIMIT",
                f"The answer is too large for the runner's wire ({large}).",
                details={"limit": "WORKER_FRAME_BYTES", "maximum": limits.WORKER_FRAME_BYTES},
            )
            self._line.send_nowait({"id": number, "refusal": refusal.body()})


def _verb(table: Mapping[str, Verb], name: Any) -> Verb:
    verb = table.get(name) if isinstance(name, str) else None
    if verb is None:
        raise BadFrame("there is no such verb")
    return verb
