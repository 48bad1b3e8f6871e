"""One door as a process of its own: an order, then connections, until the daemon lets go."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
from typing import NoReturn

import trio

from codespace import limits
from codespace.display import display
from helper.proxy.bounds import Bounds
from helper.proxy.confine import connections
from helper.proxy.connection import Rules, Unheard
from helper.proxy.door import receive
from helper.proxy.network import Internet
from helper.proxy.wire import BadOrder, Daemon, receive_order


def run(control: socket.socket, landlock: int) -> NoReturn:
    """Be the door behind `control` and end with it. Never returns into the keeper."""
    try:
        trio.run(stand, control, landlock)
    except BadOrder as error:
        line = json.dumps({"event": "refused", "problem": display(str(error), limit=1000)}).encode() + b"\n"
        with contextlib.suppress(OSError):
            control.sendall(line, socket.MSG_NOSIGNAL)
    except (EOFError, OSError):
        pass  # the daemon gave up before there was a door
    except Exception:
        sys.excepthook(*sys.exc_info())  # a fault of ours, told on stderr; the closed socket tells the daemon
    finally:
        os._exit(0)  # a look-up that hangs must not hold the end


async def stand(control: socket.socket, landlock: int) -> None:
    """Wait for the order, serve until the daemon closes its side; then tell the last counts.

    Args:
        landlock: The version in force, for the report; 0 for none.
    """
    policy, listener = await receive_order(control)
    daemon = Daemon(control)
    rules = Rules(policy, Internet(), daemon.tell_decision, Bounds(connections=connections()))
    with contextlib.suppress(Unheard):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, listener, rules)
                await daemon.tell({"event": "open", "landlock": landlock})
                await daemon.wait_closed()
                nursery.cancel_scope.cancel()
        except* Unheard:
            pass  # it takes no news any more: the door is closed by now
        counts = dataclasses.asdict(rules.traffic)
        del counts["connections"]
        with trio.move_on_after(limits.PROXY_END_SECONDS):
            await daemon.tell({"event": "end", **counts})
