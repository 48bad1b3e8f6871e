"""Who can reach the door, and whether that is safe without more being said. Decided before anything listens."""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from codespace import limits
from codespace.settings.fault import SettingsError

_HOST_CHARACTERS: Final = frozenset(string.ascii_lowercase + string.digits + ".-:[]_")
_FOUND: Final = frozenset({"127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 - named, not bound
_TOKEN_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the door listens."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """The `host:port` of a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Where clients find MCP. A wildcard address is shown as loopback."""
        if _is_wildcard(self.host):
            return Address("127.0.0.1", self.port).url
        return f"http://{self.authority}/mcp"

    @property
    def console_url(self) -> str:
        """Where browsers find the console."""
        return f"http://{console_host(self)}/console/"


def check(host: str, *, token: str | None, allowed_hosts: Sequence[str], no_auth: bool) -> None:
    """Refuse to open a door that strangers could reach without a token, or with one that is soon guessed.

    Args:
        token: The one that the operator configured; a generated one is for this machine only.
    Raises: SettingsError naming the key and the fix.
    Source: limits.PUBLIC_TOKEN_CHARACTERS.
    """
    for allowed in allowed_hosts:
        if not allowed or not set(allowed.lower()) <= _HOST_CHARACTERS:
            raise SettingsError(
                "CODESPACE_ALLOWED_HOSTS", f"`{allowed}` is no host name.", "Write names such as `box.example:8787`."
            )
    if token is not None and not (token and set(token) <= _TOKEN_CHARACTERS):
        raise SettingsError(
            "CODESPACE_HTTP_TOKEN",
            "The token is empty or has characters that no header can carry.",
            "Use printable ASCII characters without spaces.",
        )
    public = not (is_loopback(host) and all(map(_is_local_name, allowed_hosts)))
    if no_auth and public:
        raise SettingsError(
            "--no-auth",
            "Without a token the door may only be reachable from this machine, and it is public.",
            "Leave out --no-auth, or listen on 127.0.0.1 without CODESPACE_ALLOWED_HOSTS.",
        )
    if public and token is None:
        raise SettingsError(
            "CODESPACE_HTTP_TOKEN",
            "The door would be reachable from other machines or under a public name, and no token is set.",
            "Set a long random token, or listen on 127.0.0.1 without CODESPACE_ALLOWED_HOSTS.",
        )
    if public and token is not None and len(token) < limits.PUBLIC_TOKEN_CHARACTERS:
        raise SettingsError(
            "CODESPACE_HTTP_TOKEN",
            "The door would be reachable from other machines or under a public name, and the token has under "
            f"{limits.PUBLIC_TOKEN_CHARACTERS} characters.",
            "Set a long random token, or listen on 127.0.0.1 without CODESPACE_ALLOWED_HOSTS.",
        )


def require_findable(bound: str) -> None:
    """Refuse a console at an address to which its own name leads no browser.

    Raises: SettingsError naming the key and the fix.
    """
    if bound not in _FOUND:
        raise SettingsError(
            "CODESPACE_HTTP_HOST",
            f"No browser finds the console at {bound}: its name, codespace.localhost, means 127.0.0.1 or ::1.",
            "Use 127.0.0.1 or ::1 (0.0.0.0 or :: for every address), or leave out --console.",
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`. A name other than localhost may be anything."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts(address: Address, allowed_hosts: Sequence[str]) -> frozenset[str]:
    """Return the values of a Host header that are this door's, in lower case.

    Anything else is a name that someone pointed here: DNS rebinding.
    """
    names = ["127.0.0.1", "localhost", "[::1]"]
    if not _is_wildcard(address.host):
        names.append(Address(address.host, 0).authority.removesuffix(":0"))
    own = {f"{name.lower()}:{address.port}" for name in names}
    if address.port == 80:  # browsers leave out the default port
        own |= {name.lower() for name in names}
    for allowed in allowed_hosts:
        own.add(allowed.lower())
        if ":" not in allowed.rsplit("]", 1)[-1]:  # a name without a port: behind a proxy, or here
            own.add(f"{allowed.lower()}:{address.port}")
    return frozenset(own)


def console_host(address: Address) -> str:
    """Return the Host under which browsers find the console: a name of its own, since cookies ignore ports.

    Source: RFC 6761, section 6.3: `.localhost` is loopback for every browser.
    """
    return "codespace.localhost" if address.port == 80 else f"codespace.localhost:{address.port}"


def origins(address: Address, allowed_hosts: Sequence[str]) -> frozenset[str]:
    """Return the values of an Origin header that are this door's own pages."""
    own = {f"http://{host}" for host in hosts(address, allowed_hosts)}
    return frozenset(own | {f"https://{allowed.lower()}" for allowed in allowed_hosts})


def _is_local_name(allowed: str) -> bool:
    """Return whether a Host entry, with a port or without, can only ever mean this machine."""
    name = re.sub(r":\d*\Z", "", allowed.lower()) if allowed.count(":") == 1 or "]" in allowed else allowed.lower()
    return is_loopback(name.strip("[]")) or name.endswith(".localhost")


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
