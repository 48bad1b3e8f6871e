"""How records look from outside: dataclasses and rows turned into the contract's plain JSON values."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from codespace import limits
from codespace.contract import Chunk, Kept, PatchPlan, ProcessState, Stream
from codespace.errors import Refusal
from codespace.gateway.event import Event
from codespace.gateway.hold import Hold
from codespace.gateway.operation import Operation


def known(record: Any) -> dict[str, Any]:
    """Return a flat dataclass as a dict: tuples as lists, without the fields that are not known."""
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values if value is not None}


def operation_view(operation: Operation, events: Iterable[Event]) -> dict[str, Any]:
    """Return what is recorded of an operation, without what is not known of it."""
    view = {
        "operation_id": operation.id,
        "kind": operation.kind,
        "status": operation.state,
        "workspace_id": operation.workspace_id,
        "created_at": operation.created_at,
        "finished_at": operation.finished_at,
        "files": list(operation.files),
        "changes": [dict(change) for change in operation.changes],
        "process_id": operation.process_id,
        "outcome": operation.outcome,
        "events": [known(event) for event in events],
    }
    return {name: value for name, value in view.items() if value is not None}


def hold_view(hold: Hold) -> dict[str, Any]:
    """Return what every answer about a hold says."""
    return {"approval_id": hold.id, "state": hold.state, "expires_at": hold.expires_at}


def shown_view(hold: Hold) -> dict[str, Any]:
    """Return what a hold shows, as much of its diff as an answer holds; who decides reads the whole."""
    shown = dict(hold.shown)
    diff = shown.get("diff", "").encode("utf-8", "surrogatepass")
    if len(diff) <= limits.DIFF_BYTES:
        return shown
    kept = diff[: diff.rfind(b"\n", 0, limits.DIFF_BYTES) + 1]
    return shown | {"diff": kept.decode("utf-8", "surrogatepass"), "diff_truncated": True}


def stdin_view(shown: Mapping[str, Any]) -> str:
    """Return in words where a held command's standard input comes from, the whole of a given text included."""
    given = shown["stdin"]
    if given is not None:  # never bare: `none` may be such a text
        return f"a terminal, and this is typed into it: {given}" if shown["tty"] else f"this text: {given}"
    if shown["open_stdin"]:
        typed = "a terminal, left open: it accepts whatever is typed into it later"
        return typed if shown["tty"] else "left open: it accepts whatever is written to it later"
    return "a terminal" if shown["tty"] else "none"


def input_view(shown: Mapping[str, Any]) -> str:
    """Return what a held write would write, as a person can read it: decoded, bytes that are no text as escapes."""
    data = str(shown["data"])
    if shown["encoding"] != "base64":
        return data
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "backslashreplace")
    except ValueError:
        return data  # no base64: the write will be refused


def held(hold: Hold) -> Refusal:
    """Return the refusal that a held request gets."""
    decided = "Wait with approval_status until the operator has decided, then call operation_resume with approval_id."
    if hold.approvals != "operator":  # nobody else may ever look at it
        decided = (
            "Ask your user whether it shall be done as shown, call approval_resolve with the decision and, once it is "
            "granted, operation_resume, each with approval_id."
        )
    return Refusal(
        "APPROVAL_REQUIRED",
        "The request is held until it is granted; nothing was done.",
        next_step=decided,
        details={"expires_at": hold.expires_at, "shown": shown_view(hold), "approvals": hold.approvals},
        approval_id=hold.id,
    )


def denied(hold: Hold) -> Refusal:
    """Return the refusal that a denied or expired hold gives."""
    if hold.expired:
        late = "The hold was not granted in time" if hold.decided_by is None else "The grant was not used in time"
        return Refusal("APPROVAL_EXPIRED", f"{late}; nothing was done.", approval_id=hold.id)
    return Refusal(
        "UNAUTHORIZED",
        f"The hold was denied: {hold.reason or 'no reason was given'}. Nothing was done.",
        next_step="Do not send it again; ask what is wanted instead.",
        approval_id=hold.id,
    )


def plan_view(plan: PatchPlan) -> dict[str, Any]:
    """Return files, net changes and the bounded diff of a plan."""
    return {
        "files": list(plan.files),
        "changes": [known(change) for change in plan.changes],
        "diff": plan.diff,
        "diff_truncated": plan.diff_truncated,
    }


def command_view(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command as lists of processes show it: cut behind limits.COMMAND_SHOWN_CHARACTERS, and saying so."""
    shown, left = list[str](), limits.COMMAND_SHOWN_CHARACTERS
    for number, item in enumerate(command):
        if left <= 0:
            shown.append(f"… (+{len(command) - number} arguments)")
            break
        shown.append(item if len(item) <= left else f"{item[:left]}… (+{len(item) - left} characters)")
        left -= len(item) + 1
    return tuple(shown)


def process_view(state: ProcessState, stream: Stream = "combined") -> dict[str, Any]:
    """Return the state of a process; `output_total` counts the stream that was asked for."""
    return known(state) | {"output_total": state.output_total[stream], "notes": list(state.notes)}


def chunk_view(chunk: Chunk, stream: Stream) -> dict[str, Any]:
    """Return one piece of output together with the state of its process."""
    state = process_view(chunk.state, stream)
    return state | {
        "notes": [*state["notes"], *([_replaced(chunk.replaced)] if chunk.replaced else [])],
        "chunk": chunk.text,
        "encoding": chunk.encoding,
        "stream": stream,
        "cursor": chunk.cursor,
        "eof": chunk.eof,
        "retained_from": chunk.retained_from,
        "retained_head": chunk.retained_head,
        "output_lost": chunk.output_lost,
    }


def kept_view(kept: Kept, state: ProcessState, stream: Stream) -> dict[str, Any]:
    """Return output from disk together with what is known of its process."""
    return chunk_view(
        Chunk(
            kept.text,
            kept.encoding,
            kept.cursor,
            kept.eof,
            kept.retained_from,
            kept.output_lost,
            state,
            kept.retained_head,
            kept.replaced,
        ),
        stream,
    )


def _replaced(count: int) -> str:
    bytes_are = "1 byte of this output is" if count == 1 else f"{count} bytes of this output are"
    return f"{bytes_are} no UTF-8 and shown as U+FFFD; read_process with encoding `base64` gives them as they are."
