"""Tells the gateway of one process as it goes on: how much it wrote, and how it ended."""

from __future__ import annotations

from typing import Final

import trio

from codespace import limits
from codespace.contract import ProcessState, Runner
from codespace.errors import Refusal
from codespace.runner.codec import codec
from codespace.runner.line import Line

_STATE: Final = codec(ProcessState)


async def tell_news(runner: Runner, line: Line, process_id: str) -> None:
    """Send its state when there is output, now and then while it floods, and once it has ended; then return."""
    try:
        told = 0
        while True:
            await runner.wait_output(process_id, cursor=told, stream="combined")
            state = runner.process(process_id)
            if state.state == "exited" or state.output_total["combined"] == told:
                break  # nothing will follow
            told = state.output_total["combined"]
            _send(line, state)
            await trio.sleep(limits.WORKER_NEWS_SECONDS)
        _send(line, await runner.wait_exit(process_id))
    except Refusal:
        return  # it was forgotten meanwhile, which the gateway does to ended ones only


def _send(line: Line, state: ProcessState) -> None:
    line.send_nowait({"news": _STATE.encode(state)})
