"""What every page of the console stands on: who is signed in, a page around an answer, a form behind a button.

The guard has let in only requests to the console's own name, and posts only from its own pages; here each is
asked for its session, and each form for the session's token. What a page does is the business of the modules
that add routes.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import structlog
import trio
from markupsafe import Markup
from quart import Blueprint, Response, g, request

from codespace import limits
from codespace.contract import Caller, DiffPage, Inbox, Tools
from codespace.display import display
from codespace.errors import Refusal
from codespace.gateway.operator import Operator
from codespace.http import connection
from codespace.http.forms import fields
from codespace.http.guard import CONSOLE
from codespace.http.pages import HEADERS, Pages
from codespace.http.signin import Session, Sessions, Tickets
from codespace.protocol.sessions import IDENTITY

log = structlog.get_logger("codespace.http.console")

COOKIE: Final = "codespace"
SELF: Final = Caller("http", "console")
"""As whom the console asks what an MCP client could ask, too. It grants nothing by itself."""
BY: Final = "operator in the console"
_OPEN: Final = frozenset({"console.sign_in", "console.signed_in", "console.asset"})
_STATUS: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "STORE_UNAVAILABLE": 503,
    "SHUTTING_DOWN": 503,
    "INTERNAL": 500,
}
_MISSING: Final = "_NOT_FOUND"

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Console:
    """What the console shows and does.

    Args:
        kept_diff: A page of the whole diff of an operation, from a cursor on.
        operator_token: Signs in as well, where there is one.
        stopping: Set when the daemon's stop begins: streams end.
    """

    operator: Operator
    inbox: Inbox
    tools: Tools
    kept_diff: Callable[[str, int], Awaitable[DiffPage]]
    tickets: Tickets
    operator_token: str | None
    stopping: trio.Event


class Desk:
    """One console's routes and what they share."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.sessions = Sessions(trio.current_time)
        self.routes = Blueprint("console", __name__, url_prefix="/console")
        self._pages = Pages()
        self.routes.before_request(self._only_the_signed_in)
        self.routes.after_request(_with_headers)

    async def page(self, name: str, here: str = "", status: int = 200, **values: Any) -> Response:
        """Return a page with the frame of the console around it."""
        session: Session | None = g.get("session")
        pending = 0 if session is None else await self._pending_shown()
        text = self._pages.render(
            name,
            here=here,
            session=session is not None,
            token=lambda: _token_field(session),
            pending=pending,
            **values,
        )
        return Response(text, status, mimetype="text/html")

    async def pending(self) -> int:
        return await self.console.operator.count_pending()

    async def _pending_shown(self) -> int | str:
        """Return the number in the frame; a page that says the database is away must not need it."""
        try:
            return await self.pending()
        except Refusal:
            return "?"

    async def show(self, act: Callable[[], Awaitable[Response]]) -> Response:
        """Return what `act` makes, or a page that says what was refused."""
        try:
            return await act()
        except Refusal as refusal:
            return await self.refused(refusal)
        except Exception:
            log.exception("the console failed", path=display(request.path, limit=limits.SHOWN_NAME_CHARACTERS))
            return await self.refused(Refusal("INTERNAL", "The request ended by a fault of CodeSpace."))

    async def post(self, act: Callable[[Form], Awaitable[str]]) -> Response:
        """Take the form, do what `act` does with it, and go on to the page that it names."""

        async def do() -> Response:
            return go(await act(await self.checked_form()))

        return await self.show(do)

    async def checked_form(self) -> Form:
        """Return the form of a page of this session. Raises: Refusal UNAUTHORIZED, INVALID_ARGUMENT."""
        form = await fields()
        if not hmac.compare_digest(form.get("csrf", "").encode(), g.session.csrf.encode()):
            raise Refusal(
                "UNAUTHORIZED",
                "The form is not of a page of this session; nothing was done.",
                next_step="Load the page again, look at what it shows now, and press the button there.",
            )
        return form

    async def refused(self, refusal: Refusal) -> Response:
        """Return the page of a refusal."""
        known = _STATUS.get(refusal.code, 404 if refusal.code.endswith(_MISSING) else 409)
        return await self.page(
            "told",
            status=403 if refusal.code == "UNAUTHORIZED" else known,
            heading=refusal.code,
            message=refusal.message,
            next_step=refusal.next_step,
            back="/console/holds",
        )

    async def _only_the_signed_in(self) -> Response | None:
        if request.scope.get(IDENTITY) != CONSOLE:
            return Response("not found\n", 404, mimetype="text/plain")  # the path was spelt in another way
        g.session = self.sessions.find(request.cookies.get(COOKIE))
        if g.session is not None:
            connection.vouch()
        if g.session is not None or request.endpoint in _OPEN:
            return None
        return await self.page(
            "sign_in",
            status=401,
            ticket=None,
            message="You are not signed in.",
            by_token=self.console.operator_token is not None,
        )


def go(path: str) -> Response:
    """Return the answer that makes a browser get another page of the console."""
    return Response("", 303, {"Location": path})


def path_of(*parts: str) -> str:
    """Return the path of a page; what came from outside cannot lead out of its part."""
    return "/console/" + "/".join(quote(part, safe="") for part in parts)


async def _with_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _token_field(session: Session | None) -> Markup:
    return Markup('<input type="hidden" name="csrf" value="{}">').format("" if session is None else session.csrf)
