"""The outermost layer of the door: nothing behind it sees a request that was not meant for it.

Attack, mitigation, reason:
- a page whose name was rebound to this machine sends its own name as Host: 421, on every route;
- a target that is no path (`http://there/inbox`), in which what lies behind would find one that was not looked at: 400;
- a page of another origin, or a form post, sends its Origin: 403, on every route;
- a local program without the token: 401, compared in constant time;
- an MCP client that would steer or grant for its operator: /inbox has a token of its own, and is not there
  (404) where none is set; neither token opens what is the other's;
- a page that would press the console's buttons, or a program that has caught its cookie on another port:
  /console has a host name of its own, which cookies of 127.0.0.1 do not go to (421 under any other), takes
  posts only with exactly its own Origin (403), and asks for a session and a form's token behind that;
- a proxy that would carry strangers to a door without a token (`--no-auth`) announces itself: 403;
- a client that sends without end, or never ends, or much at once: 413, 408, 503; a stranger at the open paths, early.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from codespace import limits
from codespace.http import body, connection, peer
from codespace.protocol.sessions import IDENTITY

Send = Callable[[body.Message], Awaitable[None]]
App = Callable[[Any, body.Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

_OPEN_PATHS: Final = frozenset({"/healthz"})
# A sign of life tells nothing; everything else needs the token, unknown paths included.
CONSOLE: Final = "console"
"""The identity, in the scope, of a browser at the console's own name; whether it is signed in, the console asks."""
OPERATOR: Final = "operator"
"""The identity, in the scope, of who came with the operator's token."""
_FORWARDED: Final = (b"forwarded", b"via", b"x-forwarded", b"x-real-ip", b"x-original-", b"cf-", b"true-client-ip")
# How proxies and tunnels announce themselves; the first letters are enough.


@dataclass(frozen=True, slots=True)
class Rules:
    """What the guard lets through. `token` None: everyone who can connect, but nobody by way of a proxy."""

    hosts: frozenset[str]
    origins: frozenset[str]
    token: str | None
    operator_token: str | None = None
    """Opens /inbox, and only that. None: there is no inbox."""
    console_host: str | None = None
    """The Host of /console, and only of that, in lower case. None: there is no console."""


class Guard:
    """The ASGI application around `app`."""

    def __init__(self, app: App, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._bodies = body.Held()
        self._digest = None if rules.token is None else _digest(rules.token.encode("ascii"))
        operator = rules.operator_token
        self._operator_digest = None if operator is None else _digest(operator.encode("ascii"))

    async def __call__(self, scope: Any, receive: body.Receive, send: Send) -> None:
        """Let one request through, or answer it here."""
        if scope["type"] == "websocket":  # none is served
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _flushing(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        scope[IDENTITY] = self._identity(scope["path"])
        if scope[IDENTITY] != CONSOLE and scope["path"] not in _OPEN_PATHS:  # the console knows by its cookie
            connection.vouch()
        declared, most = _only(scope["headers"], b"content-length"), _most_bytes(scope["path"])
        with self._bodies.one() as grow:
            try:
                receive = await body.take(receive, declared, most, grow)
            except body.Refused as refused:
                await _answer(send, refused.status, _BODIES[refused.status])
                return
            await self._app(scope, receive, send)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return the status and error of what is wrong with the request, the least trusting question first."""
        headers: Headers = scope["headers"]
        if _is_below(scope["path"], "/console"):
            return self._console_refusal(scope, headers)
        if _text(_only(headers, b"host")).lower() not in self._rules.hosts:
            return 421, "this name is not served here; the operator can allow it in CODESPACE_ALLOWED_HOSTS"
        if not scope["path"].startswith("/"):
            return 400, "the target of a request is a path here"
        if _has(headers, b"origin") and _text(_only(headers, b"origin")).lower() not in self._rules.origins:
            return 403, "requests from pages of other origins are refused"
        if self._digest is None and any(name.startswith(_FORWARDED) for name, _ in headers):
            return 403, "forwarded requests are refused without a token"
        if _is_inbox(scope["path"]):
            if self._operator_digest is None:
                return 404, "not found"
            needed = self._operator_digest
        elif self._digest is None or scope["path"] in _OPEN_PATHS:
            return None
        else:
            needed = self._digest
        return None if _opens(headers, needed) else (401, "unauthorized")

    def _console_refusal(self, scope: Any, headers: Headers) -> tuple[int, str] | None:
        """Return what is wrong with a request for the console: its own name and pages, nobody in between.

        And no other account: a browser sends its cookie to every port of the name, so that who listens at one could
        have taken it.
        """
        own = self._rules.console_host
        if own is None:
            return 404, "not found"
        if _text(_only(headers, b"host")).lower() != own:
            return 421, "the console is served at its own name; open it with `codespace console`"
        if any(name.startswith(_FORWARDED) for name, _ in headers):
            return 403, "forwarded requests are refused"
        if peer.is_stranger(_address(scope["client"]), _address(scope["server"])):
            return 403, "the console is for the account that CodeSpace runs as"
        # A browser names the origin with every post; what names none was not sent by a page of ours.
        safe = scope["method"] in ("GET", "HEAD") and not _has(headers, b"origin")
        if not safe and _text(_only(headers, b"origin")).lower() != f"http://{own}":
            return 403, "requests from pages of other origins are refused"
        return None

    def _identity(self, path: str) -> str:
        if _is_below(path, "/console"):
            return CONSOLE
        if _is_inbox(path):
            return OPERATOR
        return "anonymous" if self._digest is None else "bearer"


def _address(end: Any) -> tuple[str, int] | None:
    return None if end is None or end[1] is None else (end[0], end[1])


def _is_inbox(path: str) -> bool:
    return _is_below(path, "/inbox")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _most_bytes(path: str) -> int:
    """Return how large a body may be: a stranger's, who need not show a token, no larger than a form of the console."""
    return limits.CONSOLE_FORM_BYTES if path in _OPEN_PATHS or _is_below(path, "/console") else limits.REQUEST_BYTES


def _opens(headers: Headers, needed: bytes) -> bool:
    """Return whether the request carries the token of this digest."""
    scheme, _, token = (_only(headers, b"authorization") or b"").partition(b" ")
    # Digests are compared, so that neither content nor length shows in the time it takes.
    right = hmac.compare_digest(_digest(token.strip()), needed)
    return right and scheme.lower() == b"bearer"


_BODIES: Final = {
    408: "the request body did not arrive in time",
    413: "the request body is too large",
    503: "too many large request bodies are held at the moment; send it again",
}


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _has(headers: Headers, wanted: bytes) -> bool:
    return any(name == wanted for name, _ in headers)


def _only(headers: Headers, wanted: bytes) -> bytes | None:
    """Return the header's value if it is there exactly once: of two, the other could be the one that is used."""
    values = [value for name, value in headers if name == wanted]
    return values[0] if len(values) == 1 else None


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")


async def _answer(send: Send, status: int, error: str) -> None:
    content = json.dumps({"error": error}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _flushing(send: Send) -> Send:
    """Let the last part of an answer be sent even while the application cancels itself.

    Hypercorn announces a disconnect before it re-arms its idle timer; an application that cancels itself
    then (Quart, the MCP SDK) would kill that step, and the connection would stay open for ever.
    """

    async def flush(message: body.Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        # Protects one send and Hypercorn's step after it. When time runs out the send is cancelled like any
        # other: over HTTP/2 it would wait for ever for a client that has left.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.HTTP_FLUSH_SECONDS) as scope:
            await send(message)
        if scope.cancelled_caught:
            connection.cut()

    return flush
