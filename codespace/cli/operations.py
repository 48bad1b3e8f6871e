"""`codespace operations list|show|settle|forget`: what was recorded, and the few things only a person decides."""

from __future__ import annotations

import argparse
import time
from collections.abc import Container, Iterator
from functools import partial

from codespace import cli, interrupts, log
from codespace.beneath import STAGED_PREFIX
from codespace.cli import configured, recorded
from codespace.display import display
from codespace.errors import Refusal
from codespace.gateway.event import Event
from codespace.gateway.operation import Operation
from codespace.gateway.records import Records, open_records
from codespace.gateway.view import known
from codespace.runner.patch import journals
from codespace.runner.patch.patcher import Patcher
from codespace.settings import MEMORY_DATABASE, Settings


def run(arguments: argparse.Namespace) -> int:
    """Run one word of the command; 2 after saying why nothing was done."""
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    if settings.database == MEMORY_DATABASE:
        return recorded.refused("the database is in memory; nothing but its daemon can reach it.")
    if not configured.is_begun(settings.database):
        return recorded.refused(f"nothing has been recorded yet: there is no database at {display(settings.database)}.")
    log.configure(level="warning", form="console")  # on stderr: what is asked for stands alone on stdout
    return interrupts.run(partial(_run, settings, arguments))


async def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    try:
        async with (
            Patcher(settings.state_dir) as patcher,
            open_records(settings.database, settings.state_dir, settings.workspaces, time.time, patcher) as records,
        ):
            return await _WORDS[arguments.question](records, arguments)
    except Refusal as refusal:
        return recorded.tell(refusal)


async def _list(records: Records, arguments: argparse.Namespace) -> int:
    dead = await records.dead_ids()  # before the look: what another daemon settles meanwhile is told as settled
    total = await records.count()  # first, so that none which begins meanwhile is told as left out
    listed = await records.operations()
    found = [each for each in listed if not arguments.open or each.finished_at is None]
    if arguments.json:
        for operation in found:
            print(recorded.as_json(recorded.facts(operation, dead)))
    elif found:
        heads = ("OPERATION", "KIND", "STATE", "WORKSPACE", "SINCE", "FILES")
        print(recorded.table(heads, (_row(each, dead) for each in found)))
    else:
        print("Every operation has its end." if arguments.open else "Nothing has been recorded yet.")
    if not arguments.open:
        recorded.tell_unlisted(len(listed), total)
    return 0


async def _show(records: Records, arguments: argparse.Namespace) -> int:
    operation = await records.operation(arguments.id)
    state_dir = await records.state_dir(operation)
    if arguments.diff:
        for page in _pages(state_dir, operation.id):
            if arguments.json:
                print(recorded.as_json({"operation_id": operation.id, "diff": page}))
            else:
                print(display(page, newlines=True), end="")
        return 0
    events = await records.events(operation.id)
    dead = await records.dead_ids()
    kept = next((each for each in journals.snapshots(state_dir) if each.operation_id == operation.id), None)
    size = None if kept is None else kept.size_bytes
    rescued = journals.rescued(state_dir, operation.id)
    if arguments.json:
        told = {"events": [known(event) for event in events], "snapshot_bytes": size, "rescued": rescued}
        print(recorded.as_json(recorded.facts(operation, dead) | told))
    else:
        print("\n".join(_lines(operation, recorded.state(operation, dead), events, size, rescued)))
    return 0


async def _settle(records: Records, arguments: argparse.Namespace) -> int:
    operation = await records.settle(arguments.id, accept=arguments.accept)
    print(f"{operation.id}: {operation.state}")
    return 0


async def _forget(records: Records, arguments: argparse.Namespace) -> int:
    operation = await records.operation(arguments.id)
    state_dir = await records.state_dir(operation)
    if operation.kind == "patch" and operation.finished_at is None:
        raise Refusal(
            "INVALID_ARGUMENT",
            "The patch has no end yet, and its journal may be all that can tell it. Nothing was removed.",
            next_step=f"Start its daemon, or settle it with `codespace operations settle {operation.id}`.",
        )
    if journals.is_left(state_dir, operation.id):
        await records.tidy(operation)
    is_left = journals.is_left(state_dir, operation.id)
    rescued = journals.rescued(state_dir, operation.id)
    if rescued and not arguments.rescued:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"Bytes of others that this operation found are kept with it and nowhere else: {', '.join(rescued)}. "
            "Nothing was removed.",
            next_step="Copy what is still wanted of them, then add --rescued to remove them, too.",
        )
    try:
        with journals.removing(state_dir, operation.id, ended=True, with_rescued=arguments.rescued) as goes:
            if not goes:
                raise Refusal(
                    "SNAPSHOT_EXPIRED",
                    "Nothing of this operation is kept, or it is in use. Nothing was removed.",
                    next_step="Look at `codespace operations show`.",
                )
            await records.note_forgotten(operation.id)  # before it goes: a full disk may refuse the note
    except OSError as error:
        raise Refusal(
            "FILE_OPERATION_FAILED",
            f"It is recorded as forgotten, but its journal in {display(journals.folder(state_dir))} cannot be removed "
            f"whole: {error.strerror}.",
            next_step="Have this account write there, and call again.",
        ) from error
    undone = "; it can no longer be undone" if operation.state == "applied" else ""
    print(f"{operation.id}: the bytes before it and its diff are removed{undone}.")
    if is_left:
        print(f"Files of it that are named {STAGED_PREFIX}* may be left below {display(operation.root)}.")
    return 0


_WORDS = {"list": _list, "show": _show, "settle": _settle, "forget": _forget}


def _row(operation: Operation, dead: Container[str]) -> tuple[str, ...]:
    since = recorded.ago(time.time() - operation.created_at)
    files = display(", ".join(operation.files), limit=60) or "-"
    return operation.id, operation.kind, recorded.state(operation, dead), display(operation.workspace_id), since, files


def _lines(
    operation: Operation, state: str, events: tuple[Event, ...], size: int | None, rescued: list[str]
) -> Iterator[str]:
    yield f"{operation.id}  {operation.tool} in {display(operation.workspace_id)}: {state}"
    yield f"root         {display(operation.root)}"
    if operation.operation_key is not None:
        yield f"key          {display(operation.operation_key)}"
    for change in operation.changes:
        origin = f" (from {display(change['from_path'])})" if change.get("from_path") else ""
        yield f"{change['kind']:<12} {display(change['path'])}{origin}"
    if operation.outcome is not None and "message" in operation.outcome:
        yield f"outcome      {display(operation.outcome['message'])}"
    if operation.kind == "patch":
        undoable = "; it can be undone" if operation.state == "applied" else ""
        yield f"snapshot     {'none is kept' if size is None else f'{size:,} bytes are kept{undoable}'}"
    for path in rescued:
        yield f"rescued      {display(path)}"
    for event in events:
        yield f"{event.event:<16} {display(event.reason)}"


def _pages(state_dir: str, operation_id: str) -> Iterator[str]:
    cursor = 0
    while (page := journals.diff(state_dir, operation_id, cursor)).text:
        yield page.text
        cursor = page.cursor
