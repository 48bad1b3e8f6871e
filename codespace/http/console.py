"""The console at /console: sign-in, what is held and its decision, grants, and the news that keep pages alive.

It is served for the operator's browser only: at its own name, behind a session that `codespace console` or
the operator's token opens. It decides nothing itself; `gateway.operator` does, by the fingerprint that was shown.
"""

from __future__ import annotations

import hmac
import mimetypes
from typing import Final, Literal, cast

import trio
from quart import Blueprint, Response, request

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.grants import require_time
from codespace.gateway.hold import Hold
from codespace.gateway.scopes import SCOPES, Scope
from codespace.http import deskpages, streams
from codespace.http.desk import BY, COOKIE, SELF, Console, Desk, Form, go, path_of
from codespace.http.forms import fields, whole
from codespace.http.pages import FOLDER, diff_part

__all__ = ["Console", "console_routes"]

_ASSETS: Final = frozenset({"console.css", "console.js", "icon.svg"})
_files: Final = trio.CapacityLimiter(2)
# Tickets and assets: small files of the operator's own, but on a disk that may be slow.


def console_routes(console: Console) -> Blueprint:
    """Return the routes below /console."""
    desk = Desk(console)
    _sign_in(desk)
    _holds(desk)
    _grants(desk)
    streams.add(desk)
    deskpages.add(desk)
    return desk.routes


def _sign_in(desk: Desk) -> None:
    console, routes = desk.console, desk.routes

    @routes.get("/", strict_slashes=False)
    async def front() -> Response:
        return go(path_of("holds"))

    @routes.get("/static/<name>")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            return Response("not found\n", 404, mimetype="text/plain")
        content = await trio.to_thread.run_sync((FOLDER / "static" / name).read_bytes, limiter=_files)
        return Response(content, 200, mimetype=mimetypes.guess_type(name)[0])

    @routes.get("/<path:rest>")
    async def nothing(rest: str) -> Response:
        return await desk.page("told", status=404, heading="Not found", message="", next_step="", back="/console/holds")

    @routes.get("/sign-in")
    async def sign_in() -> Response:
        # Looking at the link takes nothing: a browser that fetches ahead must not use it up.
        message = "You are not signed in."
        by_token = console.operator_token is not None
        return await desk.page("sign_in", ticket=request.args.get("ticket"), message=message, by_token=by_token)

    @routes.post("/sign-in")
    async def signed_in() -> Response:
        return await desk.show(lambda: _admit(desk))

    @routes.post("/sign-out")
    async def sign_out() -> Response:
        async def act(form: Form) -> str:
            desk.sessions.close(request.cookies.get(COOKIE))
            return path_of("sign-in")

        return await desk.post(act)


async def _admit(desk: Desk) -> Response:
    form = await fields()
    token = desk.console.operator_token
    message = "The link was used already, is too old, or is not of this daemon."
    if "token" in form and token is not None:
        message = "That is not the operator's token."
        good = hmac.compare_digest(form["token"].encode(), token.encode())
    else:
        ticket = form.get("ticket", "")
        good = await trio.to_thread.run_sync(desk.console.tickets.take, ticket, limiter=_files)
    if not good:
        return await desk.page("sign_in", status=403, ticket=None, message=message, by_token=token is not None)
    answer = go(path_of("holds"))
    answer.set_cookie(
        COOKIE,
        desk.sessions.open(),
        max_age=int(limits.CONSOLE_SESSION_SECONDS),
        path="/console",
        httponly=True,
        samesite="Strict",
    )
    return answer


def _holds(desk: Desk) -> None:
    operator, routes = desk.console.operator, desk.routes

    @routes.get("/holds")
    async def holds() -> Response:
        async def act() -> Response:
            decided = await operator.decided(limits.CONSOLE_ROWS)
            listed = await operator.outlines()
            return await desk.page("holds", "holds", holds=listed, decided=decided, most=limits.LIST_ROWS)

        return await desk.show(act)

    @routes.get("/holds/<approval_id>")
    async def hold(approval_id: str) -> Response:
        async def act() -> Response:
            found = await operator.hold(approval_id)
            page = whole(request.args.get("page"), "page") or 1
            at = diff_part(found.shown["diff"], page) if "diff" in found.shown else None
            return await desk.page("hold", "holds", hold=found, at=at, scopes=_scopes(desk, found))

        return await desk.show(act)

    @routes.post("/holds/<approval_id>/grant")
    async def grant(approval_id: str) -> Response:
        async def act(form: Form) -> str:
            scope, seconds = _scope(form.get("scope", "once")), whole(form.get("seconds"), "seconds")
            require_time(seconds)
            path = (form.get("path") or None) if scope == "patches" else None
            fingerprint = form.get("fingerprint", "")
            await operator.grant(approval_id, by=BY, fingerprint=fingerprint, scope=scope, path=path, seconds=seconds)
            return path_of("holds", approval_id)

        return await desk.post(act)

    @routes.post("/holds/<approval_id>/deny")
    async def deny(approval_id: str) -> Response:
        async def act(form: Form) -> str:
            await operator.deny(approval_id, by=BY, fingerprint=form.get("fingerprint", ""))
            return path_of("holds", approval_id)

        return await desk.post(act)

    @routes.post("/holds/<approval_id>/resume")
    async def resume(approval_id: str) -> Response:
        async def act(form: Form) -> str:
            if (await operator.hold(approval_id)).tool != "operation_undo":
                raise Refusal("INVALID_ARGUMENT", "Only an undo is run from here; agents run what they asked for.")
            done = await desk.console.tools.operation_resume(SELF, approval_id=approval_id)
            return path_of("operations", str(done["operation_undo"]["operation_id"]))

        return await desk.post(act)


def _scope(text: str) -> Scope | Literal["once"]:
    if text != "once" and text not in SCOPES:
        raise Refusal("INVALID_ARGUMENT", "There is no such scope; nothing was granted.")
    return cast(Literal["exact", "program", "patches", "once"], text)


def _scopes(desk: Desk, hold: Hold) -> list[tuple[str, str, str | None]]:
    """Return what may be granted beyond this hold: scope, meaning, and why it is not to be had."""
    if hold.approvals != "operator" or hold.tool not in ("apply_patch", "exec_command") or hold.state != "pending":
        return []
    wanted: tuple[Scope, ...] = ("patches",) if hold.tool == "apply_patch" else ("exact", "program")
    offered = desk.console.operator.scopes_for(hold)
    return [(scope, SCOPES[scope], offered[scope]) for scope in wanted]


def _grants(desk: Desk) -> None:
    operator, routes = desk.console.operator, desk.routes

    @routes.get("/grants")
    async def grants() -> Response:
        async def act() -> Response:
            return await desk.page("grants", "grants", grants=await operator.grants(), meanings=SCOPES)

        return await desk.show(act)

    @routes.post("/grants/<grant_id>/revoke")
    async def revoke(grant_id: str) -> Response:
        async def act(form: Form) -> str:
            await operator.revoke(grant_id)
            return path_of("grants")

        return await desk.post(act)
