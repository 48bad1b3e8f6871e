"""Tells the gateway of one process as it goes on: how much it wrote, and at once how it ended."""

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
    """Send its state when there is output, now and then while it floods, and once it has ended; then return."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_output, runner, line, process_id)
        with suppress(Refusal):  # it was forgotten meanwhile, which the gateway does to ended ones only
            _send(line, await runner.wait_exit(process_id))
        nursery.cancel_scope.cancel()


async def _tell_output(runner: Runner, line: Line, process_id: str) -> None:
    told = 0
    with suppress(Refusal):  # as above
        while True:
            await runner.wait_output(process_id, cursor=told, stream="combined")
            state = runner.process(process_id)
            if state.output_total["combined"] == told:
                return  # nothing will follow
            told = state.output_total["combined"]
            _send(line, state)
            await trio.sleep(limits.WORKER_NEWS_SECONDS)


def _send(line: Line, state: ProcessState) -> None:
    line.send_nowait({"news": _STATE.encode(state)})
