"""The pages of docs/statemachines, printed from the machines themselves.

`python -m statemachines.diagrams` writes them; with `--check` it writes nothing and ends with status 1
where a page is missing, stale or left over. It must not say anything that no machine says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from statemachine import State, StateMachine

from statemachines.approval import Approval
from statemachines.execution import Execution
from statemachines.grant import Grant
from statemachines.intent import Intent
from statemachines.patch import Patch
from statemachines.work import Work

MACHINES: Final[tuple[type[StateMachine], ...]] = (Approval, Grant, Patch, Execution, Intent, Work)
DIRECTORY: Final = Path(__file__).resolve().parent.parent / "docs" / "statemachines"
_COMMAND: Final = "python -m statemachines.diagrams"


def pages() -> Mapping[str, str]:
    """Return the text of every page by its file name."""
    each = {f"{machine.__name__.lower()}.md": _page(machine) for machine in MACHINES}
    return {"README.md": _index(), **each}


def stale(directory: Path) -> list[str]:
    """Return the names of pages in `directory` that are not what the machines say."""
    wanted = pages()
    found = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(directory: Path) -> None:
    """Make `directory` hold exactly the pages."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in stale(directory):
        if name not in pages():
            (directory / name).unlink()
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=inspect.getdoc(sys.modules[__name__]))
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where the pages are")
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.directory)
        return 0
    names = stale(options.directory)
    for name in names:
        print(f"{options.directory / name} is stale; run `{_COMMAND}`", file=sys.stderr)
    return 1 if names else 0


def _page(machine: type[StateMachine]) -> str:
    module = inspect.getmodule(machine)
    title = inspect.getdoc(module) or ""
    parts = (
        f"# {machine.__name__}",
        f"Printed from `statemachines/{machine.__name__.lower()}.py` by `{_COMMAND}`; edit that file, not this page.",
        title,
        _diagram(machine),
        "## States, and what each promises",
        _table(("state", "promise", "kind"), [(f"`{s.id}`", s.name, _kind(s)) for s in machine.states]),
        "## Steps, and why each exists",
        _table(("from", "event", "to", "reason"), _steps(machine)),
    )
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    rows = [
        (f"[{machine.__name__}]({machine.__name__.lower()}.md)", inspect.getdoc(machine) or "") for machine in MACHINES
    ]
    introduction = (
        "What may happen next is data. A state is a promise about the world while it is recorded, an event is a fact "
        "that happened, and each step says why it exists."
    )
    return "\n\n".join(("# State machines", introduction, _table(("machine", "moves"), rows))) + "\n"


def _diagram(machine: type[StateMachine]) -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state.id}" for state in machine.states if state.initial]
    lines += [
        f"    {transition.source.id} --> {transition.target.id} : {transition.event}"
        for state in machine.states
        for transition in state.transitions
    ]
    lines += [f"    {state.id} --> [*]" for state in machine.states if state.final]
    return "\n".join((*lines, "```"))


def _steps(machine: type[StateMachine]) -> list[tuple[str, ...]]:
    return [
        (f"`{state.id}`", f"`{transition.event}`", f"`{transition.target.id}`", getattr(machine, transition.event).name)
        for state in machine.states
        for transition in state.transitions
    ]


def _kind(state: State) -> str:
    return "initial" if state.initial else "final" if state.final else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
