"""The operator's inbox at /inbox: works and their intents, for `curl`, scripts and pages of the operator's own.

The guard lets in who holds the operator's token and nobody else, and says so in the scope; the routes
ask the scope again, so that a route is never open because a path was spelt in another way. Answers
are JSON in ASCII: a hostile title or note comes as escapes, which act on no terminal. Routes for
approvals are beside it, in `approvals`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, get_args

import structlog
from quart import Blueprint, Response, request

from codespace import limits
from codespace.contract import Delivery, Inbox
from codespace.display import display
from codespace.errors import Refusal
from codespace.http.guard import OPERATOR
from codespace.protocol.arguments import Argument, refuse
from codespace.protocol.sessions import IDENTITY

log = structlog.get_logger("codespace.http.inbox")

_STATUS: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHORIZED": 403,
    "APPROVAL_NOT_FOUND": 404,
    "WORK_NOT_FOUND": 404,
    "INTENT_NOT_FOUND": 404,
    "STORE_UNAVAILABLE": 503,
    "SHUTTING_DOWN": 503,
    "INTERNAL": 500,
}
# Every other refusal says that the state of things is in the way.
_CONFLICT: Final = 409

_KINDS: Final = ("follow_up", "note")
_ID: Final = 200  # characters; ours are shorter, and a longer one is no id


def _text(required: bool) -> Argument:
    return Argument(
        "text", "text", "What you want.", required=required, minimum=1, maximum=limits.INTENT_TEXT_CHARACTERS
    )


def _revision(required: bool) -> Argument:
    return Argument(
        "revision",
        "integer",
        "The revision that you read.",
        required=required,
        minimum=1,
        maximum=limits.CURSOR_MAXIMUM,
    )


_KIND: Final = Argument("kind", "text", "What it is.", choices=_KINDS)
_DELIVERY: Final = Argument("delivery", "text", "When it is due.", choices=get_args(Delivery))
_SUPERSEDES: Final = Argument("supersedes", "text", "Whose place it takes.", minimum=1, maximum=_ID)
_INTENT_IDS: Final = Argument(
    "intent_ids",
    "text_list",
    "The order that you want.",
    required=True,
    minimum=1,
    maximum=limits.INTENTS_WAITING,
)


def inbox_routes(inbox: Inbox) -> Blueprint:
    """Return the routes below /inbox."""
    routes = Blueprint("inbox", __name__, url_prefix="/inbox")

    @routes.before_request
    async def only_the_operator() -> Response | None:
        return None if request.scope.get(IDENTITY) == OPERATOR else json_response({"error": "not found"}, 404)

    @routes.get("/works")
    async def works() -> Response:
        return await answer(inbox.works)

    @routes.get("/works/<work_id>")
    async def work(work_id: str) -> Response:
        return await answer(lambda: inbox.work(work_id=work_id))

    @routes.get("/works/<work_id>/intents")
    async def intents(work_id: str) -> Response:
        return await answer(lambda: inbox.intents(work_id=work_id))

    @routes.post("/works/<work_id>/intents")
    async def draft(work_id: str) -> Response:
        async def act() -> dict[str, Any]:
            sent = await body_of(_text(required=True), _KIND, _DELIVERY, _SUPERSEDES)
            sent["kind"] = sent["kind"] or "follow_up"
            sent["delivery"] = sent["delivery"] or "after_current_work"
            return await inbox.draft(work_id=work_id, **sent)

        return await answer(act, 201)

    @routes.patch("/intents/<intent_id>")
    async def edit(intent_id: str) -> Response:
        async def act() -> dict[str, Any]:
            sent = await body_of(_revision(required=True), _text(required=False), _KIND, _DELIVERY)
            if all(sent[name] is None for name in ("text", "kind", "delivery")):
                raise refuse("text", "or `kind` or `delivery` is needed: there is nothing to change")
            return await inbox.edit(intent_id=intent_id, **sent)

        return await answer(act)

    @routes.post("/intents/<intent_id>/queue")
    async def queue(intent_id: str) -> Response:
        async def act() -> dict[str, Any]:
            return await inbox.queue(intent_id=intent_id, **await body_of(_revision(required=False)))

        return await answer(act)

    @routes.post("/intents/<intent_id>/cancel")
    async def cancel(intent_id: str) -> Response:
        async def act() -> dict[str, Any]:
            return await inbox.cancel(intent_id=intent_id, **await body_of(_revision(required=False)))

        return await answer(act)

    @routes.post("/works/<work_id>/reorder")
    async def reorder(work_id: str) -> Response:
        async def act() -> dict[str, Any]:
            return await inbox.reorder(work_id=work_id, **await body_of(_INTENT_IDS))

        return await answer(act)

    @routes.post("/works/<work_id>/stop")
    async def stop(work_id: str) -> Response:
        async def act() -> dict[str, Any]:
            return await inbox.stop(work_id=work_id, **await body_of(_text(required=False)))

        return await answer(act)

    return routes


async def answer(act: Callable[[], Awaitable[dict[str, Any]]], status: int = 200) -> Response:
    """Answer with what `act` returns, or with the error body of what it raises."""
    try:
        return json_response(await act(), status)
    except _TooLarge:
        return json_response({"error": "the request body is too large"}, 413)
    except Refusal as refusal:
        body = refusal.body()
        body["message"] = display(refusal.message, newlines=True)
        return json_response(body, _STATUS.get(refusal.code, _CONFLICT))
    except Exception:
        log.exception("the inbox failed", path=display(request.path, limit=_ID))
        return json_response(Refusal("INTERNAL", "The request ended by a fault of CodeSpace.").body(), 500)


class _TooLarge(Exception):
    """The body is over limits.INBOX_BODY_BYTES."""


async def body_of(*arguments: Argument) -> dict[str, Any]:
    """Return every argument from the request's JSON object, None where it is left out; nothing is coerced.

    Raises: Refusal INVALID_ARGUMENT; _TooLarge.
    """
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)  # as asked for
    if len(data) > limits.INBOX_BODY_BYTES:
        raise _TooLarge
    sent = _object(data) if data else {}
    taken: dict[str, Any] = {}
    for argument in arguments:
        value = sent.pop(argument.name, None)
        if value is None and argument.required:
            raise refuse(argument.name, "is missing")
        taken[argument.name] = None if value is None else argument.take(value, argument.name)
    if sent:
        unknown = display(min(sent), limit=80)
        known = ", ".join(argument.name for argument in arguments)
        raise refuse(unknown, f"is not known here (known: {known})")
    return taken


def _object(data: bytes) -> dict[str, Any]:
    if request.mimetype != "application/json":
        # A form of some page can send other types without asking first; no script of the operator's has to.
        raise refuse("content-type", "must be application/json")
    try:
        value = json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise refuse("body", "is not JSON") from None
    if not isinstance(value, dict):
        raise refuse("body", "must be a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: of two, another reader may have seen the other."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def json_response(value: Mapping[str, Any], status: int) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(json.dumps(value) + "\n", status, headers, mimetype="application/json")
