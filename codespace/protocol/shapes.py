"""The shapes of results: JSON Schemas of what `structuredContent` holds.

They name what a program may rely on and leave room for more fields. Absent is absent, never null.
"""

from __future__ import annotations

from typing import Any, Final

Shape = dict[str, Any]

TEXT: Final[Shape] = {"type": "string"}
COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
FLAG: Final[Shape] = {"type": "boolean"}
TEXTS: Final[Shape] = {"type": "array", "items": TEXT}
ANYTHING: Final[Shape] = {"type": "object"}
TIME: Final[Shape] = {"type": ["number", "string"], "description": "Seconds since the epoch, or ISO 8601."}


def choice(*values: str) -> Shape:
    return {"type": "string", "enum": list(values)}


def each(item: Shape) -> Shape:
    return {"type": "array", "items": item}


def fields(required: str, **shapes: Shape) -> Shape:
    """Return an object schema; `required` lists the fields that are always there, separated by spaces."""
    schema: Shape = {"type": "object", "properties": shapes}
    return schema | {"required": required.split()} if required else schema


def answer(required: str, **shapes: Shape) -> Shape:
    """Return the shape of a whole result: `fields`, and what any result may carry."""
    return fields(required, **shapes, ignored_arguments=TEXTS, coordination=ANYTHING)


_ERROR: Final = fields("code message", code=TEXT, message=TEXT, next_step=TEXT, retryable=FLAG, details=ANYTHING)
_READ: Final[dict[str, Shape]] = {
    "path": TEXT,
    "content": TEXT,
    "encoding": choice("text", "base64"),
    "version": TEXT,
    "size_bytes": COUNT,
    "total_lines": COUNT,
    "start_line": COUNT,
    "end_line": COUNT,
    "line_ending": choice("lf", "crlf", "mixed", "none"),
    "final_newline": FLAG,
    "truncated": FLAG,
    "media_type": TEXT,
}
_CHANGE: Final = fields(
    "path kind before_version after_version",
    path=TEXT,
    kind=choice("add", "update", "delete", "move"),
    from_path=TEXT,
    before_version=TEXT,
    after_version=TEXT,
    mode=TEXT,
)
_RUN: Final[dict[str, Shape]] = {
    "process_id": TEXT,
    "state": choice("running", "exited"),
    "exit_code": {"type": "integer"},
    "signal": {"type": ["string", "integer"]},
    "termination": choice("exited", "timeout", "terminated", "limit", "lost"),
    "output_total": {"type": ["integer", "object"]},
    "started_at": TIME,
    "ended_at": TIME,
    "notes": TEXTS,
    "resources": fields("", cpu_seconds={"type": "number", "minimum": 0}, max_memory_bytes=COUNT),
    "planted": TEXTS,
}
_DECISIONS: Final[dict[str, Shape]] = {"network_decisions": each(ANYTHING)}
_STATE: Final = _RUN | _DECISIONS | {"operation_id": TEXT, "workspace_id": TEXT, "command": TEXTS}
_OUTPUT: Final = _RUN | {
    "chunk": TEXT,
    "encoding": choice("text", "base64"),
    "stream": choice("combined", "stdout", "stderr"),
    "cursor": COUNT,
    "eof": FLAG,
    "retained_from": COUNT,
    "retained_head": COUNT,
    "output_lost": COUNT,
}
_HELD: Final[dict[str, Shape]] = {"approval_id": TEXT, "state": TEXT, "expires_at": TIME}
_APPROVAL: Final[dict[str, Shape]] = _HELD | {
    "tool": TEXT,
    "workspace_id": TEXT,
    "fingerprint": TEXT,
    "shown": ANYTHING,
    "reason": TEXT,
    "result": ANYTHING,
}
_MATCH: Final = fields("path line text", path=TEXT, line=COUNT, column=COUNT, text=TEXT, before=TEXTS, after=TEXTS)

