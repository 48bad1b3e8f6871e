"""The command line: words, exit codes, and what a person reads. It decides nothing.

Exit codes: 0 done, 1 done with a bad answer, 2 not done (wrong usage or settings), 130 interrupted.
Whatever a command needs is imported when that command runs: `--help` and `--version` stay instant.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

from codespace import interrupts, platform
from codespace.cli import descriptors

USAGE = 2
INTERRUPTED = 130
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
# What a full or broken disk under a redirected output says.
_NOWHERE = "the directory that this runs in is gone. Go to another (`cd`), or name whole paths."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words behind `codespace`; those of the process where left out.
    """
    refused = platform.refusal()
    if refused is not None:
        print(refused, file=sys.stderr)
        return USAGE
    if argv is None:
        _start_afresh()
    try:
        if (scant := descriptors.refusal()) is not None:
            print(f"codespace: {scant}", file=sys.stderr)
            return USAGE
        return _run(argv)
    except KeyboardInterrupt:
        if argv is None:
            interrupts.cease()
        _drop_output()
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in _NO_ROOM:
            print(f"codespace: the answer could not be written: {problem.strerror}.", file=sys.stderr)
            return _reader_is_gone()
        told = _NOWHERE if is_nowhere(problem) else descriptors.shortage(problem)
        if told is None:
            raise
        print(f"codespace: {told}", file=sys.stderr)
        return USAGE


def is_nowhere(problem: Exception) -> bool:
    """Return whether a relative path was given where none leads anywhere."""
    if not isinstance(problem, FileNotFoundError) or problem.filename is not None:
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _run(argv: Sequence[str] | None) -> int:
    from codespace.cli.parser import build

    try:
        arguments = build().parse_args(argv)
        code = int(arguments.run(arguments))
    except (SystemExit, Exception):  # not what ends it early: a reader that takes nothing must not hold that up
        _flush()
        raise
    _flush()
    return code


def _flush() -> None:
    """Write what is left of the output here, where it can be answered for, and not at the interpreter's end."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _start_afresh() -> None:
    """Shed what whoever started us left to its children, and what an execve keeps.

    Where SIGCHLD is ignored the end of no child can be learnt, and a blocked SIGTERM ends nobody. In a locale of
    another encoding than UTF-8, in which callers, helpers and files say names, they would be taken for others: there it
    begins again. An output whose own encoding lacks a letter (PYTHONIOENCODING) gets its escape, as standard error
    does.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - ourselves, no shell
    descriptors.pass_on_none()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupts.hear()


def serve() -> int:
    """Run `codespace serve` with the words of the process: the entry point `codespace-mcp`."""
    _start_afresh()
    return main(["serve", *sys.argv[1:]])


def _reader_is_gone() -> int:
    """End quietly when stdout was closed (`codespace doctor | head`), as other programs do."""
    _drop_output()
    return 1


def _drop_output() -> None:
    """Let what is left of the output go nowhere: the interpreter would write it at its end, or complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
