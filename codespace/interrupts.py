"""What ends a command of a person early: Ctrl-C, and what the system sends instead of it.

By its own default a SIGTERM or a hang-up would leave temporary files and sandboxes there, so they are taken as Ctrl-C:
through its handler, which trio replaces by one that does not break into its own middle.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_trios: Callable[[int, FrameType | None], object] | None = None
"""trio's handler, where it is in force for what was sent to us alone and not for Ctrl-C."""


def hear() -> None:
    """Take what ends a program as Ctrl-C from now on; not where it shall outlive its terminal."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)


def cease() -> None:
    """Take nothing for an end any more: how this program ended is known, and only the interpreter is left.

    Which takes its handlers away: one more signal would be what it ended by.
    """
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)


def run(main: Callable[[], Awaitable[T]], *, at_checkpoints: bool = False) -> T:
    """Run `main` in trio, where it is interrupted in order also if Ctrl-C is ignored, as in the background of a shell.

    Args:
        at_checkpoints: Only where `main` itself waits; never in the middle of other tasks' code.
    Raises: KeyboardInterrupt.
    """
    import trio

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    async def inside() -> T:
        with _ctrl_c_ignored() if ignored else nullcontext():
            return await main()

    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the only one that trio puts its own in place of
    try:
        return trio.run(inside, restrict_keyboard_interrupt_to_checkpoints=at_checkpoints)
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    global _trios
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _trios = handler if callable(handler) else None
    try:
        yield
    finally:
        _trios = None


def _interrupt(number: int, frame: FrameType | None) -> None:
    interrupt = _trios or signal.getsignal(signal.SIGINT)
    # Ignored in the background of a shell; what was sent to us alone is heard there all the same.
    (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)
