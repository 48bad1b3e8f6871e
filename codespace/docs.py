"""The documentation that is printed by the code: errors, settings, limits and tools.

`python -m codespace.docs` writes the pages, `--check` compares them and says which are out of date.
docs/statemachines/ is printed by `statemachines.diagrams`, docs/evidence.md by `tests/requirements.py`; everything else
is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from codespace import limits
from codespace.errors import CODES
from codespace.runner.protected import PROTECTED
from codespace.settings import environment, keys
from codespace.settings.keys import Key

_HEADING: Final = "<!-- Printed by `python -m codespace.docs`; change the code, not this page. -->\n\n"


def errors() -> str:
    """Return docs/errors.md."""
    rows = (
        (f"`{name}`", code.meaning, code.next_step, "yes" if code.retryable else "no") for name, code in CODES.items()
    )
    return (
        "# Errors\n\n"
        "Every failure of a tool is `isError: true` with one JSON body: `code`, `message` (what happened and what is\n"
        "left on disk), `next_step`, `retryable`, and where they apply `details`, `operation_id`, `approval_id`,\n"
        "`process_id`. A command that fails is not a failing tool: its exit code is a result. A transport failure\n"
        "(400, 401, 403 to 406, 408, 409, 413, 421, 503, a lost connection) is never an operation and leaves no row;\n"
        "what a call came to whose answer was lost is told by `operation_status` under its `operation_key`.\n\n"
        "The next step below is the usual one; an answer may carry a better one.\n\n"
        + _table(("code", "meaning", "next step", "retryable"), rows)
    )


def settings() -> str:
    """Return docs/settings.md."""
    variables = {name: key for name, (_, key) in environment.VARIABLES.items()}
    return (
        "# Settings\n\n"
        "Settings are read once, at start, and checked strictly: an unknown key, a value of another type or a root\n"
        "that is not acceptable stops the start with the key, the problem and the fix. Nothing is guessed.\n\n"
        "## The configuration file\n\n"
        "TOML or JSON by its ending. It must belong to you (or root) and not be writable by others.\n\n"
        "```toml\n"
        '[workspaces.app]\nroot = "/home/me/app"\nprofile = "workspace-write"\nhidden_paths = ["**/.env"]\n'
        "```\n\n"
        f"### At the top\n\n{_keys(keys.TOP)}\n"
        f"### `workspaces.<id>`\n\n{_keys(keys.WORKSPACE)}\n"
        f"### `workspaces.<id>.limits`\n\n{_keys(keys.LIMITS)}\n"
        f"### `environments.<id>`\n\n`host` is always there.\n\n{_keys(keys.ENVIRONMENT)}\n"
        "### What a root may not be\n\n"
        "Relative, missing, overlapping with another root, `/`, or a directory that is or holds a home directory:\n"
        "your own, root's, or that of an account from user id 1000 on that can log in. The state directory, the\n"
        "database, the configuration file, `CODESPACE_RUNNER_DIR`, the programs of `bwrap_path` and `rg_path`, and\n"
        "CodeSpace's own installation may lie in no root and no readable path: an agent could change or read them.\n"
        "None may lie in the state directory or `CODESPACE_RUNNER_DIR` either. Links in a root's own path are\n"
        "resolved once, at start.\n\n"
        "### The built-in list of `protected_paths`\n\n"
        f"{', '.join(f'`{glob}`' for glob in PROTECTED)}. Git directories are not in it: they follow `git`.\n\n"
        f"## Environment variables\n\n{_keys(variables, heading='variable')}"
    )


def numbers() -> str:
    """Return docs/limits.md, in the sections and with the reasons of limits.py."""
    parts = ["# Limits\n\nEvery number of the program, from `codespace/limits.py`.\n"]
    for title, rows in _sections(inspect.getsource(limits)):
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n\n{_table(('limit', 'value', 'reason'), rows)}")
    return "".join(parts)


def tools() -> str:
    """Return docs/tools.md: the table of tools prints itself."""
    printed = importlib.import_module("codespace.protocol.schemas").markdown()
    return str(printed)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "errors.md": errors,
    "settings.md": settings,
    "limits.md": numbers,
    "tools.md": tools,
}


def stale(directory: Path) -> Iterator[str]:
    """Yield the names of pages that are not what the code prints."""
    for name, text in _printed():
        path = directory / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield name


def write(directory: Path) -> None:
    """Write all pages."""
    for name, text in _printed():
        (directory / name).write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Write or compare the pages; 1 where a page is out of date."""
    parser = argparse.ArgumentParser(prog="python -m codespace.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    parser.add_argument("--directory", type=Path, default=Path("docs"), help="where the pages lie (default: docs)")
    arguments = parser.parse_args(argv)
    if not arguments.check:
        write(arguments.directory)
        return 0
    names = list(stale(arguments.directory))
    for name in names:
        print(f"{arguments.directory / name} is out of date; run `python -m codespace.docs`.", file=sys.stderr)
    return 1 if names else 0


def _printed() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        yield name, f"{_HEADING}{page().rstrip()}\n"


def _keys(rows: Mapping[str, Key], *, heading: str = "key") -> str:
    return _table(
        (heading, "value", "default", "meaning"),
        ((f"`{name}`", key.kind.shape, key.default, key.meaning) for name, key in rows.items()),
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _sections(source: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield (title, rows) from the form that limits.py keeps: `# --- title ---`, a name, its reason below."""
    lines = source.splitlines()
    named = {
        node.end_lineno or 0: node.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    title, rows = "", list[tuple[str, str, str]]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("# --- "):
            if rows:
                yield title, rows
            title, rows = line.strip("# -"), []
        elif number in named:
            rows.append((f"`{named[number]}`", _value(named[number]), _reason(lines[number:])))
    if rows:
        yield title, rows


def _value(name: str) -> str:
    value = getattr(limits, name)
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value}".removesuffix(".0")


def _reason(below: Iterable[str]) -> str:
    words = []
    for line in below:
        if not line.startswith("# ") or line.startswith("# ---"):
            break
        words.append(line.removeprefix("# "))
    return " ".join(words).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
