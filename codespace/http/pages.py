"""The console's pages: templates whose every expression is made harmless, and the headers that go with each.

A template cannot forget it: whatever an expression gives is passed through `display`, then HTML-escaped.
Text of several lines passes the filter `lines` instead; what the operator wrote himself and edits again is
only escaped (`own`). It knows no route and decides nothing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import codespace
from codespace import duration, limits
from codespace.display import display
from codespace.gateway.grants import Grant
from codespace.gateway.hold import Hold
from codespace.gateway.view import input_view, reach_view, stdin_view

FOLDER: Final = Path(codespace.__file__).parent / "console"
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` browsers send `Origin: null` with forms, and each is checked for its origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HUNK: Final = re.compile(r"@@ -\d+,(\d+) \+\d+,(\d+) @@")


@dataclass(frozen=True, slots=True)
class DiffPart:
    """One page of a diff: lines with what `Colours` says of them."""

    lines: list[tuple[str, Markup]]
    page: int
    pages: int


class Colours:
    """Says what the lines of a diff are (`add`, `del`, `hunk`, `file`, `same`), one after the other.

    In a hunk the first character alone says it, for as many lines as the hunk's head counts: what stands in a file
    cannot pass for the head of another.

    Args:
        old: Where it begins within a hunk: how many lines of the old file this has left.
        new: Of the new file.
        begun: Where it begins within a line: what that is.
    """

    def __init__(self, old: int = 0, new: int = 0, begun: str | None = None) -> None:
        self.old = old
        self.new = new
        self._begun = begun

    def kind(self, line: str) -> str:
        """Return what the next line is."""
        if self._begun is not None:
            kind, self._begun = self._begun, None
            return kind
        if self.old > 0 or self.new > 0:
            self.old -= line.startswith((" ", "-"))
            self.new -= line.startswith((" ", "+"))
            return {"+": "add", "-": "del"}.get(line[:1], "same")
        head = _HUNK.match(line)
        if head is None:
            return "file" if line.startswith(("--- ", "+++ ", "rename ")) else "same"
        self.old, self.new = int(head[1]), int(head[2])
        return "hunk"


def diff_part(diff: str, page: int) -> DiffPart:
    """Return page `page` (from 1; the nearest there is) of a whole diff; no line is left out of all pages."""
    lines = diff.split("\n")
    if lines[-1] == "":
        lines.pop()
    pages = max(1, -(-len(lines) // limits.CONSOLE_DIFF_LINES))
    page = min(max(page, 1), pages)
    begin = (page - 1) * limits.CONSOLE_DIFF_LINES
    colours = Colours()
    for line in lines[:begin]:
        colours.kind(line)
    return DiffPart(coloured(lines[begin : begin + limits.CONSOLE_DIFF_LINES], colours), page, pages)


def coloured(lines: list[str], colours: Colours) -> list[tuple[str, Markup]]:
    """Return the next lines of a diff, harmless, each with what it is."""
    return [(colours.kind(line), _lines(line)) for line in lines]


def written(told: Mapping[str, Any]) -> str:
    """Return what a command wrote, as a person can read it: bytes that are no text as escapes."""
    chunk = str(told["chunk"])
    if told["encoding"] != "base64":
        return chunk
    return base64.b64decode(chunk).decode("utf-8", "backslashreplace")


class Pages:
    """The templates of the console."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_harmless,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "lines": _lines,
            "own": _own,
            "when": duration.moment,
            "about": _about,
            "files": lambda names: _summary(", ".join(names)),
            "argv": _argv,
            "stdin": lambda hold: stdin_view(hold.shown),
            "reach": lambda hold: reach_view(hold.shown),
            "input": input_view,
            "written": written,
            "terms": _terms,
        }

    def render(self, name: str, **values: Any) -> str:
        """Return the page of a template."""
        return self._environment.get_template(f"{name}.html").render(**values)


def _harmless(value: Any) -> Any:
    if isinstance(value, Markup):  # of a macro or a filter of ours, whose parts came through here
        return value
    return "" if value is None else display(value if isinstance(value, str) else str(value))


def _lines(text: str) -> Markup:
    return escape(display(text, newlines=True))


def _own(text: str) -> Markup:
    return escape(text)


def _about(hold: Hold) -> str:
    shown = hold.shown
    if hold.tool == "exec_command" and "command" in shown:
        text = " ".join(shown["command"])
    elif hold.tool == "write_stdin":
        text = str(shown.get("process_id", ""))
    else:
        text = ", ".join(shown.get("files", []))
    return _summary(text)


def _summary(text: str) -> str:
    """Return what of a text stands in a list, which has a row for each of many."""
    return text if len(text) <= limits.CONSOLE_SUMMARY_CHARACTERS else f"{text[: limits.CONSOLE_SUMMARY_CHARACTERS]}…"


def _argv(process: Mapping[str, Any]) -> str:
    command = process.get("command")
    if isinstance(command, str):
        return command
    return " ".join(command) if command else str(process["process_id"])


def _terms(grant: Grant) -> str:
    terms = grant.terms
    if grant.state != "active":
        return "its terms are gone"
    if grant.scope == "patches":
        return f"patches under {terms['path']}"
    if grant.scope == "program":
        return f"{terms['program']} with any arguments, in {terms['cwd']}"
    return f"{' '.join(terms['shown']['command'])}, in {terms['shown']['cwd']}"
