"""Results as text that a model can work from alone: what is true first, the content behind it, unchanged.

Everything the server itself says stands before the content, so that a file or a command's output
cannot pass for it. Names from outside are escaped; content is not: a patch must match it exactly.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from codespace import duration, limits
from codespace.display import display, display_json

Result = Mapping[str, Any]

_NO_PATH: Final = "Names of files are compared: `dir/` takes all below `dir`. Ignored files come with include_ignored."
_NO_FILE: Final = "Ignored files are left out: read them, or search by a command. A glob `dir/` takes all below `dir`."
_ESCAPE: Final = re.compile(r"\\(?:[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_NOT_SAYABLE: Final = "A name with an escape, such as \\n, may hold what no argument can: a shell's pattern reaches it."


def write(tool: str, result: Result) -> str:
    """Return the text of a success result; JSON for a tool without a writer of its own."""
    writer = _WRITERS.get(tool)
    text = display_json(result) if writer is None else writer(result)
    for name, label in (
        ("ignored_arguments", "Ignored arguments"),
        ("coordination", "Waiting user input (steer_claim_next)"),
    ):
        if result.get(name):
            text = f"{label}: {display_json(result[name])}\n{text}"
    return text


def _name(text: Any) -> str:
    """Return a name as it can be sent back: made harmless, but a backslash in it stays one."""
    shown = "\\".join(display(part) for part in str(text).split("\\"))
    return shown if len(shown) <= limits.PATH_CHARACTERS else f"{shown[: limits.PATH_CHARACTERS]}… (cut)"


def _line(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


# --- files ---


def _info(result: Result) -> str:
    none = "(none: ask the operator to register a directory with `codespace init DIR` and to restart)"
    listed = [
        f"- {_name(each.get('workspace_id') or each.get('id'))} ({_name(each.get('profile', '?'))})"
        for each in result["workspaces"]
    ]
    lines = [f"{result['server']} {result['version']}", "Workspaces:", *(listed or [none])]
    if "execution" in result:
        lines += [
            _line(f"workspace_id {_name(result.get('workspace_id'))}", f"profile {result.get('profile')}"),
            f"root {_name(result.get('root'))}",
            f"execution {display_json(result['execution'])}",
        ]
    elif listed:
        lines.append("Next: workspace_info with a workspace_id says what is allowed and enforced there.")
    lines.append(f"Tools: {', '.join(result['tools_exposed'])}")
    return "\n".join(lines)


def _read(result: Result) -> str:
    head = _head(result)
    return head if is_image(result) else f"{head}\n{result['content']}"


def _head(result: Result, onwards: str | None = None) -> str:
    ending = result.get("line_ending")
    head = _line(
        _name(result["path"]),
        _range(result),
        f"{result['size_bytes']} bytes",
        None if ending in (None, "lf", "none") else f"line endings {ending}",
        "no newline at the end" if result.get("final_newline") is False and result["size_bytes"] else None,
        "base64" if result.get("encoding") == "base64" else None,
        f"version {result['version']}",
    )
    if result["truncated"]:
        head += f"\n{onwards or _onwards(result)}"
    return head


def _range(result: Result) -> str | None:
    total, end = result.get("total_lines"), result.get("end_line")
    if end is not None:
        return f"lines {result.get('start_line')}-{end} of {total}"
    if total is None or result["content"] or not result["size_bytes"] or result["truncated"]:
        return None
    return f"nothing there: the file has {_count(total, 'line')}"


def _onwards(result: Result) -> str:
    """Say how to have the rest of what was cut."""
    start, end = result.get("start_line"), result.get("end_line")
    if start is None or end is None:
        return "Cut here; ranges of lines (start_line, line_count) give the rest, and a command what is one long line."
    if _ends_a_line(result):
        return f"Cut here; go on with start_line {end + 1}"
    if end > start:
        return f"Cut here, within line {end}; go on with start_line {end}"
    behind = "" if end == result.get("total_lines") else f" Behind it, go on with start_line {end + 1}."
    return f"Cut here, within line {end}, which is longer than one answer: a command (cut -c) gives its rest.{behind}"


def _ends_a_line(result: Result) -> bool:
    content = str(result["content"])
    if result.get("encoding") == "base64":
        return base64.b64decode(content[-4:]).endswith(b"\n")
    return content.endswith("\n")


def is_image(result: Result) -> bool:
    """Return whether a read result is an image that clients can show."""
    media_type = str(result.get("media_type"))
    return media_type.startswith("image/") and result.get("encoding") == "base64"


def _read_many(result: Result) -> str:
    mark = secrets.token_hex(4)  # which no file can know: none can pass for the end of itself and for another one
    heads = [_entry(entry) for entry in result["entries"]]
    shown = [entry for entry in result["entries"] if "error" not in entry and not is_image(entry)]
    contents = [f"=== {mark} {_name(entry['path'])}\n{entry['content']}" for entry in shown]
    if contents:
        heads.append(f"Each content stands behind a line of its own with {mark}:")
    return "\n".join([*heads, *contents])


def _entry(entry: Result) -> str:
    error = entry.get("error")
    if error is None:
        return _head(entry, "Cut here, where the answer is full: read it alone")
    told = f"{error['message']} {error.get('next_step', '')}".rstrip()
    return f"{_name(entry['path'])} · {error['code']}: {display(told, newlines=True)}"


def _cut(result: Result) -> str:
    if not result["truncated"]:
        return ""
    reason = result.get("reason")
    advice = "" if reason in ("binary", "unreadable") else "; narrow it"  # where a note says what helps
    return f" (cut: {reason}{advice})" if reason else " (cut; narrow it)"


def _escaped(paths: Sequence[str]) -> list[str]:
    """Say what an escape stands for in names as they are shown."""
    odd = ((letter, shown) for path in paths if (shown := _name(path)) != path for letter in path if letter != "\\")
    escape = next((told for letter, shown in odd if (told := display(letter)) != letter and told in shown), None)
    notes = [] if escape is None else [f"{escape} in a name stands for that one character: send the character."]
    return [*notes, _NOT_SAYABLE] if any(map(_ESCAPE.search, paths)) else notes


def _notes(result: Result) -> list[str]:
    return [f"note: {display(note, newlines=True)}" for note in result.get("notes", ())]


def _count(number: int, thing: str, plural: str = "s") -> str:
    return f"{number} {thing}{'' if number == 1 else plural}"


def _find(result: Result) -> str:
    paths, seen = result["paths"], result["total_seen"]
    head = _count(seen, "path") if len(paths) == seen else f"{len(paths)} of {_count(seen, 'path')}"
    notes = [*_notes(result), *([] if seen or result["truncated"] else [_NO_PATH])]
    return "\n".join([f"{head}{_cut(result)}", *notes, *_escaped(paths), *map(_name, paths)])


def _search(result: Result) -> str:
    searched = _count(result["files_searched"], "file")
    lines = [f"{_count(len(result['matches']), 'match', 'es')}, {searched} searched{_cut(result)}"]
    lines += [*_notes(result), *([] if result["files_searched"] or result["truncated"] else [_NO_FILE])]
    lines += _escaped([match["path"] for match in result["matches"]])
    for match in result["matches"]:
        path, number = _name(match["path"]), match["line"]
        before, after = match.get("before", ()), match.get("after", ())
        lines += [f"{path}-{number - len(before) + index}-{text}" for index, text in enumerate(before)]
        lines.append(f"{path}:{number}:{match.get('column', 1)}:{match['text']}")
        lines += [f"{path}-{number + 1 + index}-{text}" for index, text in enumerate(after)]
    return "\n".join(lines)


def _patch(result: Result) -> str:
    said = {
        "applied": "applied: the disk was read back and is so",
        "checked": "checked only: nothing was written",
    }[result["status"]]
    if result.get("replayed"):  # what was read back then may be otherwise by now
        said = f"{result['status']} · replayed: this is the recorded result, nothing was done again"
    lines = [_line(said, _id(result, "operation_id"))]
    lines += map(_change, result["changes"])
    if not result["changes"] and not result.get("files_left_out"):
        lines.append("no net change: every file is as it was before the patch")
    lines += _notes(result)
    lines += _since(result)
    if result.get("rescued"):
        lines.append(f"bytes of others that it found are kept for the operator: {display_json(result['rescued'])}")
    if result.get("diff"):
        lines.append("diff (cut):" if result.get("diff_truncated") else "diff:")
        lines.append(result["diff"])
    return "\n".join(lines)


def _since(result: Result) -> list[str]:
    """Say whether the files are still what an operation made of them, or how many of them are not told."""
    if "still_current" not in result:
        return [f"left out, hidden by now: {_count(left, 'file')}"] if (left := result.get("files_left_out")) else []
    if result["still_current"] is False:
        return ["not as the operation left it any more: read the files before you go on"]
    return [f"still as the operation left it: {display_json(result['still_current'])}"]


def _change(change: Result) -> str:
    source = f" from {_name(change['from_path'])}" if change.get("from_path") else ""
    mode = f", mode {change['mode']}" if change.get("mode") else ""
    return f"{change['kind']} {_name(change['path'])}{source} -> {change['after_version']}{mode}"


def _operation(result: Result) -> str:
    lines = [
        _line(
            f"{result['kind']} {result['status']}",
            _id(result, "operation_id"),
            _id(result, "process_id"),
            f"workspace_id {_name(result['workspace_id'])}",
        )
    ]
    lines += map(_change, result.get("changes", ()))
    lines += _since(result)
    if result.get("process_id"):
        lines.append("Next: read_process for its output, as long as that is kept.")
    if "outcome" in result:
        lines.append(f"outcome {display_json(result['outcome'])}")
    return "\n".join([*lines, *_events(result)])


def _events(result: Result) -> list[str]:
    """Name the steps, with what only they tell. Why each is taken is the law's, and the same for all operations."""
    told, steps = {**result, **result.get("outcome", {})}, list[str]()
    for event in result.get("events", ()):
        news = {name: value for name, value in event.get("details", {}).items() if told.get(name) != value}
        steps.append(f"{event['event']} {display_json(news)}" if news else event["event"])
    if steps and "finished_at" not in result:
        steps[-1] += f": {display(str(result['events'][-1].get('reason', '')))}"
    return [f"events {', '.join(steps)}"] if steps else []


