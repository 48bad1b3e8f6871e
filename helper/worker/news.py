"""Tells the gateway of one process as it goes on: what is known of it, and at once how it ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from codespace import limits
from codespace.contract import ProcessState, Runner
from codespace.errors import Refusal
from codespace.runner.worker.codec import codec
from codespace.runner.worker.line import Line

_STATE: Final = codec(ProcessState)


async def tell_news(runner: Runner, line: Line, process_id: str) -> None:
    """Send its state at once, when there is news, now and then while it floods, and once it has ended; then return."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_state, runner, line, process_id)
        nursery.start_soon(_tell_decisions, runner, line, process_id)
        with suppress(Refusal):  # it was forgotten meanwhile, which the gateway does to ended ones only
            _send(line, await runner.wait_exit(process_id))
        nursery.cancel_scope.cancel()


async def _tell_state(runner: Runner, line: Line, process_id: str) -> None:
    told: ProcessState | None = None
    with suppress(Refusal):  # as above
        while (state := runner.process(process_id)).state == "running":
            if state != told:
                told = state
                _send(line, state)
                await trio.sleep(limits.WORKER_NEWS_SECONDS)
            with trio.move_on_after(limits.WORKER_STATE_SECONDS):
                await runner.wait_output(process_id, cursor=state.output_total["combined"], stream="combined")


async def _tell_decisions(runner: Runner, line: Line, process_id: str) -> None:
    cursor = 0
    with suppress(Refusal):  # as above
        while (news := await runner.wait_decisions(process_id, cursor=cursor)) is not None:
            _send(line, runner.process(process_id))
            cursor = news.cursor


def _send(line: Line, state: ProcessState) -> None:
    line.send_nowait({"news": _STATE.encode(state)})
