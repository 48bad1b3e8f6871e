"""The daemon's end of one open door of the network proxy: its decisions come in, and closing it ends it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any, Final

import trio

from codespace import limits, watches
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner.network.decisions import Decision, End, read_decision

_NEWS_BYTES: Final = 65_536
# No line of a door's is a tenth of this.
_SHOWN_CHARACTERS: Final = 600


class Gone(Exception):
    """A door ended before it opened."""


class Door:
    """One open door. The run must end before, or with, this object."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(control))
        self._unread = bytearray()
        self.landlock = 0
        """The Landlock version that confines the proxy; 0 for none."""
        self.end: End | None = None
        """Told by `close`, once the door has ended in order."""

    async def decision(self) -> Decision | None:
        """Return the next decision; None once the door is closed, whoever closed it.

        Cancel: no decision is lost.
        """
        while (event := await self._event()) is not None:
            try:
                if event["event"] == "decision":
                    return read_decision(event)
                self.end = End(*(int(event[name]) for name in End.__slots__))
            except (KeyError, TypeError, ValueError, OverflowError):  # the last of a number without end
                break  # it speaks nonsense: what comes next from it is no better
        self.drop()  # one that is not heard any more would let requests through that nobody records
        return None

    async def watch(self, take: Callable[[Decision], None]) -> None:
        """Hand every decision to `take` until the door is closed; run it beside the command."""
        while (decision := await self.decision()) is not None:
            take(decision)

    async def close(self, take: Callable[[Decision], None]) -> None:
        """Close the door for good: its listener, and every connection through it. Closing twice is nothing.

        No `watch` or `decision` may be under way any more; what was decided last goes to `take`.
        Cancel: not possible; bounded by limits.PROXY_END_SECONDS, after which the last counts are not known.
        """
        # Protects the last decisions of a run; the door ends by itself when our side closes.
        with (
            trio.CancelScope(shield=True, deadline=trio.current_time() + limits.PROXY_END_SECONDS),
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            await self._stream.send_eof()
            await self.watch(take)
        self._stream.socket.close()

    def drop(self) -> None:
        """Let go at once: the door closes by itself. Never blocks; what was decided last is not known then."""
        self._stream.socket.close()

    async def open(self, rest: bytes) -> None:
        """Send the rest of the order and wait until it is carried out.

        Raises: Gone; Refusal SANDBOX_UNAVAILABLE where the order itself is refused; trio.BrokenResourceError.
        """
        await self._stream.send_all(rest)
        event = await self._event()
        if event is None:
            raise Gone
        if event.get("event") != "open":
            raise unavailable(f"did not open: {display(str(event.get('problem')), limit=_SHOWN_CHARACTERS)}")
        landlock = event.get("landlock")
        if type(landlock) is not int:
            raise unavailable("speaks nonsense")
        self.landlock = landlock

    async def _event(self) -> dict[str, Any] | None:
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            try:
                part = await watches.receive(self._control, _NEWS_BYTES) if searched <= _NEWS_BYTES else b""
            except (OSError, trio.ClosedResourceError):
                part = b""
            if not part:
                return None
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None


async def open_door(control: socket.socket, order: bytes, listener: socket.socket) -> Door:
    """Send a door its order and the listener, and return it once it is open.

    Raises: Gone, Refusal SANDBOX_UNAVAILABLE; the control socket is closed then, and on a cancel.
    """
    door = Door(control)
    try:
        # The socket travels with the first bytes; a send to an empty socket takes at least some.
        sent = socket.send_fds(control, [order], [listener.fileno()], socket.MSG_NOSIGNAL)
        await door.open(order[sent:])
    except (ConnectionError, trio.BrokenResourceError) as error:
        control.close()
        raise Gone from error
    except OSError as error:
        control.close()
        raise unavailable(f"could not be asked ({error.strerror})") from error
    except BaseException:
        control.close()
        raise
    return door


def unavailable(problem: str) -> Refusal:
    """Return the refusal of a run that would have no door."""
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"The network door of the sandbox (codespace-network-proxy) {problem}. Nothing was started.",
        next_step="Call again; if it repeats, ask the operator, for whom `codespace doctor` looks.",
    )