# --- commands ---


def _exec(result: Result) -> str:
    dispatched, stored = result["dispatch_status"], "chunk" not in result
    lines = [
        "running when this was recorded" if stored and result.get("state") == "running" else _ending(result),
        _line(
            _id(result, "process_id"),
            _id(result, "operation_id"),
            "replayed: nothing was started again" if result.get("replayed") else None,
            None if dispatched == "confirmed" else f"dispatch {dispatched}: whether it was started is not known yet",
            _force("sandbox", result),
            _force("network", result),
        ),
    ]
    network = result.get("network")
    decisions = network.get("decisions", ()) if isinstance(network, Mapping) else ()
    lines += [f"network decision: {display_json(decision)}" for decision in decisions]
    return "\n".join([*lines, *_tail(result)])


def _output(result: Result) -> str:
    return "\n".join([_line(_ending(result), _id(result, "process_id")), *_tail(result)])


def _tail(result: Result) -> list[str]:
    """Notes, how to go on, what was lost, and last the output itself."""
    lines = _notes(result)
    if result.get("output_lost"):
        lines.append(f"{result['output_lost']} bytes before this were dropped and cannot be had any more")
    if result.get("retained_head"):
        lines.append(
            f"kept are the first {result['retained_head']} bytes and all from cursor {result['retained_from']} on"
        )
    if "chunk" not in result:  # a stored result
        return [*lines, "Next: read_process tells how it is now, and its output as long as that is kept."]
    cursor, chunk = result["cursor"], result["chunk"]
    if result.get("state") == "running":
        lines.append(f"Next: read_process with cursor {cursor} (and wait_seconds).")
    elif not result.get("eof", True):
        lines.append(f"Next: read_process with cursor {cursor}; there is more.")
    lines += filter(None, [None if result.get("eof", True) else _size(result)])
    encoding = " (base64)" if result.get("encoding") == "base64" else ""
    is_lost = result.get("termination") == "lost" or result.get("output_lost")
    nothing = "(no output is kept)" if is_lost else "(no output)"
    return [*lines, f"output{encoding}:", chunk] if chunk else [*lines, nothing]


