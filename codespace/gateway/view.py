"""How records look from outside: dataclasses and rows turned into the contract's plain JSON values."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from codespace import limits
from codespace.beneath import Hidden
from codespace.contract import Chunk, Kept, PatchPlan, ProcessState, Stream, Workspace
from codespace.errors import CODES, Refusal
from codespace.gateway.event import Event
from codespace.gateway.hold import Hold
from codespace.gateway.operation import Operation

_PATHS: Final = frozenset({"path", "from_path", "files", "kept", "rescued"})
_OF_ALL: Final = frozenset({"diff", "diff_truncated", "notes"})
_LONG: Final = frozenset({"diff", "diff_truncated", "stdin", "data"})


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


def hides_any(workspace: Workspace, told: Any) -> bool:
    """Return whether a plain JSON value names a file that is hidden from agents by now: a record may be older than the
    setting, or of a daemon with another one."""
    return any(map(Hidden(workspace.hidden_paths).may_cover, _paths(told)))


def _paths(told: Any, *, is_path: bool = False) -> Iterator[str]:
    """Yield what a plain JSON value holds under the names that paths have in records."""
    if isinstance(told, Mapping):
        for name, value in told.items():
            yield from _paths(value, is_path=name in _PATHS)
    elif isinstance(told, list | tuple):
        for each in told:
            yield from _paths(each, is_path=is_path)
    elif is_path and isinstance(told, str):
        yield told


def visible(told: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Return what is told of files without those that are hidden by now; `files_left_out` counts them.

    A diff and the notes go as a whole, and so does a move from or to such a file.
    """
    hidden = Hidden(workspace.hidden_paths).may_cover
    files, changes, bound = told.get("files", ()), told.get("changes", ()), told.get("bound", {})
    left_out = set(filter(hidden, (*files, *_paths(changes))))
    unbound = {name for name, value in bound.items() if any(map(hidden, _named_by(name, value)))}
    shown = dict(told)
    if left_out:
        shown = {name: value for name, value in told.items() if name not in _OF_ALL} | {
            "files": [path for path in files if path not in left_out],
            "changes": [change for change in changes if left_out.isdisjoint(_paths(change))],
        }
    if unbound:
        shown["bound"] = {name: value for name, value in bound.items() if name not in unbound}
    if "events" in told:
        shown["events"] = [
            {name: value for name, value in event.items() if name != "details" or not any(map(hidden, _paths(value)))}
            for event in told["events"]
        ]
    return shown | ({"files_left_out": len(left_out) + len(unbound)} if left_out or unbound else {})


def _named_by(name: str, value: str) -> tuple[str, str]:
    """Return what an entry of `bound` is of, and where it leads where it is a link."""
    return name.partition(":")[2], value.removeprefix("-> ").partition(", outside of")[0]


def visible_body(body: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Return a stored error body; one that tells of a file that is hidden by now says its code's meaning alone."""
    refusal = Refusal.from_body(body)
    if not hides_any(workspace, refusal.details):
        return dict(body)
    refusal.message = f"{CODES[refusal.code].meaning} It is about a file that is hidden by now."
    refusal.next_step = CODES[refusal.code].next_step
    refusal.details = {name: value for name, value in (refusal.details or {}).items() if name in ("status", "replayed")}
    return refusal.body()


def hold_view(hold: Hold) -> dict[str, Any]:
    """Return what every answer about a hold says."""
    return {"approval_id": hold.id, "state": hold.state, "expires_at": hold.expires_at}


def shown_view(hold: Hold, *, again: bool = False) -> dict[str, Any]:
    """Return what a hold shows, as much of its diff as an answer holds; who decides reads the whole.

    Args:
        again: For who asks after a hold, perhaps often. Where the operator decides, long texts are left out, and
            `left_out` is there instead: they are what was sent.
    """
    shown = dict(hold.shown)
    if again and hold.approvals == "operator" and any(shown.get(name) for name in _LONG):
        return {name: value for name, value in shown.items() if name not in _LONG} | {"left_out": True}
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


def network_view(workspace: Workspace) -> dict[str, Any]:
    """Return what a held command may reach, as it is bound; each name as a decision of the proxy tells its entry."""
    domains = []
    for each in workspace.allowed_domains:
        port, pin = (f":{each.port}" if each.port else ""), (f"={each.address}" if each.address else "")
        domains.append(f"{each.host}{port}{pin}")
    return {"policy": workspace.network, "allowed_domains": domains}


def reach_view(shown: Mapping[str, Any]) -> str:
    """Return in words what network a held command was shown to get."""
    network = shown.get("network")
    if network is None:  # held before it was bound
        return "not told"
    listed = f": {', '.join(network['allowed_domains']) or 'no host'}" if network["policy"] == "enabled" else ""
    return f"policy {network['policy']}{listed}"


def input_view(shown: Mapping[str, Any]) -> str:
    """Return what a held write would write, as a person can read it: decoded, bytes that are no text as escapes."""
    data = str(shown["data"])
    if shown["encoding"] != "base64":
        return data
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "backslashreplace")
    except ValueError:
        return data  # no base64: the write will be refused


def held(hold: Hold, workspace: Workspace, *, again: bool = False) -> Refusal:
    """Return the refusal that a held request of a workspace gets; once either says so, the operator alone decides.

    Args:
        again: As in `shown_view`.
    """
    approvals = "operator" if workspace.approvals == "operator" else hold.approvals
    decided = "Wait with approval_status until the operator has decided, then call operation_resume with approval_id."
    if approvals != "operator":  # nobody else may ever look at it
        decided = (
            "Ask your user whether it shall be done as shown, call approval_resolve with the decision and, once it is "
            "granted, operation_resume, each with approval_id."
        )
    return Refusal(
        "APPROVAL_REQUIRED",
        "The request is held until it is granted; nothing was done.",
        next_step=decided,
        details={
            "workspace_id": hold.workspace_id,
            "root": hold.root,
            "expires_at": hold.expires_at,
            "shown": visible(shown_view(hold, again=again), workspace),
            "approvals": approvals,
        },
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
    """Return files, net changes and the bounded diff of a plan, and `notes` where it has any."""
    view = {
        "files": list(plan.files),
        "changes": [known(change) for change in plan.changes],
        "diff": plan.diff,
        "diff_truncated": plan.diff_truncated,
    }
    return view | {"notes": list(plan.notes)} if plan.notes else view


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


def time_notes(state: ProcessState, workspace: Workspace, timeout_seconds: float | None) -> list[str]:
    """Say when a command ends at the latest, and of one that did what limit it had and how to have a longer one.

    Args:
        timeout_seconds: Its limit; None where that is not known.
    """
    if state.state == "running":
        return [] if timeout_seconds is None else [f"Its time limit ends it after {timeout_seconds:g} s at the latest."]
    if state.termination != "timeout":
        return []
    most = f"{workspace.max_timeout_seconds:g} s, the operator's `max_timeout_seconds`"
    if timeout_seconds is not None and timeout_seconds >= workspace.max_timeout_seconds:
        return [f"It had the longest time limit that is allowed here: {most}."]
    had = "" if timeout_seconds is None else f"Its time limit was {timeout_seconds:g} s. "
    return [f"{had}`timeout_seconds` gives a command a longer one: at most {most}."]


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
