"""Writes what waits in an output to its spool, off the loop, until nothing more will come."""

from __future__ import annotations

import trio

from codespace import limits
from codespace.runner.output.output import Output
from codespace.runner.output.segment import Offsets
from codespace.runner.output.spool import Block, Spool
from codespace.runner.threads import run_patiently

_writing = trio.CapacityLimiter(limits.SPOOL_THREADS)
HANGS = f"the disk did not take it for {limits.SPOOL_STALL_SECONDS:.0f} s"


async def keep(output: Output, spool: Spool) -> None:
    """Write until the output has ended and all of it is on disk, or the spool can take no more.

    Never raises for what the disk does: a spool that fails says why in `spool.failure`, and the output
    keeps its last bytes in memory alone.
    Cancel: what a thread was writing is still written; nothing after it.
    """
    while await output.wait_pending():
        if not await _write(spool, *output.take()):
            output.stop_spooling()
            return
        output.spooled()


async def _write(spool: Spool, starts: Offsets, blocks: list[Block]) -> bool:
    with trio.move_on_after(limits.SPOOL_STALL_SECONDS):
        return await run_patiently(spool.write, starts, blocks, limiter=_writing)
    spool.give_up(HANGS)
    return False
