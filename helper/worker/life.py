"""One worker from its first word to its last: the connection, the runner behind it, and why it ended."""

from __future__ import annotations

from typing import Any

import structlog
import trio

from codespace import limits
from codespace.log import configure
from codespace.runner.inprocess import open_runner
from codespace.runner.worker.frames import BadFrame
from codespace.runner.worker.greeting import hello
from codespace.runner.worker.line import Line
from codespace.sandbox.box import Sandbox
from helper.worker import meeting
from helper.worker.service import Clock, Service

log = structlog.get_logger("codespace.worker")


def live(leaf: str, parent: int) -> int:
    """Serve one gateway until it ends the connection; return the exit code."""
    configure(level="info", form="json")
    code = 1
    try:
        secret = meeting.take_secret()
        listener = meeting.listen(leaf)
        trio.run(_serve, listener, leaf, parent, secret)
        code = 0
    except* (BadFrame, OSError) as problems:
        log.error("the runner gives up", problem=_words(problems))
    return code


async def _serve(listener: Any, leaf: str, parent: int, secret: bytes) -> None:
    line = await meeting.accept(listener, leaf, parent)
    try:
        orders = await meeting.read_orders(line, secret)
        configure(level=orders.pop("log_level"), form="json")
        await _work(line, secret, orders)
    except BaseExceptionGroup as group:
        _say_goodbye(line, _words(group))
        raise
    except (BadFrame, OSError) as problem:
        _say_goodbye(line, str(problem))
        raise
    finally:
        line.close()


async def _work(line: Line, secret: bytes, orders: dict[str, Any]) -> None:
    clock = Clock()
    sandbox = Sandbox(orders["bwrap_path"]) if orders.pop("sandbox") else None
    async with open_runner(**orders, wall_clock=clock, sandbox=sandbox) as runner:
        line.send_nowait(hello(secret, "worker"))
        await Service(line, runner, clock).run()


def _say_goodbye(line: Line, why: str) -> None:
    """Say why, if the other side still listens."""
    line.send_nowait({"bye": why[: limits.SHOWN_NAME_CHARACTERS]})


def _words(group: BaseExceptionGroup[Any]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
