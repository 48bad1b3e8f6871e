"""What the network proxy decided for one run: read from its news with distrust, kept for the run's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codespace import limits
from codespace.contract import NetworkNews
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


_Key = tuple[str, int | None, bool, str, str]


class Decisions:
    """What a run's result shows: different decisions with how often each was made, the latest address, and no more
    than limits.PROXY_DECISIONS of them.

    What is *due* is to be told while the run goes on: a kind at its first time, and again each time that it has
    become ten times as many, so that a flood of requests is no flood of news.
    """

    def __init__(self) -> None:
        self._times: dict[_Key, tuple[Decision, int]] = {}
        self.not_kept = 0
        """Decisions beyond those that are kept; refusals and admissions alike."""
        self.due = 0
        """How often anything became due; what became so behind an earlier value of it is what `news` gives."""
        self._became_due: dict[_Key, int] = {}

    def add(self, decision: Decision) -> bool:
        """Count a decision; returns whether it is the first of its kind, which is worth a line of the log."""
        key = (decision.host or decision.reason, decision.port, decision.allowed, decision.code, decision.rule or "")
        if key not in self._times and len(self._times) >= limits.PROXY_DECISIONS:
            self.not_kept += 1
            self.due += _is_round(self.not_kept)
            return False
        times = self._times[key][1] + 1 if key in self._times else 1
        self._times[key] = (decision, times)
        if _is_round(times):
            self.due += 1
            self._became_due[key] = self.due
        return times == 1

    def rows(self) -> list[dict[str, Any]]:
        """Return plain JSON values for a result, in the order of their first time."""
        return [_row(one, times) for one, times in self._times.values()]

    def news(self, cursor: int) -> NetworkNews | None:
        """Return what became due behind `cursor`, None where nothing did."""
        if self.due <= cursor:
            return None
        rows = tuple(_row(*self._times[key]) for key, due in self._became_due.items() if due > cursor)
        return NetworkNews(rows, self.not_kept, self.due)


def _is_round(number: int) -> bool:
    """Return whether `number` is 1, 10, 100 and so on."""
    return str(number).rstrip("0") == "1"


def _row(one: Decision, times: int) -> dict[str, Any]:
    return {
        "host": one.host,
        "port": one.port,
        "allowed": one.allowed,
        "code": one.code,
        "reason": one.reason,
        "rule": one.rule,
        "times": times,
    }
