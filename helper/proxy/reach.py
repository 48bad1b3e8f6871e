"""From an admitted target to a connection: look up once, check every address, dial a checked one."""

from __future__ import annotations

import os

import trio

from helper.proxy import addresses, decision
from helper.proxy.bounds import Bounds
from helper.proxy.names import Target
from helper.proxy.network import Network
from helper.proxy.policy import Rule


async def reach(target: Target, rule: Rule, network: Network, bounds: Bounds) -> tuple[trio.SocketStream, str]:
    """Return a connection and the address that it leads to.

    One address that is not global refuses the name: a server that mixes public and private answers
    waits for the client that tries them all.
    Raises: Refused.
    Cancel: no connection is left.
    """
    found = [rule.address] if rule.address is not None else await _checked(target, network, bounds)
    why = "no answer in time"
    with trio.move_on_after(bounds.dial_seconds):
        for address in found:
            with trio.move_on_after(bounds.dial_each_seconds):
                try:
                    return await network.connect(address, target.port), address
                except OSError as error:
                    why = os.strerror(error.errno) if error.errno else "no connection"
    raise decision.unreachable(target, why)


async def _checked(target: Target, network: Network, bounds: Bounds) -> list[str]:
    try:
        with trio.fail_after(bounds.resolve_seconds):
            found = await network.resolve(target.host)
    except trio.TooSlowError:
        raise decision.unresolved(target, "the name server did not answer in time") from None
    except (OSError, UnicodeError) as error:
        raise decision.unresolved(target, "the name server knows none") from error
    if not found:
        raise decision.unresolved(target, "the name server knows none")
    if len(found) > bounds.addresses:
        raise decision.unresolved(target, f"it has more than {bounds.addresses}")
    for address in found:
        what = addresses.problem(address) or ("this machine" if network.own(address) else None)
        if what is not None:
            raise decision.not_global(target, what)
    return found
