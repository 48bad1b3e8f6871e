"""The proxy's own sight of the network: look a name up once, connect to an address. Decides nothing."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final, Protocol

import trio

from codespace import limits

_lookups: Final = trio.CapacityLimiter(limits.PROXY_LOOKUPS)


class Network(Protocol):
    """What a door needs of the network. Each may raise OSError."""

    async def resolve(self, host: str) -> list[str]:
        """Return every address of `host` now, without duplicates, the ones to try first in front."""

    def own(self, address: str) -> bool:
        """Return whether `address` is this machine's."""

    async def connect(self, address: str, port: int) -> trio.SocketStream:
        """Return a connection to exactly `address`."""


class Internet:
    """The real one."""

    async def resolve(self, host: str) -> list[str]:
        """Ask the system's resolver.

        Cancel: the thread goes on until the resolver gives up, and keeps its place among PROXY_LOOKUPS.
        """
        # The dot keeps the system's search list out: `name.listed` must not become `name.listed.corp`.
        name = f"{host}." if "." in host else host
        found = await trio.to_thread.run_sync(_look_up, name, limiter=_lookups, abandon_on_cancel=True)
        return list(dict.fromkeys(found))

    def own(self, address: str) -> bool:
        """Ask the routing table: a datagram socket that is connected sends nothing.

        A public address of this machine reaches its services from behind its own firewall.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            try:
                probe.connect((address, 9))
            except OSError:
                return False  # no way there: connecting will say so
            return str(probe.getsockname()[0]) == address

    async def connect(self, address: str, port: int) -> trio.SocketStream:
        """Open a TCP connection and look who is at the other end. Cancel: it is closed."""
        family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
        connecting = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await connecting.connect((address, port))
            if ipaddress.ip_address(connecting.getpeername()[0]) != ipaddress.ip_address(address):
                raise OSError(errno.ECONNREFUSED, "the peer has another address")
        except BaseException:
            connecting.close()
            raise
        return trio.SocketStream(connecting)


def _look_up(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for _, _, _, _, address in found]
