"""Which addresses are out on the internet, for everybody: the only ones that a name may lead to.

The list is written out, since Python's own `is_global` changed from release to release and says
nothing of addresses that hold another one. A name that leads to anything else is refused, whoever
runs its name server: that is how pages and packages reach routers, databases and metadata services.
"""

from __future__ import annotations

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_REFUSED: Final = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "a carrier's own"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's own"),  # Azure's agent: outside every registry's list
        ("169.254.0.0/16", "link-local"),  # with the metadata services
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("2001::/23", "protocol assignments"),  # Teredo, ORCHID and benchmarking among them
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3fff::/20", "documentation"),
    )
)
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# All that is handed out of IPv6. Loopback, link-local, site-local, unique local (fc00::/7), multicast,
# mapped and compatible IPv4 and NAT64 (64:ff9b::/96, 64:ff9b:1::/48) all lie outside.


def problem(text: str) -> str | None:
    """Return what is wrong with an address that a name led to, None where it is global.

    Args:
        text: As `getaddrinfo` gives it; a zone id is never right.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "no address"
    if address.version == 6 and (address.scope_id is not None or address not in _UNICAST):
        return "not global"
    for network, what in _REFUSED:
        if address in network:
            return what
    return None if address.is_global and not address.is_multicast else "not global"
