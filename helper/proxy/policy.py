"""The guest list of one run: which rule, if any, lets a target through. Decided before any look-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from helper.proxy.names import BadTarget, Target, ascii_name, canonical

_PORTS: Final = frozenset({80, 443})
# Of a rule that names none.


class BadPolicy(ValueError):
    """A rule that cannot be kept; the run must not begin."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of allowed_domains."""

    host: str
    """A name, `*.` and a name (everything below it, not it itself), or `*`; for a pin also an address."""
    port: int | None = None
    """None: 80 and 443."""
    address: str | None = None
    """A pin: the operator says where the name leads, so nothing is looked up and nothing is checked."""

    def admits(self, target: Target) -> bool:
        """Return whether `target` is this rule's."""
        if target.port not in (_PORTS if self.port is None else (self.port,)):
            return False
        if target.literal:  # only a pin of exactly this address, in exactly its canonical spelling
            return self.address is not None and self.host == target.host == canonical(target.host)
        if self.host == "*":
            return True
        return target.host.endswith(self.host[1:]) if self.host.startswith("*.") else target.host == self.host

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{self.host}{port}" if self.address is None else f"{self.host}{port}={self.address}"


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules of one run."""

    rules: tuple[Rule, ...]

    @classmethod
    def load(cls, entries: Iterable[Mapping[str, Any]]) -> Policy:
        """Return the policy that plain JSON values describe. Raises: BadPolicy."""
        return cls(tuple(_rule(entry) for entry in entries))

    def find(self, target: Target) -> Rule | None:
        """Return the rule that admits `target`, None where none does; a pin goes before others."""
        admitting = [rule for rule in self.rules if rule.admits(target)]
        return min(admitting, key=lambda rule: rule.address is None, default=None)


def _rule(entry: Mapping[str, Any]) -> Rule:
    host, port, address = entry["host"], entry.get("port"), entry.get("address")
    try:
        if address is not None:
            address = canonical(address)
            if address is None:
                raise BadPolicy(f"{entry['address']!r} is no address.")
        if port is not None and not 0 < int(port) < 65_536:
            raise BadPolicy(f"{port!r} is no port.")
        return Rule(_host(host), port, address)
    except (BadTarget, TypeError, AttributeError) as error:
        raise BadPolicy(f"{host!r} is no name that can be allowed.") from error


def _host(host: str) -> str:
    if host == "*":
        return host
    if host.startswith("*."):
        return f"*.{ascii_name(host[2:])}"
    return canonical(host) or ascii_name(host)