INFO: Final = answer(
    "server version tools_exposed workspaces",
    server=TEXT,
    version=TEXT,
    tools_exposed=TEXTS,
    transports=TEXTS,
    protocol_versions=TEXTS,
    workspaces=each(fields("", id=TEXT, workspace_id=TEXT, profile=TEXT)),
    workspace_id=TEXT,
    profile=choice("read-only", "workspace-write"),
    root=TEXT,
    execution=ANYTHING,
)
READ: Final = answer("path content version size_bytes truncated", **_READ)
READ_MANY: Final = answer("entries", entries=each(fields("path", **_READ, error=_ERROR)))
FIND: Final = answer(
    "paths truncated total_seen", paths=TEXTS, truncated=FLAG, total_seen=COUNT, reason=TEXT, notes=TEXTS
)
SEARCH: Final = answer(
    "matches truncated files_searched",
    matches=each(_MATCH),
    truncated=FLAG,
    files_searched=COUNT,
    reason=TEXT,
    notes=TEXTS,
)
PATCH: Final = answer(
    "status files changes",
    status=choice("applied", "checked"),
    operation_id=TEXT,
    replayed=FLAG,
    files=TEXTS,
    changes=each(_CHANGE),
    diff=TEXT,
    diff_truncated=FLAG,
    notes=TEXTS,
    still_current={"type": ["boolean", "object"]},
    files_left_out=COUNT,
    rescued=TEXTS,
)
OPERATION: Final = answer(
    "kind status workspace_id created_at",
    operation_id=TEXT,
    kind=choice("patch", "exec"),
    status=TEXT,
    workspace_id=TEXT,
    created_at=TIME,
    finished_at=TIME,
    files=TEXTS,
    changes=each(_CHANGE),
    still_current={"type": ["boolean", "object"]},
    files_left_out=COUNT,
    events=each(ANYTHING),
    process_id=TEXT,
    outcome=ANYTHING,
)
EXEC: Final = answer(
    "process_id operation_id dispatch_status",
    **_OUTPUT,
    operation_id=TEXT,
    dispatch_status=choice("confirmed", "unknown"),
    replayed=FLAG,
    sandbox={"type": ["string", "object"]},
    network={"type": ["string", "object"]},
)
OUTPUT: Final = answer("process_id chunk cursor eof state", **_OUTPUT, **_DECISIONS)
STATE: Final = answer("process_id state", **_STATE)
PROCESSES: Final = answer("processes", processes=each(fields("process_id state", **_STATE)))
RESIZED: Final = answer("process_id rows cols", process_id=TEXT, rows=COUNT, cols=COUNT)
WRITTEN: Final = answer("bytes_written", bytes_written=COUNT, bytes_left=COUNT)
HELD: Final = answer("approval_id state", **_HELD)
APPROVAL: Final = answer("approval_id state", **_APPROVAL)
RESUMED: Final = answer(
    "approval_id state",
    approval_id=TEXT,
    state=TEXT,
    apply_patch=ANYTHING,
    exec_command=ANYTHING,
    operation_undo=ANYTHING,
    write_stdin=ANYTHING,
)

_INTENT: Final = fields(
    "intent_id kind state text",
    intent_id=TEXT,
    kind=choice("follow_up", "note", "stop_notice"),
    state=choice("claimed", "done", "blocked"),
    text=TEXT,
    note=TEXT,
)
_COUNTED: Final[dict[str, Shape]] = {"work_id": TEXT, "queued": COUNT, "claimed": COUNT}
_WORK_STATE: Final = choice("active", "closing", "closed")
OPENED: Final = answer("work_id queued claimed", **_COUNTED)
WORK: Final = answer("work_id queued claimed", **_COUNTED, state=_WORK_STATE)
COMPLETED: Final = answer("work_id queued claimed", **_COUNTED, intent=_INTENT)
CLAIMED: Final = answer("work_id queued claimed", **_COUNTED, intent=_INTENT, undone=each(_INTENT))
FINISHED: Final = answer(
    "work_id closed",
    **_COUNTED,
    closed=FLAG,
    reason=choice("pending_user_input", "commands_running"),
    state=_WORK_STATE,
)
