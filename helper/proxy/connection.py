"""One connection from inside: read a request, decide, tell, act. One request, then it is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from codespace import limits
from helper.proxy import request, tunnel
from helper.proxy.bounds import Bounds
from helper.proxy.decision import Decision, Refused, bad_request, not_listed, unreachable
from helper.proxy.forward import BadAnswer, BadBody, forward
from helper.proxy.hello import UNRECOGNIZED_NAME
from helper.proxy.line import Traffic, dismiss
from helper.proxy.names import Target
from helper.proxy.network import Network
from helper.proxy.policy import Policy, Rule
from helper.proxy.reach import reach
from helper.proxy.request import Request

_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Unheard(Exception):
    """The daemon does not take a decision: the door must close."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What every connection of a door goes by."""

    policy: Policy
    network: Network
    tell: Callable[[Decision], Awaitable[None]]
    """Returns once the daemon has been told; a request goes no further before. Raises: Unheard."""
    bounds: Bounds = field(default_factory=Bounds)
    traffic: Traffic = field(default_factory=Traffic)


async def serve(client: trio.SocketStream, rules: Rules) -> None:
    """Serve the one request of a connection and close it.

    Raises: Unheard; nothing that the client or the network can cause.
    Cancel: both connections are closed at once.
    """
    async with client:
        await _Visit(client, rules).run()


class _Visit:
    def __init__(self, client: trio.SocketStream, rules: Rules) -> None:
        self._client = client
        self._rules = rules
        self._bounds = rules.bounds
        self._target: Target | None = None
        self._rule: Rule | None = None
        self._address: str | None = None
        self._admitted = False
        self._inside_tls = False
        """A refusal can no longer be said in HTTP."""

    async def run(self) -> None:
        """Serve; every refusal is told and, where it can be, answered."""
        try:
            await self._serve()
        except Refused as refused:
            await self._rules.tell(refused.decision(self._target, self._rule))
            answer = UNRECOGNIZED_NAME if self._inside_tls else refused.answer()
            await dismiss(self._client, answer, self._bounds)
        except trio.Cancelled:
            if self._rule is not None and not self._admitted:
                # The run has ended. What a name's servers were asked until then has left the machine: that is told.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.PROXY_TELL_SECONDS):
                    await self._admit()
            raise
        except (EOFError, trio.BrokenResourceError):
            # The client left, or was cut. What was looked up and dialled for it is told all the same.
            if self._address is not None and not self._admitted:
                await self._admit()

    async def _serve(self) -> None:
        head, rest = await self._head(b"")
        asked = request.read(head, rest)
        self._target = asked.target
        self._rule = self._rules.policy.find(asked.target)
        if self._rule is None:
            raise not_listed(asked.target)
        server, self._address = await reach(asked.target, self._rule, self._rules.network, self._bounds)
        async with server:
            if asked.opens_tunnel:
                await self._tunnel(server, self._rule, rest)
            else:
                await self._admit()
                await self._forward(asked, server)

    async def _tunnel(self, server: trio.SocketStream, rule: Rule, first: bytes) -> None:
        assert self._target is not None
        await self._client.send_all(_OPEN)
        if rule.address is None:
            self._inside_tls = True
            first = await tunnel.first_bytes(self._client, first, self._target, self._bounds)
            if not tunnel.is_tls(first):
                self._inside_tls = False
                head, rest = await self._head(first)
                asked = request.read(head, rest, within=self._target)
                await self._admit()
                await self._forward(asked, server)
                return
        await self._admit()
        await tunnel.carry(self._client, server, first, self._bounds, self._rules.traffic)

    async def _head(self, received: bytes) -> tuple[bytes, bytes]:
        """Return a head with its empty line, and what came behind it."""
        data, searched = bytearray(received), 0
        with trio.move_on_after(self._bounds.head_seconds):
            while (end := data.find(request.HEAD_END, searched)) < 0:
                if b"\n" not in data[:searched]:
                    request.check_start(bytes(data))
                if len(data) >= limits.PROXY_HEAD_BYTES:
                    raise bad_request(f"The head is over {limits.PROXY_HEAD_BYTES} bytes.")
                searched = max(0, len(data) - len(request.HEAD_END) + 1)
                block = await self._client.receive_some(limits.PROXY_HEAD_BYTES - len(data))
                if not block:
                    raise EOFError
                data += block
            end += len(request.HEAD_END)
            return bytes(data[:end]), bytes(data[end:])
        raise bad_request("The head did not arrive in time.")

    async def _admit(self) -> None:
        """Tell that the request goes on now."""
        assert self._target is not None
        assert self._rule is not None
        self._admitted = True
        target, rule = self._target, self._rule
        reason = f"{target} is allowed by {rule}."
        await self._rules.tell(Decision(target.host, target.port, True, "listed", reason, str(rule), self._address))

    async def _forward(self, asked: Request, server: trio.SocketStream) -> None:
        try:
            await forward(asked, self._client, server, self._bounds, self._rules.traffic)
        except BadAnswer as error:
            raise unreachable(asked.target, f"the server {error}") from error
        except BadBody as error:
            raise bad_request("The body of the request is not valid.") from error
        await dismiss(self._client, b"", self._bounds)
