"""Approvals for the operator's own scripts, below /inbox: what is held, and its decision by the fingerprint shown.

The guard lets in who holds the operator's token and nobody else, and the routes ask the scope again.
"""

from __future__ import annotations

from typing import Any, Final

from quart import Blueprint, Response, request

from codespace import limits
from codespace.gateway.operator import Operator, grant_facts, hold_facts
from codespace.http.guard import OPERATOR
from codespace.http.inbox import answer, body_of, json_response
from codespace.protocol.arguments import Argument
from codespace.protocol.sessions import IDENTITY

_BY: Final = "operator at the inbox"
_FINGERPRINT: Final = Argument(
    "fingerprint", "text", "Of the hold that you saw.", required=True, minimum=64, maximum=64
)
_SCOPE: Final = Argument("scope", "text", "What else is granted.", choices=("once", "exact", "program", "patches"))
_PATH: Final = Argument("path", "text", "Where patches may be.", minimum=1, maximum=limits.PATH_CHARACTERS)
_SECONDS: Final = Argument("seconds", "number", "For how long.", minimum=1, maximum=limits.GRANT_SECONDS_MAXIMUM)


def approval_routes(operator: Operator) -> Blueprint:
    """Return the routes below /inbox/approvals."""
    routes = Blueprint("approvals", __name__, url_prefix="/inbox/approvals")

    @routes.before_request
    async def only_the_operator() -> Response | None:
        return None if request.scope.get(IDENTITY) == OPERATOR else json_response({"error": "not found"}, 404)

    @routes.get("", strict_slashes=False)
    async def approvals() -> Response:
        async def act() -> dict[str, Any]:
            return {"approvals": [hold_facts(hold) for hold in await operator.holds()]}

        return await answer(act)

    @routes.get("/<approval_id>")
    async def approval(approval_id: str) -> Response:
        async def act() -> dict[str, Any]:
            return hold_facts(await operator.hold(approval_id))

        return await answer(act)

    @routes.post("/<approval_id>/grant")
    async def grant(approval_id: str) -> Response:
        async def act() -> dict[str, Any]:
            sent = await body_of(_FINGERPRINT, _SCOPE, _PATH, _SECONDS)
            sent["scope"] = sent["scope"] or "once"
            hold, given = await operator.grant(approval_id, by=_BY, **sent)
            facts = {"approval_id": hold.id, "state": hold.state}
            return facts if given is None else facts | {"grant": grant_facts(given)}

        return await answer(act)

    @routes.post("/<approval_id>/deny")
    async def deny(approval_id: str) -> Response:
        async def act() -> dict[str, Any]:
            hold = await operator.deny(approval_id, by=_BY, **await body_of(_FINGERPRINT))
            return {"approval_id": hold.id, "state": hold.state}

        return await answer(act)

    return routes
