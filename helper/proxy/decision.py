"""What was decided about one request, in words for the agent that caused it and the operator behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from codespace.display import display
from helper.proxy.names import Target
from helper.proxy.policy import Rule

_SHOWN_CHARACTERS: Final = 260
# A whole name of 253 and a port.
_PROBLEM_CHARACTERS: Final = 600
# A sentence with two such names. What a client says in their place may be as long as a head or a hello, six times that
# once it is escaped: a line to the daemon that the daemon would take for nonsense, and hear the door no more.


@dataclass(frozen=True, slots=True)
class Decision:
    """One line on the control socket: `allowed` is the list's word, `code` how it went."""

    host: str
    port: int | None
    allowed: bool
    code: str
    reason: str
    rule: str | None = None
    address: str | None = None
    """The checked address that was dialled, as the peer's name."""

    def event(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "event": "decision",
            "host": self.host,
            "port": self.port,
            "allowed": self.allowed,
            "code": self.code,
            "reason": self.reason,
            "rule": self.rule,
            "address": self.address,
        }


class Refused(Exception):
    """A request that goes no further.

    Args:
        status: The answer's, where one can still be given.
        code: A short name for programs.
        problem: What is wrong, one sentence about the target; cut where it is longer than one can be.
        remedy: What the operator or the agent can do about it.
        allowed: The list admits it, and something else went wrong.
    """

    def __init__(self, status: int, code: str, problem: str, remedy: str, *, allowed: bool = False) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.problem = problem if len(problem) <= _PROBLEM_CHARACTERS else f"{problem[:_PROBLEM_CHARACTERS]}..."
        self.remedy = remedy
        self.allowed = allowed

    def decision(self, target: Target | None, rule: Rule | None) -> Decision:
        """Return the record of it."""
        host, port = ("", None) if target is None else (display(target.host, limit=_SHOWN_CHARACTERS), target.port)
        return Decision(host, port, self.allowed, self.code, self.problem, None if rule is None else str(rule))

    def answer(self) -> bytes:
        """Return the whole HTTP answer; its status line says it too, since most clients show only that."""
        phrase = display(f"CodeSpace: {self.problem}").encode("ascii", "replace")
        body = display(f"CodeSpace network door: {self.problem}\n{self.remedy}\n", newlines=True).encode()
        return (
            b"HTTP/1.1 %d %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
            b"X-CodeSpace-Code: %b\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%b"
            % (self.status, phrase, len(body), self.code.encode(), body)
        )


def not_listed(target: Target) -> Refused:
    """The list does not name it."""
    if target.literal:
        return Refused(
            403,
            "address-literal",
            f"{target} is an address, not a name.",
            "Only names can be allowed. For an address of their own the operator can pin one in allowed_domains: "
            '{"host": "127.0.0.1", "port": 8080, "address": "127.0.0.1"}.',
        )
    entry = f'"{target.host}"' if target.port in (80, 443) else f'"{target}"'
    return Refused(
        403,
        "not-listed",
        f"{target} is not in allowed_domains.",
        f"To allow it the operator would add {entry} to allowed_domains of this workspace and restart CodeSpace; "
        "a running command cannot be given more.",
    )


def not_global(target: Target, what: str) -> Refused:
    """The name leads to where no outsider may lead; which address that is stays outside."""
    return Refused(
        403,
        "not-global",
        f"{target} leads to an address that is not public ({what}).",
        "Names may lead to public addresses only. If this service is meant, the operator can pin it to its address in "
        f'allowed_domains: {{"host": "{target.host}", "port": {target.port}, "address": "..."}}.',
    )


def unresolved(target: Target, why: str) -> Refused:
    """The name has no address now."""
    return Refused(
        502, "unresolved", f"{target} has no address: {why}.", "Check the name; then try again.", allowed=True
    )


def unreachable(target: Target, why: str) -> Refused:
    """Nothing answers there."""
    return Refused(502, "unreachable", f"{target} cannot be reached: {why}.", "Try again later.", allowed=True)


def bad_request(problem: str) -> Refused:
    """It is no request that a proxy takes."""
    return Refused(
        400,
        "bad-request",
        problem,
        "Send `GET http://name/path HTTP/1.1` or `CONNECT name:443 HTTP/1.1`, one request a connection.",
    )


def wrong_tunnel(code: str, problem: str) -> Refused:
    """What goes through a tunnel is not for whom the tunnel was opened."""
    return Refused(
        403,
        code,
        problem,
        "A tunnel takes TLS whose server name is the host of the CONNECT, or plain HTTP. For anything else the "
        "operator can pin the host to an address in allowed_domains.",
    )
