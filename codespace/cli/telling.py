"""A hold in words for a terminal: all that is granted with it, every outside text made harmless, nothing cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from codespace.cli.recorded import ago
from codespace.display import display
from codespace.gateway.hold import Hold
from codespace.gateway.view import input_view, reach_view, stdin_view

_SUMMARY_CHARACTERS = 60  # one line of a table on a small terminal


def summary(hold: Hold) -> str:
    """Return what a hold is about, in one short line."""
    shown = hold.shown
    if "command" in shown and hold.tool == "exec_command":
        return display(" ".join(shown["command"]), limit=_SUMMARY_CHARACTERS)
    if hold.tool == "write_stdin":
        return display(f"{shown.get('process_id', '')} <- {shown.get('data', '')}", limit=_SUMMARY_CHARACTERS)
    return display(", ".join(shown.get("files", [])), limit=_SUMMARY_CHARACTERS)


def lines(hold: Hold, now: float) -> Iterator[str]:
    """Yield the lines that show the whole of a hold."""
    yield f"{hold.id}  {hold.tool} in {hold.workspace_id}: {hold.state}{_left(hold, now)}"
    if hold.root is not None:
        yield f"root         {display(hold.root)}"
    yield f"fingerprint  {hold.fingerprint}"
    if hold.decided_by is not None:
        yield f"decided by   {hold.decided_by}"
    if hold.reason is not None:
        yield f"reason       {display(hold.reason)}"
    yield from _changes(hold.shown)
    yield from _command(hold.shown)
    if hold.tool == "write_stdin" and "data" in hold.shown:
        yield f"process      {hold.shown['process_id']}{' (then closed)' if hold.shown['eof'] else ''}"
        yield f"input        {display(input_view(hold.shown))} (sent as {hold.shown['encoding']})"
    if "diff" in hold.shown:
        yield ""
        yield display(hold.shown["diff"], newlines=True)


def _left(hold: Hold, now: float) -> str:
    return f", expires in {ago(hold.expires_at - now)}" if hold.state in ("pending", "granted") else ""


def _changes(shown: Mapping[str, Any]) -> Iterator[str]:
    for change in shown.get("changes", []):
        origin = f" (from {display(change['from_path'])})" if change.get("from_path") else ""
        mode = f", mode {change['mode']}" if change.get("mode") else ""
        yield f"{change['kind']:<12} {display(change['path'])}{origin}{mode}"
    yield from (f"note         {display(note)}" for note in shown.get("notes", []))


def _command(shown: Mapping[str, Any]) -> Iterator[str]:
    for number, item in enumerate(shown.get("command", [])):
        yield f"argv[{number}]".ljust(12) + f" {display(item)}"
    if "cwd" in shown:
        yield f"directory    {display(shown['cwd'])}"
        yield from (f"variable     {display(name)}={display(value)}" for name, value in shown["env"].items())
        yield f"stdin        {display(stdin_view(shown))}"
        yield f"network      {display(reach_view(shown))}"
        yield f"time limit   {shown['timeout_seconds']:g} s"
    for name, version in shown.get("bound", {}).items():
        label, _, path = name.partition(":")
        yield f"{display(label):<12} " + " ".join(display(part) for part in (path, version) if part)
