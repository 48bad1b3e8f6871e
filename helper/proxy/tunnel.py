"""A CONNECT: the first bytes inside are judged before any byte goes out, then bytes are carried.

Inside it must be what the CONNECT said it would be: TLS for the same server name, or plain HTTP,
which is then treated like plain HTTP outside. A pin exempts: there the operator chose the address,
so no name inside can lead elsewhere.
"""

from __future__ import annotations

import trio

from codespace import limits
from helper.proxy import hello, request
from helper.proxy.bounds import Bounds
from helper.proxy.decision import Refused, wrong_tunnel
from helper.proxy.line import Traffic, idle, pump
from helper.proxy.names import Target


async def first_bytes(client: trio.SocketStream, received: bytes, target: Target, bounds: Bounds) -> bytes:
    """Return what the client said first, once it is known to be for `target`; plain HTTP is left unread.

    Args:
        received: What came behind the CONNECT already.
    Raises: Refused, trio.BrokenResourceError, EOFError where the client leaves without a word.
    """
    data = received
    try:
        with trio.fail_after(bounds.hello_seconds):
            while True:
                if data and data[0] != hello.HANDSHAKE:
                    _look_like_http(data, target)
                    return data
                if data and (found := hello.read(data)) is not None:
                    _judge(found, target)
                    return data
                block = await client.receive_some(limits.PROXY_HELLO_BYTES - len(data))
                if not block:
                    raise EOFError
                data += block
    except hello.BadHello as error:
        raise wrong_tunnel("bad-hello", f"The first message of TLS for {target} is not valid. {error}") from error
    except trio.TooSlowError:
        raise wrong_tunnel("not-tls", f"No TLS began for {target}.") from None


def is_tls(data: bytes) -> bool:
    """Return whether `first_bytes` are TLS."""
    return data[0] == hello.HANDSHAKE


def _look_like_http(data: bytes, target: Target) -> None:
    try:
        request.check_start(data)
    except Refused as refused:
        raise wrong_tunnel("not-tls", f"What began for {target} is neither TLS nor HTTP.") from refused


def _judge(found: hello.Hello, target: Target) -> None:
    if found.encrypted:
        raise wrong_tunnel(
            "encrypted-hello",
            f"TLS for {target} carries an encrypted ClientHello, so that nobody can say whom it asks for.",
        )
    if found.server_name is None:
        raise wrong_tunnel("no-server-name", f"TLS for {target} names no server.")
    if found.server_name != target.host:
        raise wrong_tunnel("other-server-name", f"TLS for {target} asks for another server, {found.server_name}.")


async def carry(
    client: trio.SocketStream, server: trio.SocketStream, first: bytes, bounds: Bounds, traffic: Traffic
) -> None:
    """Send `first` on and carry bytes both ways until both sides have ended, or one is gone or idle."""

    def sent(count: int) -> None:
        traffic.sent_bytes += count

    def received(count: int) -> None:
        traffic.received_bytes += count

    with idle(bounds) as watch:
        try:
            if first:
                await server.send_all(first)
                sent(len(first))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, client, server, watch, sent)
                await pump(server, client, watch, received)
        except* trio.BrokenResourceError:
            pass  # one end is gone: closing both is what is left
