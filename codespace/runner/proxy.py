"""The daemon's end of codespace-network-proxy: a keeper that stays, and one door for each networked run.

A door is told its list once, when it is opened; there is no verb to change it. What it decides comes
back as news, and must be read: a door whose news nobody takes closes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from codespace import limits
from codespace.contract import Domain
from codespace.display import display
from codespace.errors import Refusal

_ARGV: Final = (sys.executable, "-I", "-m", "helper.proxy")
_NEWS_BYTES: Final = 65_536
# No line of a door's is a tenth of this.
_SHOWN_CHARACTERS: Final = 600
# A sentence with two names of 253 characters.


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one request from inside. Texts are escaped."""

    host: str
    """Empty where the request did not name one."""
    port: int | None
    allowed: bool
    """The list admits it; `code` says whether it came through."""
    code: str
    """`listed`; `not-listed`, `address-literal`, `not-global`, `bad-request`, `other-server-name`, `no-server-name`,
    `encrypted-hello`, `bad-hello`, `not-tls`; allowed, but `unresolved` or `unreachable`."""
    reason: str
    """A sentence."""
    rule: str | None
    """The entry of allowed_domains that admits it."""
    address: str | None
    """The address that was dialled."""


@dataclass(frozen=True, slots=True)
class End:
    """The last word of a door that ended in order."""

    turned_away: int
    """Connections over limits.PROXY_CONNECTIONS."""
    sent_bytes: int
    received_bytes: int


def _decision(event: Mapping[str, Any]) -> Decision:
    """Return what the proxy told, escaped: it reads what the network says, and may have been tricked."""
    shown = {
        name: None if event[name] is None else display(str(event[name]), limit=_SHOWN_CHARACTERS)
        for name in ("rule", "address")
    }
    host, code, reason = (display(str(event[name]), limit=_SHOWN_CHARACTERS) for name in ("host", "code", "reason"))
    port = None if event["port"] is None else int(event["port"])
    return Decision(host, port, event["allowed"] is True, code, reason, **shown)


