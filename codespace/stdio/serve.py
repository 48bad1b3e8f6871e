"""Serving one client over the claimed descriptors until it leaves or the daemon stops."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

import trio

from codespace.protocol.server import McpServer
from codespace.protocol.wire import serve_lines
from codespace.stdio.claim import Claimed
from codespace.stdio.lines import is_closed, open_stream, read_lines


async def serve_stdio(server: McpServer, claimed: Claimed, *, stop: trio.Event) -> None:
    """Serve until end of input, a vanished reader, or `stop`.

    Args:
        claimed: From `claim`; closed at the end.
        stop: Reading ends at once, answers under way get limits.STDIO_FLUSH_SECONDS.
    Cancel: ends at once; a message that is being written may be cut, its reader is being left anyway.
    """
    reader, writer = open_stream(claimed.input_fd), open_stream(claimed.output_fd)
    try:
        async with aclosing(read_lines(reader)) as lines:
            await serve_lines(
                server,
                lines,
                writer.send_all,
                stop=stop,
                is_closed=partial(is_closed, claimed.input_fd),
            )
    except* (trio.BrokenResourceError, OSError):
        pass  # the client closed its end while something was being written: it is gone, as at end of input
    finally:
        # Closing a descriptor does not wait; without the shield a cancelled door would leave both open.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await reader.aclose()
            await writer.aclose()
