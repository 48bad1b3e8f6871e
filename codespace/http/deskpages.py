"""The console's pages beside holds: operations and their undo, processes, works and their intents, workspaces.

They ask what an MCP client may ask, and the inbox; an undo is held like any other where approvals say so, and
granted on its own page, behind its own diff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from markupsafe import Markup
from quart import Response, request

from codespace import limits
from codespace.contract import Delivery
from codespace.errors import Refusal
from codespace.http.desk import SELF, Desk, Form, path_of
from codespace.http.forms import whole
from codespace.http.pages import Colours, coloured


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of an operation's whole diff."""

    lines: list[tuple[str, Markup]]
    first: bool
    """Whether there is something before it."""
    next: str | None
    """The query of what comes behind it: where in the diff, and in its hunk and line, that begins."""


def add(desk: Desk) -> None:
    """Add the routes of these pages."""
    _operations(desk)
    _processes(desk)
    _works(desk)
    _intents(desk)
    _workspaces(desk)


def _operations(desk: Desk) -> None:
    console, routes = desk.console, desk.routes

    @routes.get("/operations")
    async def operations() -> Response:
        async def act() -> Response:
            found = await console.operator.operations(limit=limits.CONSOLE_ROWS)
            return await desk.page("operations", "operations", operations=found)

        return await desk.show(act)

    @routes.get("/operations/<operation_id>")
    async def operation(operation_id: str) -> Response:
        async def act() -> Response:
            told = await _told(desk, operation_id)
            page, why = await _diff(desk, told, request.args)
            told = {"changes": [], "outcome": None, "process_id": None} | told
            return await desk.page("operation", "operations", told=told, page=page, no_diff=why)

        return await desk.show(act)

    @routes.post("/operations/<operation_id>/undo")
    async def undo(operation_id: str) -> Response:
        async def act(form: Form) -> str:
            try:
                done = await console.tools.operation_undo(SELF, operation_id=operation_id, operation_key=None)
            except Refusal as refusal:
                if refusal.code != "APPROVAL_REQUIRED" or refusal.approval_id is None:
                    raise
                return path_of("holds", refusal.approval_id)  # with its diff, to be granted there
            return path_of("operations", str(done["operation_id"]))

        return await desk.post(act)


async def _told(desk: Desk, operation_id: str) -> dict[str, Any]:
    """Return an operation and whether its files still are so; of a directory not registered here, the record."""
    try:
        return await desk.console.tools.operation_status(SELF, operation_id=operation_id, operation_key=None)
    except Refusal as refusal:
        if refusal.code != "OPERATION_NOT_FOUND":
            raise
    told = await desk.console.operator.operation(operation_id)
    return told | {"process_id": None}  # its process has no page here


async def _diff(desk: Desk, told: dict[str, Any], asked: Form) -> tuple[_Page | None, str | None]:
    if told["kind"] != "patch":
        return None, None
    cursor, old, new = (whole(asked.get(name), name) or 0 for name in ("cursor", "old", "new"))
    try:
        page = await desk.console.kept_diff(told["operation_id"], cursor)
    except Refusal as refusal:
        return None, refusal.message
    text, following = page.text, page.cursor
    end = text.rfind("\n") + 1
    if following < page.total and end > 0:  # a line that does not end here is left to the next page
        text, following = text[:end], following - len(text[end:].encode())
    lines = text.split("\n")
    begun = lines.pop() or None
    colours = Colours(old, new, asked.get("line"))
    shown = coloured(lines if begun is None else [*lines, begun], colours)
    if following >= page.total:
        return _Page(shown, cursor > 0, None), None
    within = "" if begun is None else f"&line={shown[-1][0]}"
    return _Page(shown, cursor > 0, f"cursor={following}&old={colours.old}&new={colours.new}{within}"), None


def _processes(desk: Desk) -> None:
    tools, routes = desk.console.tools, desk.routes

    @routes.get("/processes")
    async def processes() -> Response:
        async def act() -> Response:
            found = (await tools.list_processes(SELF, workspace_id=None))["processes"]
            elsewhere = await desk.console.operator.runs_elsewhere()
            return await desk.page("processes", "processes", processes=found, elsewhere=elsewhere)

        return await desk.show(act)

    @routes.get("/processes/<process_id>")
    async def process(process_id: str) -> Response:
        async def act() -> Response:
            told = await tools.process_status(SELF, process_id=process_id)
            output = await tools.read_process(
                SELF,
                process_id=process_id,
                cursor=whole(request.args.get("cursor"), "cursor") or 0,
                stream="combined",
                wait_seconds=0,
                limit_bytes=limits.OUTPUT_CHUNK_BYTES,
                encoding="text",
            )
            return await desk.page("process", "processes", told=told, output=output)

        return await desk.show(act)

    @routes.post("/processes/<process_id>/stop")
    async def stop(process_id: str) -> Response:
        async def act(form: Form) -> str:
            await tools.terminate_process(SELF, process_id=process_id, grace_seconds=limits.GRACE_SECONDS)
            return path_of("processes", process_id)

        return await desk.post(act)


