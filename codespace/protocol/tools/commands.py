"""The tools of the group `exec`: commands, from their start to their end."""

from __future__ import annotations

from typing import Final

from codespace import limits
from codespace.protocol import shapes
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Hints, Tool
from codespace.protocol.tools.vocabulary import ENCODING, KEY, LOOKS, WORK, WORKSPACE, wait

_PROCESS: Final = Argument("process_id", "text", "The id from exec_command.", required=True, minimum=1, maximum=200)


def _rows(default: int | None) -> Argument:
    return _side("rows", "Height of the terminal, in lines.", default)


def _cols(default: int | None) -> Argument:
    return _side("cols", "Width of the terminal, in characters.", default)


def _side(name: str, what: str, default: int | None) -> Argument:
    return Argument(
        name,
        "integer",
        what,
        required=default is None,
        default=default,
        minimum=1,
        maximum=limits.TERMINAL_SIDE_MAXIMUM,
    )


COMMANDS: Final = (
    Tool(
        name="exec_command",
        title="Run a command",
        group="exec",
        description=(
            'Run a program by argv (no shell; for one, send ["sh", "-c", "..."]). Waits up to wait_seconds and '
            "returns output and how it ended; if it still runs, it goes on without you: poll read_process from the "
            "returned cursor, or terminate_process. A non-zero exit code is a result, not an error. What it leaves in "
            "the background ends with it: run a server as the command itself."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=True),
        arguments=(
            WORKSPACE,
            Argument(
                "command",
                "text_list",
                "The program and its arguments.",
                required=True,
                minimum=1,
                maximum=limits.COMMAND_ITEMS,
                aliases=("cmd", "argv", "args"),
            ),
            Argument(
                "cwd",
                "text",
                "Directory, relative to the workspace root.",
                default=".",
                maximum=limits.PATH_CHARACTERS,
                aliases=("workdir", "dir", "working_directory"),
            ),
            Argument("env", "text_map", "Extra environment variables.", aliases=("environment",)),
            Argument("stdin", "text", "Text for its standard input, which is then closed."),
            Argument("open_stdin", "flag", "Keep its standard input open for write_stdin.", default=False),
            Argument(
                "tty",
                "flag",
                "Give it a terminal, for programs that want one; write_stdin types, and output is one stream.",
                default=False,
                aliases=("pty", "terminal"),
            ),
            _rows(limits.TERMINAL_ROWS),
            _cols(limits.TERMINAL_COLS),
            Argument(
                "timeout_seconds",
                "number",
                "End it after this long; the operator's default and maximum are in workspace_info.",
                minimum=0.001,
                maximum=limits.REQUEST_SECONDS_MAXIMUM,
                aliases=("timeout_ms",),
            ),
            wait(limits.WAIT_SECONDS_DEFAULT, "How long to wait for its end before answering."),
            KEY,
            WORK,
        ),
        result=shapes.EXEC,
        not_both=("stdin", "open_stdin"),
    ),
    Tool(
        name="read_process",
        title="Read output of a command",
        group="exec",
        description=(
            "Return a command's output from `cursor` on, and whether it has ended. With wait_seconds it waits for "
            "output and a pause in it, or the end. Pass the returned cursor to the next call; eof means that nothing "
            "more will come."
        ),
        hints=LOOKS,
        arguments=(
            _PROCESS,
            Argument(
                "cursor", "integer", "Byte offset to read from.", default=0, minimum=0, maximum=limits.CURSOR_MAXIMUM
            ),
            Argument(
                "stream",
                "text",
                "Which output. Of what came on both at once, stdout is first in `combined`.",
                default="combined",
                choices=("combined", "stdout", "stderr"),
            ),
            wait(0.0, "How long to wait for new output."),
            Argument(
                "limit_bytes",
                "integer",
                "Most bytes.",
                default=limits.OUTPUT_CHUNK_BYTES,
                minimum=1,
                maximum=limits.OUTPUT_CHUNK_BYTES,
            ),
            Argument(
                "encoding",
                "text",
                "`text`: UTF-8, with U+FFFD for bytes that are none, which a note counts; what is mostly such comes as "
                "base64 all the same. `base64`: the bytes as they are.",
                default="text",
                choices=("text", "base64"),
            ),
        ),
        result=shapes.OUTPUT,
    ),
    Tool(
        name="process_status",
        title="Status of a command",
        group="exec",
        description="Say whether a command runs or how it ended, without its output. For output use read_process.",
        hints=LOOKS,
        arguments=(_PROCESS,),
        result=shapes.STATE,
    ),
    Tool(
        name="list_processes",
        title="List commands",
        group="exec",
        description=(
            "List commands that run, then ended ones that can still be read, the newest first. Use it to find a "
            "process_id again."
        ),
        hints=LOOKS,
        arguments=(WORKSPACE,),
        result=shapes.PROCESSES,
    ),
    Tool(
        name="write_stdin",
        title="Write to a command",
        group="exec",
        description=(
            "Send text to the standard input of a command that was started with open_stdin; `eof` closes it "
            "afterwards. To a terminal (tty) it is typed: Enter is \\r, Ctrl-C is \\u0003, and `eof` is Ctrl-D. "
            "A program that reads a terminal by lines gets 4095 bytes of a line; the rest is lost, yet counted as "
            "written. Then read_process with wait_seconds shows what it answers."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=True),
        arguments=(
            _PROCESS,
            Argument("data", "text", "What to send.", required=True),
            ENCODING,
            Argument("eof", "flag", "Close the input afterwards.", default=False),
        ),
        result=shapes.WRITTEN,
    ),
    Tool(
        name="resize_process",
        title="Resize a terminal",
        group="exec",
        description="Give the terminal of a command that was started with tty another size; it redraws itself.",
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(_PROCESS, _rows(None), _cols(None)),
        result=shapes.RESIZED,
    ),
    Tool(
        name="terminate_process",
        title="End a command",
        group="exec",
        description=(
            "End a command and everything it started: politely first, by force after grace_seconds. Returns its final "
            "state once all of it is gone."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=True, open_world=False),
        arguments=(
            _PROCESS,
            Argument(
                "grace_seconds",
                "number",
                "Between the polite and the forced end.",
                default=limits.GRACE_SECONDS,
                minimum=0,
                maximum=limits.GRACE_SECONDS_MAXIMUM,
            ),
        ),
        result=shapes.STATE,
    ),
)
