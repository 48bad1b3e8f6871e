"""A street with a door and houses: real sockets on loopback behind names and public addresses that a test makes up.

The stub network stands where the resolver and the routing table are; all that is decided, checked and
carried is the product's. Every look-up and every dial is counted.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from helper.proxy.bounds import Bounds
from helper.proxy.connection import Rules
from helper.proxy.decision import Decision
from helper.proxy.door import receive
from helper.proxy.policy import Policy

SECONDS = 60.0
"""No exchange of a test takes a hundredth of this, except on a slow machine."""
PUBLIC = "93.184.216.34"
HANG = "hang"

Talk = Callable[[trio.SocketStream], Awaitable[None]]


class House:
    """A sentinel server: whom it let in, and every byte that reached it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.received = bytearray()
        self.visited = trio.Event()
        self.heard = trio.Event()


class Street:
    """The network as a door sees it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.names: dict[str, list[list[str]]] = {}
        """Answers by name, one after the other; the last one stays."""
        self.mine: set[str] = set()
        self.lookups: dict[str, int] = defaultdict(int)
        self.looking = trio.Event()
        self.dials: list[tuple[str, int]] = []
        self.houses: dict[tuple[str, int], House | str] = {}
        self.decisions: list[Decision] = []
        self.decided = trio.Event()
        self.recorded = trio.Event()
        """Unset, no decision is taken down."""
        self.recorded.set()
        self.door = 0

    def end(self) -> None:
        """Have the run end: the door and all behind it is cancelled."""
        self._nursery.cancel_scope.cancel()

    async def tell(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.decided.set()
        await self.recorded.wait()

    async def resolve(self, host: str) -> list[str]:
        self.lookups[host] += 1
        self.looking.set()
        answers = self.names.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == [HANG]:
            await trio.sleep_forever()
        return answer

    def own(self, address: str) -> bool:
        return address in self.mine

    async def connect(self, address: str, port: int) -> trio.SocketStream:
        self.dials.append((address, port))
        house = self.houses.get((address, port))
        if house is None:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if isinstance(house, str):
            await trio.sleep_forever()
        assert isinstance(house, House)
        return await trio.open_tcp_stream("127.0.0.1", house.port)

    async def build(self, address: str, port: int, talk: Talk | None = None) -> House:
        """Put a server at `address:port`; it says nothing unless `talk` does."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        house = House(listener.socket.getsockname()[1])
        self.houses[address, port] = house

        async def let_in(visitor: trio.SocketStream) -> None:
            house.connections += 1
            house.visited.set()
            try:
                await (talk or _hear(house))(visitor)
                with trio.move_on_after(SECONDS):
                    await visitor.send_eof()
                    while await visitor.receive_some():
                        pass
            except trio.BrokenResourceError:
                pass

        self._nursery.start_soon(trio.serve_listeners, let_in, [listener])
        return house

    async def host(self, name: str, talk: Talk | None = None, *, port: int = 80, address: str = PUBLIC) -> House:
        """A name that leads to a public address with a server behind it."""
        self.names[name] = [[address]]
        return await self.build(address, port, talk)

    async def enter(self) -> trio.SocketStream:
        """Connect to the door."""
        return await trio.open_tcp_stream("127.0.0.1", self.door)

    async def ask(self, sent: bytes) -> bytes:
        """Send bytes on a connection of their own and return all that comes back."""
        with trio.fail_after(SECONDS):
            async with await self.enter() as stream:
                await stream.send_all(sent)
                return await everything(stream)

    def last(self) -> Decision:
        """The latest decision."""
        return self.decisions[-1]


def _hear(house: House) -> Talk:
    async def hear(visitor: trio.SocketStream) -> None:
        while block := await visitor.receive_some():
            house.received += block
            house.heard.set()

    return hear


async def everything(stream: trio.abc.ReceiveStream) -> bytes:
    """All bytes until the end; a reset is an end too."""
    data = b""
    try:
        while block := await stream.receive_some():
            data += block
    except trio.BrokenResourceError:
        pass
    return data


async def until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Bytes until they end with `end`."""
    data = b""
    with trio.fail_after(SECONDS):
        while not data.endswith(end):
            block = await stream.receive_some()
            assert block, data
            data += block
    return data


def replies(answer: bytes, *, heard: bytearray | None = None) -> Talk:
    """A server that reads one head (and what came with it) and gives a fixed answer."""

    async def talk(visitor: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            block = await visitor.receive_some()
            if not block:
                return
            data += block
        if heard is not None:
            heard.extend(data)
        await visitor.send_all(answer)

    return talk


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def street(
    *rules: str | Mapping[str, Any], bounds: Bounds | None = None, listener: socket.socket | None = None
) -> AsyncIterator[Street]:
    """A door with `rules` (texts as in allowed_domains, or pins) and a street behind it.

    Args:
        listener: Where the door is; on loopback here where left out.
    """
    async with trio.open_nursery() as nursery:
        built = Street(nursery)
        listener = listener or socket.create_server(("127.0.0.1", 0), backlog=2048)
        built.door = listener.getsockname()[1]
        policy = Policy.load(entries(rules))
        nursery.start_soon(receive, listener, Rules(policy, built, built.tell, bounds or Bounds()))
        yield built
        nursery.cancel_scope.cancel()


def entries(rules: Sequence[str | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rules as the daemon sends them."""
    found: list[Mapping[str, Any]] = []
    for rule in rules:
        if isinstance(rule, str):
            host, colon, port = rule.partition(":")
            found.append({"host": host, "port": int(port) if colon else None, "address": None})
        else:
            found.append(rule)
    return found