class Decisions:
    """What a run's result shows: different decisions with how often each was made, the latest address, and no more
    than limits.PROXY_DECISIONS of them."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int | None, bool, str, str], tuple[Decision, int]] = {}
        self.not_kept = 0
        """Decisions beyond those that are kept; refusals and admissions alike."""

    def add(self, decision: Decision) -> bool:
        """Count a decision; returns whether it is the first of its kind, which is worth a row of the audit."""
        key = (decision.host, decision.port, decision.allowed, decision.code, decision.rule or "")
        if key not in self._times and len(self._times) >= limits.PROXY_DECISIONS:
            self.not_kept += 1
            return False
        _, times = self._times.get(key, (decision, 0))
        self._times[key] = (decision, times + 1)
        return times == 0

    def rows(self) -> list[dict[str, Any]]:
        """Return plain JSON values for a result, in the order of their first time."""
        return [
            {
                "host": one.host,
                "port": one.port,
                "allowed": one.allowed,
                "code": one.code,
                "reason": one.reason,
                "rule": one.rule,
                "times": times,
            }
            for one, times in self._times.values()
        ]


class Gone(Exception):
    """A door ended before it opened."""


class Door:
    """One open door. The run must end before, or with, this object."""

    def __init__(self, control: socket.socket) -> None:
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
                    return _decision(event)
                self.end = End(*(int(event[name]) for name in End.__slots__))
            except (KeyError, TypeError, ValueError):
                break  # it speaks nonsense: what comes next from it is no better
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

    async def open(self, rest: bytes) -> None:
        """Send the rest of the order and wait until it is carried out.

        Raises: Gone; Refusal SANDBOX_UNAVAILABLE where the order itself is refused; trio.BrokenResourceError.
        """
        await self._stream.send_all(rest)
        event = await self._event()
        if event is None:
            raise Gone
        if event.get("event") != "open":
            raise _unavailable(f"did not open: {display(str(event.get('problem')), limit=_SHOWN_CHARACTERS)}")
        self.landlock = int(event.get("landlock", 0))

    async def _event(self) -> dict[str, Any] | None:
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            try:
                part = await self._stream.receive_some(_NEWS_BYTES) if searched <= _NEWS_BYTES else b""
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                part = b""
            if not part:
                return None
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            event = json.loads(line)
        except ValueError:
            return None
        return event if isinstance(event, dict) else None


class Proxy:
    """Starts the keeper when it is first needed, and opens doors."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._control: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._spare: socket.socket | None = None
        """A door that waits for its order: making one takes 6 ms, which no run needs to wait for."""
        self._closed = False

    async def warm(self) -> None:
        """Start the keeper, which then takes 0.3 s to load, so that no run waits for it. Raises: Refusal."""
        async with self._lock:
            keeper = await self._keeper()
            if self._spare is None:
                self._spare = _ask(keeper)

    async def open(self, domains: Iterable[Domain], listener: socket.socket) -> Door:
        """Return a door that serves `listener` by `domains`, and by nothing else, until it is closed.

        Args:
            listener: From codespace.sandbox.listener; it is this call's, and closed whatever happens.
        Raises: Refusal SANDBOX_UNAVAILABLE, SHUTTING_DOWN; the run must not start then.
        Cancel: no door is left.
        """
        rules = [{"host": rule.host, "port": rule.port, "address": rule.address} for rule in domains]
        order = json.dumps({"rules": rules}).encode() + b"\n"
        problem = "did not open in time"
        with listener, trio.move_on_after(limits.PROXY_START_SECONDS):
            for attempt in range(3):  # a door that was killed meanwhile has served nothing: another is as good
                async with self._lock:
                    if attempt == 2:
                        await self._discard()  # a keeper whose doors die is being killed itself
                    control = await self._take()
                try:
                    return await _open(control, order, listener)
                except Gone:
                    problem = "ended before it opened"
        raise _unavailable(problem)

    async def _take(self) -> socket.socket:
        """Return our end of a door's control socket: the spare one, while another is made."""
        for _ in range(2):
            keeper = await self._keeper()
            door, self._spare = self._spare or _ask(keeper), _ask(keeper)
            if door is not None:
                return door
            await self._discard()  # the keeper was killed; a new one is as good
        raise _unavailable("does not answer")

    async def _keeper(self) -> socket.socket:
        if self._closed:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping. Nothing was started.")
        if self._control is not None:
            return self._control
        try:
            control, program = await trio.to_thread.run_sync(_start)
        except OSError as error:
            raise _unavailable(f"could not be started ({error.strerror})") from error
        self._control, self._program = control, program
        return control

    async def _discard(self) -> None:
        control, self._control = self._control, None
        program, self._program = self._program, None
        spare, self._spare = self._spare, None
        for end in (control, spare):
            if end is not None:
                end.close()
        if program is not None:
            # Protects the wait for its end; every door is closed by now, and a keeper that hangs is killed.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * limits.PROXY_END_SECONDS):
                await trio.to_thread.run_sync(_end, program, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """End the keeper and open no more doors; close the doors before.

        Cancel: not possible; bounded by twice limits.PROXY_END_SECONDS.
        """
        self._closed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * limits.PROXY_END_SECONDS):
            async with self._lock:
                await self._discard()


def _ask(keeper: socket.socket) -> socket.socket | None:
    """Have a door made and return our end of its control socket; None where the keeper is gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        ours.setblocking(False)
        try:
            socket.send_fds(keeper, [b"door"], [theirs.fileno()], socket.MSG_NOSIGNAL)
        except OSError:
            ours.close()
            return None
    return ours


async def _open(control: socket.socket, order: bytes, listener: socket.socket) -> Door:
    door = Door(control)
    try:
        # The socket travels with the first bytes; a send to an empty socket takes at least some.
        sent = socket.send_fds(control, [order], [listener.fileno()], socket.MSG_NOSIGNAL)
        await door.open(order[sent:])
    except (OSError, trio.BrokenResourceError) as error:
        control.close()
        raise Gone from error
    except BaseException:
        control.close()
        raise
    return door


def _unavailable(problem: str) -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"The network door of the sandbox (codespace-network-proxy) {problem}. Nothing was started.",
        next_step="Call again; if it repeats, check allowed_domains and run `codespace doctor`.",
    )


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        ours.setblocking(False)
        program = subprocess.Popen(
            _ARGV,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            start_new_session=True,  # a Ctrl-C in the daemon's terminal is not meant for it
        )
        undo.pop_all()
    return ours, program


def _end(program: subprocess.Popen[bytes]) -> None:
    try:
        program.wait(limits.PROXY_END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