def _size(result: Result) -> str | None:
    """Say how much output there is, and where its last page begins if that is neither this one nor the next."""
    if not isinstance(total := result.get("output_total"), int):
        return None
    last = total - limits.OUTPUT_CHUNK_BYTES
    page = f", the last page from cursor {last}" if last > result.get("cursor", 0) else ""
    return f"{_count(total, 'byte')} of output{page}"


def _state(result: Result) -> str:
    command = display_json(result["command"], limit=limits.ERROR_TEXT_CHARACTERS) if "command" in result else None
    ids = (_id(result, name) for name in ("process_id", "operation_id", "workspace_id"))
    lines = [_line(_ending(result), _size(result), *ids, command)]
    if result.get("state") == "running":
        lines.append("Next: read_process with wait_seconds waits for output; terminate_process ends it.")
    return "\n".join(lines + _notes(result))


def _processes(result: Result) -> str:
    found = result["processes"]
    shown = sum(each["state"] == "running" for each in found) + limits.PROCESSES_SHOWN  # those that run are the first
    lines = [*map(_state, found[:shown])]
    if found[shown:]:
        lines.append(f"and {len(found) - shown} ended ones that started earlier; a workspace_id narrows the list")
    return "\n".join(lines) or "No command runs, and none is kept."


def _ending(result: Result) -> str:
    """Say how a command ended, or that it runs."""
    if result.get("state") != "exited":
        return "running" if result.get("state") == "running" else "state unknown"
    how = result.get("termination", "exited")
    seconds = _seconds(result)
    if how == "lost":
        return "lost: what ran it is gone, its end was not seen"
    code = f"exit code {result['exit_code']}" if result.get("exit_code") is not None else None
    signal = f"signal {result['signal']}" if result.get("signal") is not None else None
    why = {"timeout": "ended by its time limit", "terminated": "terminated", "limit": "ended by a limit"}.get(how)
    return _line(f"ended{seconds}", why, code, signal, _used(result))


