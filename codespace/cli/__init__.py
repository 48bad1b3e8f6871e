"""The command line: words, exit codes, and what a person reads. It decides nothing.

Exit codes: 0 done, 1 done with a bad answer, 2 not done (wrong usage or settings), 130 interrupted.
Whatever a command needs is imported when that command runs: `--help` and `--version` stay instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from codespace import platform

USAGE = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words behind `codespace`; those of the process where left out.
    """
    refused = platform.refusal()
    if refused is not None:
        print(refused, file=sys.stderr)
        return USAGE
    from codespace.cli.parser import build

    arguments = build().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()


def serve() -> int:
    """Run `codespace serve` with the words of the process: the entry point `codespace-mcp`."""
    return main(["serve", *sys.argv[1:]])


def _reader_is_gone() -> int:
    """End quietly when stdout was closed (`codespace doctor | head`), as other programs do."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)  # or the interpreter complains at its end
    return 1
