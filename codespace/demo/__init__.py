"""`codespace demo`: the whole story on a throw-away workspace, told by a real MCP client.

It starts the installed daemon over stdio as any client would, and checks each step that it shows.
It uses nothing of the product but the contract (and a folder to be in), so it is also the shortest example of a client.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from codespace import interrupts
from codespace.demo.agent import Agent, Wrong
from codespace.demo.story import STEPS
from codespace.demo.teller import Teller
from codespace.sandbox.probefolder import open_folder

STORY_SECONDS: Final = 120.0
# The story takes a few seconds; a daemon that hangs must not hang the person who looks at it.
_LOG_LINES: Final = 20

RECIPE: Final = "Bread\n500 g flour\n350 g water\n2 g yeast\n"


def main() -> int:
    """Tell the story; return 0 only if every step was right, 1 otherwise, 2 where there is no place for it.

    Raises: KeyboardInterrupt where a person or the system ends it early. Nothing of it is left then either.
    """
    teller = Teller(sys.stdout)
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(open_folder("codespace-demo-")))
            parameters = _prepare(folder)
        except OSError as problem:
            print(
                f"codespace: there is no place for a workspace that is thrown away: {problem.strerror}.",
                file=sys.stderr,
            )
            print("  Set TMPDIR to a directory that takes new files.", file=sys.stderr)
            return 2
        try:
            # An interrupt in the middle of the client's own code could leave it waiting for an answer that it has.
            return interrupts.run(partial(_tell, folder, parameters, teller), at_checkpoints=True)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is None:
                raise
    raise KeyboardInterrupt  # as itself, not as a group of the nurseries'


async def _tell(folder: Path, parameters: StdioServerParameters, teller: Teller) -> int:
    await teller.opening(folder / "notes")
    problem = ""
    try:
        with trio.fail_after(STORY_SECONDS), (folder / "daemon.log").open("w") as log:
            async with Client(stdio_client(parameters, errlog=log), mode="legacy") as client:
                await _take_steps(Agent(client, folder), teller)
    except* (Wrong, KeyError, MCPError, trio.TooSlowError, OSError) as problems:
        problem = _first(problems)
    if problem:
        await teller.wrong(problem, _tail(folder / "daemon.log"))
        return 1
    await teller.closing(len(STEPS))
    return 0


async def _take_steps(agent: Agent, teller: Teller) -> None:
    for title, step in STEPS:
        await teller.step(title)
        await teller.right(await step(agent))


def _prepare(folder: Path) -> StdioServerParameters:
    """Make two workspaces and the operator's configuration; return how a client starts the daemon."""
    notes, careful = folder / "notes", folder / "careful"
    for root in (notes, careful):
        root.mkdir()
        (root / "recipe.txt").write_text(RECIPE)
    (folder / "private.txt").write_text("outside of every workspace\n")
    (notes / "shortcut").symlink_to(folder / "private.txt")
    config = {
        "workspaces": {
            "notes": {"root": str(notes), "profile": "workspace-write"},
            "careful": {"root": str(careful), "profile": "workspace-write", "approvals": "confirm"},
        }
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "config.json").chmod(0o600)
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "codespace", "serve", "--stdio"],
        env={"CODESPACE_CONFIG": str(folder / "config.json"), "CODESPACE_STATE_DIR": str(folder / "state")},
        cwd=folder,
    )


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    problem: BaseException = group
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    if isinstance(problem, KeyError):
        return f"an answer has no {problem}"
    return str(problem) or f"it ended in {type(problem).__name__}"


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