def _used(result: Result) -> str | None:
    used = result.get("resources") or {}
    if "cpu_seconds" not in used or "max_memory_bytes" not in used:
        return None
    return f"used {used['cpu_seconds']:.2f} s CPU, {used['max_memory_bytes'] / 1_048_576:.0f} MiB"


def _seconds(result: Result) -> str:
    started, ended = result.get("started_at"), result.get("ended_at")
    if isinstance(started, int | float) and isinstance(ended, int | float):
        return f" after {max(0.0, ended - started):.2f} s"
    return ""


def _resized(result: Result) -> str:
    return f"{result['rows']} rows by {result['cols']} columns. Next: read_process shows what it draws."


def _written(result: Result) -> str:
    written = f"{_count(result['bytes_written'], 'byte')} written."
    if left := result.get("bytes_left"):
        return (
            f"{written} The command did not take the last {_count(left, 'byte')}, and its input was not closed. "
            "Next: read_process shows what it does; send them again once it reads."
        )
    return f"{written} Next: read_process with wait_seconds shows the answer."


# --- approvals ---


def _approval(result: Result) -> str:
    state = result["state"]
    nexts = {
        "pending": "Next: approval_status with wait_seconds waits for the operator. Where approvals are not "
        "`operator`, ask your user, then approval_resolve.",
        "granted": "Next: operation_resume runs it.",
        "consumed": "It was resumed; operation_resume repeats its result.",
        "denied": "Nothing was done, and it will not be.",
        "expired": "Nobody refused it: its time ran out, and nothing was done. Next: send the request again for a new "
        "hold.",
    }
    reason = f"reason {display(str(result['reason']))}" if result.get("reason") else None
    ids = (_id(result, name) for name in ("approval_id", "tool", "workspace_id"))
    until = duration.moment(result.get("expires_at", -1)) if state in ("pending", "granted") else None
    ending = "expired" if state == "denied" and result.get("reason") == "expired" else state
    lines = [_line(state, *ids, f"expires {until}" if until else None, reason), nexts.get(ending, "")]
    if result.get("shown"):
        lines.append(f"shown {display_json(result['shown'])}")
    if "result" in result:
        lines.append(f"result {display_json(result['result'])}")
    return "\n".join(line for line in lines if line)


