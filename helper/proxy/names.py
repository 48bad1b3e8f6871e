"""Host names as clients write them, made into the one form that rules are compared with.

Nothing here resolves anything. An address in any spelling is never a name: `inet_aton` reads
`0x7f.1`, `2130706433` and `0177.0.0.1` as 127.0.0.1, and what a resolver makes of such a text is
its own affair.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# What the last part of an address looks like to inet_aton (and to browsers: "ends in a number").
_NAME_CHARACTERS: Final = 253
_PORT: Final = re.compile(r"[0-9]{1,5}")


class BadTarget(ValueError):
    """The text is neither a name nor an address, or its port is none."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request wants to go, normalised."""

    host: str
    """A lower-case name without a trailing dot, or an address as the client spelt it, without brackets."""
    port: int
    literal: bool = False
    """The host is an address, or something that some resolver would take for one."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(authority: str, default_port: int | None = None) -> Target:
    """Return the target that `host[:port]` names.

    Args:
        default_port: Of the scheme; None where the port must be written.
    Raises: BadTarget, also for user information, a percent sign, an empty or a too long label.
    """
    host, port = _split(authority)
    if port is None:
        if default_port is None:
            raise BadTarget("The port is missing.")
        number = default_port
    elif not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        raise BadTarget("The port is no number from 1 to 65535.")
    else:
        number = int(port)
    if host.startswith("["):
        return Target(_bracketed(host), number, literal=True)
    return _named(host, number)


def _split(authority: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise BadTarget("User information is not allowed in a target.")
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadTarget("The brackets of the address do not close.")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _bracketed(host: str) -> str:
    inner = host[1:-1].lower()
    if not re.fullmatch(r"[0-9a-f:.]+(%[0-9a-z._~-]+)?", inner):
        raise BadTarget("There is no address in the brackets.")
    return inner


def _named(host: str, port: int) -> Target:
    name = host.lower()
    name = name[:-1] if name.endswith(".") else name
    labels = name.split(".")
    if len(name) > _NAME_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadTarget("The host is no name of letters, digits, `-`, `_` and single dots.")
    return Target(name, port, literal=_NUMBER.fullmatch(labels[-1]) is not None)


def canonical(host: str) -> str | None:
    """Return the one spelling of an address; None where `host` is another, or none at all."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def ascii_name(host: str) -> str:
    """Return a name as it travels: lower case, no trailing dot, other letters as IDNA (`xn--`).

    Raises: BadTarget.
    """
    if not host.isascii():
        import idna  # 20 ms, for the few lists that need it

        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except idna.IDNAError as error:
            raise BadTarget("The host is no internationalised name.") from error
    return _named(host, 0).host
