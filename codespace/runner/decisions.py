"""What the network proxy decided for one run: read from its news with distrust, kept for the run's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codespace import limits
from codespace.display import display

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


def read_decision(event: Mapping[str, Any]) -> Decision:
    """Return what the proxy told, escaped: it reads what the network says, and may have been tricked.

    Raises: KeyError, TypeError, ValueError.
    """
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