def _resumed(result: Result) -> str:
    lines = [_line(result["state"], _id(result, "approval_id"))]
    for tool in ("apply_patch", "exec_command", "operation_undo", "write_stdin"):
        if isinstance(result.get(tool), Mapping):
            lines.append(_stored(tool, result[tool]))
    return "\n".join(lines)


def _stored(tool: str, result: Result) -> str:
    """A stored result lacks diff and output, and may be an error: write what is there."""
    writer = _WRITERS.get(tool)
    try:
        return display_json(result) if writer is None else f"{tool}: {writer(result)}"
    except (KeyError, TypeError):
        return f"{tool}: {display_json(result)}"


# --- works ---


def _work(result: Result) -> str:
    return "\n".join([_line(_id(result, "work_id"), result.get("state")), *_waiting(result)])


def _waiting(result: Result) -> list[str]:
    lines = [_line(f"{result['queued']} queued", f"{result['claimed']} claimed and not completed")]
    if result["queued"]:
        lines.append("Next: user input waits; steer_claim_next gives it when it is due.")
    return lines


def _claimed(result: Result) -> str:
    """The texts of intents stand last and unchanged: they are the user's words, not the server's."""
    lines = [_line(_id(result, "work_id")), *_waiting(result)]
    intent = result.get("intent")
    if intent is None and not result.get("undone"):
        return "\n".join(["Nothing is due now.", *lines])
    if intent is None:
        return "\n".join(
            ["Nothing new is due; claimed before and not completed:", *lines, *map(_intent, result["undone"])]
        )
    if intent["state"] == "claimed":
        lines.append("Next: do it within what you are allowed to, then steer_complete with this intent_id.")
    return "\n".join([*lines, _intent(intent)])


def _intent(intent: Result) -> str:
    note = f"note {display(str(intent['note']))}" if intent.get("note") else None
    return f"{_line(_id(intent, 'intent_id'), intent['kind'], intent['state'], note)}\n{intent['text']}"


def _finished(result: Result) -> str:
    if result["closed"]:
        return _line("closed", _id(result, "work_id"))
    nexts = {
        "pending_user_input": "Next: steer_claim_next and steer_complete until nothing waits, then work_finish.",
        "commands_running": "Next: wait for its commands or end them; it closes then. work_finish tells.",
    }
    return "\n".join(
        [_line("not closed", f"reason {result['reason']}", _id(result, "work_id")), nexts[result["reason"]]]
    )


def _id(result: Result, name: str) -> str | None:
    return f"{name} {_name(result[name])}" if result.get(name) else None


def _force(name: str, result: Result) -> str | None:
    if name not in result:
        return None
    value = result[name]
    if isinstance(value, Mapping) and "enforcement" in value:
        value = f"{value.get('policy', '')} (enforcement {value['enforcement']})"
    return f"{name} {value if isinstance(value, str) else display_json(value)}"


_WRITERS: Final[Mapping[str, Callable[[Result], str]]] = {
    "workspace_info": _info,
    "read": _read,
    "read_many": _read_many,
    "find": _find,
    "search": _search,
    "apply_patch": _patch,
    "operation_status": _operation,
    "operation_undo": _patch,
    "exec_command": _exec,
    "read_process": _output,
    "process_status": _state,
    "list_processes": _processes,
    "write_stdin": _written,
    "resize_process": _resized,
    "terminate_process": _state,
    "approval_create": _approval,
    "approval_status": _approval,
    "approval_resolve": _approval,
    "operation_resume": _resumed,
    "work_open": _work,
    "steer_status": _work,
    "steer_claim_next": _claimed,
    "steer_complete": _claimed,
    "work_finish": _finished,
}