def _works(desk: Desk) -> None:
    inbox, routes = desk.console.inbox, desk.routes

    @routes.get("/works")
    async def works() -> Response:
        async def act() -> Response:
            return await desk.page("works", "works", works=(await inbox.works())["works"])

        return await desk.show(act)

    @routes.get("/works/<work_id>")
    async def work(work_id: str) -> Response:
        async def act() -> Response:
            told = await inbox.work(work_id=work_id)
            intents = (await inbox.intents(work_id=work_id))["intents"]
            longest = limits.INTENT_TEXT_CHARACTERS
            return await desk.page("work", "works", work=told, intents=intents, longest=longest)

        return await desk.show(act)

    @routes.post("/works/<work_id>/draft")
    async def draft(work_id: str) -> Response:
        async def act(form: Form) -> str:
            written = await inbox.draft(
                work_id=work_id, text=_text(form), kind="follow_up", delivery=_delivery(form), supersedes=None
            )
            if "queue" in form:
                await inbox.queue(intent_id=written["intent_id"], revision=written["revision"])
            return path_of("works", work_id)

        return await desk.post(act)

    @routes.post("/works/<work_id>/stop")
    async def stop_work(work_id: str) -> Response:
        async def act(form: Form) -> str:
            await inbox.stop(work_id=work_id, text=None)
            return path_of("works", work_id)

        return await desk.post(act)


def _intents(desk: Desk) -> None:
    inbox, routes = desk.console.inbox, desk.routes

    @routes.post("/intents/<intent_id>/edit")
    async def edit(intent_id: str) -> Response:
        async def act(form: Form) -> str:
            await inbox.edit(
                intent_id=intent_id,
                revision=_revision(form),
                text=_text(form),
                kind=None,
                delivery=_delivery(form),
            )
            return path_of("works", form.get("work_id", ""))

        return await desk.post(act)

    @routes.post("/intents/<intent_id>/queue")
    async def queue(intent_id: str) -> Response:
        async def act(form: Form) -> str:
            await inbox.queue(intent_id=intent_id, revision=_revision(form))
            return path_of("works", form.get("work_id", ""))

        return await desk.post(act)

    @routes.post("/intents/<intent_id>/first")
    async def first(intent_id: str) -> Response:
        async def act(form: Form) -> str:
            work_id = form.get("work_id", "")
            await inbox.reorder(work_id=work_id, intent_ids=[intent_id])
            return path_of("works", work_id)

        return await desk.post(act)

    @routes.post("/intents/<intent_id>/cancel")
    async def cancel(intent_id: str) -> Response:
        async def act(form: Form) -> str:
            await inbox.cancel(intent_id=intent_id, revision=_revision(form))
            return path_of("works", form.get("work_id", ""))

        return await desk.post(act)


def _workspaces(desk: Desk) -> None:
    tools, routes = desk.console.tools, desk.routes

    @routes.get("/workspaces")
    async def workspaces() -> Response:
        async def act() -> Response:
            known = (await tools.workspace_info(SELF, workspace_id=None))["workspaces"]
            told = [await tools.workspace_info(SELF, workspace_id=each["id"]) for each in known]
            return await desk.page("workspaces", "workspaces", workspaces=told)

        return await desk.show(act)


def _text(form: Form) -> str:
    text = form.get("text", "").replace("\r\n", "\n")
    if not 0 < len(text) <= limits.INTENT_TEXT_CHARACTERS:
        raise Refusal(
            "INVALID_ARGUMENT", f"A text has 1 to {limits.INTENT_TEXT_CHARACTERS} characters; nothing was stored."
        )
    return text


def _delivery(form: Form) -> Delivery:
    delivery = form.get("delivery", "")
    if delivery not in get_args(Delivery):
        raise Refusal("INVALID_ARGUMENT", "There is no such delivery; nothing was stored.")
    return cast(Delivery, delivery)


def _revision(form: Form) -> int:
    return whole(form.get("revision"), "revision") or 0
