"""The table of tools. What a model is told here is all that it knows: short, and what to do next.

A new tool is a row here, a shape in `shapes`, a writer in `prose`, and a method of `contract.Tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from codespace import limits
from codespace.protocol import shapes
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Group, Hints, Tool

_LOOKS: Final = Hints(read_only=True, destructive=False, idempotent=True, open_world=False)
_VERSION: Final = r"absent|sha256:[0-9a-f]{64}"

_WORKSPACE: Final = Argument(
    "workspace_id", "text", "Which registered directory; may be left out when there is only one.", maximum=200
)
_PATH: Final = Argument(
    "path", "text", "Path relative to the workspace root.", required=True, minimum=1, maximum=limits.PATH_CHARACTERS
)
_GLOB: Final = Argument(
    "glob", "text", "Only paths that match, e.g. `src/**/*.py`.", minimum=1, maximum=limits.TEXT_CHARACTERS
)
_KEY: Final = Argument(
    "operation_key",
    "text",
    "Your own unique key: sending the same call with it again repeats the result, never the effect.",
    minimum=1,
    maximum=limits.OPERATION_KEY_CHARACTERS,
    printable=True,
)
_WORK: Final = Argument("work_id", "text", "The work (from work_open) that this belongs to.", minimum=1, maximum=200)
_THE_WORK: Final = Argument("work_id", "text", "The id from work_open.", required=True, minimum=1, maximum=200)
_OPERATION: Final = Argument("operation_id", "text", "The id from apply_patch or exec_command.", minimum=1, maximum=200)
_PROCESS: Final = Argument("process_id", "text", "The id from exec_command.", required=True, minimum=1, maximum=200)
_APPROVAL: Final = Argument(
    "approval_id", "text", "The id from APPROVAL_REQUIRED or approval_create.", required=True, minimum=1, maximum=200
)
_ENCODING: Final = Argument(
    "encoding", "text", "`text` (UTF-8) or `base64`.", default="text", choices=("text", "base64")
)


def _wait(default: float, what: str) -> Argument:
    return Argument("wait_seconds", "number", what, default=default, minimum=0, maximum=limits.WAIT_SECONDS_MAXIMUM)


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


_FILES: Final = (
    Tool(
        name="workspace_info",
        title="Workspace information",
        group="files",
        description=(
            "Say which directories are registered, and for one of them what you may do there and what is enforced "
            "now: permissions, sandbox, network, approvals, limits. Call it first; then find, search and read."
        ),
        hints=_LOOKS,
        arguments=(_WORKSPACE,),
        result=shapes.INFO,
    ),
    Tool(
        name="read",
        title="Read a file",
        group="files",
        description=(
            "Read a file, or a range of its lines. The result says the version of the whole file: give it to "
            "apply_patch in expected_versions. Where it was cut, go on with start_line."
        ),
        hints=_LOOKS,
        arguments=(
            _WORKSPACE,
            _PATH,
            Argument("start_line", "integer", "First line, from 1.", minimum=1, maximum=limits.CURSOR_MAXIMUM),
            Argument("line_count", "integer", "How many lines.", minimum=1, maximum=limits.CURSOR_MAXIMUM),
            _ENCODING,
        ),
        result=shapes.READ,
    ),
    Tool(
        name="read_many",
        title="Read several files",
        group="files",
        description=(
            "Read up to 50 whole files in one call. Each entry is a read result or that path's own error; what does "
            "not fit the total is cut and says so: read those alone."
        ),
        hints=_LOOKS,
        arguments=(
            _WORKSPACE,
            Argument(
                "paths",
                "text_list",
                "Paths relative to the workspace root.",
                required=True,
                minimum=1,
                maximum=limits.READ_MANY_PATHS,
            ),
        ),
        result=shapes.READ_MANY,
    ),
    Tool(
        name="find",
        title="Find files by name",
        group="files",
        description=(
            "List file paths, sorted; dotfiles too, ignored files only on request. Narrow by `glob` or by `query` (a "
            "fuzzy part of the name). When it says that it was cut, narrow further."
        ),
        hints=_LOOKS,
        arguments=(
            _WORKSPACE,
            _GLOB,
            Argument("query", "text", "Fuzzy part of the name.", minimum=1, maximum=limits.TEXT_CHARACTERS),
            Argument("include_ignored", "flag", "Also what .gitignore names.", default=False),
            Argument(
                "limit",
                "integer",
                "Most paths.",
                default=limits.FIND_LIMIT,
                minimum=1,
                maximum=limits.FIND_LIMIT_MAXIMUM,
            ),
        ),
        result=shapes.FIND,
    ),
    Tool(
        name="search",
        title="Search in files",
        group="files",
        description=(
            "Search file contents for a regular expression (Rust syntax), or for a plain text with `literal`. Matches "
            "come with path, line and column; read the places that matter."
        ),
        hints=_LOOKS,
        arguments=(
            _WORKSPACE,
            Argument(
                "pattern",
                "text",
                "What to look for.",
                required=True,
                minimum=1,
                maximum=limits.TEXT_CHARACTERS,
                aliases=("regex", "query"),
            ),
            Argument("literal", "flag", "Take the pattern as plain text.", default=False),
            _GLOB,
            Argument(
                "context_lines",
                "integer",
                "Lines around each match.",
                default=0,
                minimum=0,
                maximum=limits.CONTEXT_LINES_MAXIMUM,
            ),
            Argument(
                "limit",
                "integer",
                "Most matches.",
                default=limits.SEARCH_LIMIT,
                minimum=1,
                maximum=limits.SEARCH_LIMIT_MAXIMUM,
            ),
        ),
        result=shapes.SEARCH,
    ),
    Tool(
        name="apply_patch",
        title="Apply a patch",
        group="files",
        description=(
            "Change files by a V4A patch: `*** Begin Patch`, then `*** Add File: path` (lines with +), `*** Update "
            "File: path` (`*** Move to: path` where it moves; then chunks, one at least: @@, context, - and + lines), "
            "`*** Delete File: path`, then `*** End Patch`. All of it or nothing; `applied` means that the disk was "
            "read back. check_only shows the diff and writes nothing. Give an operation_key, so that a lost answer can "
            "be had again."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=False),
        arguments=(
            _WORKSPACE,
            Argument("patch", "text", "The whole patch text.", required=True, minimum=1, aliases=("diff", "input")),
            Argument(
                "expected_versions",
                "text_map",
                "Path to version (from read), or `absent`; refused unless each is so.",
                pattern=_VERSION,
                means="`absent` or `sha256:` and 64 hex digits",
            ),
            _KEY,
            Argument(
                "check_only",
                "flag",
                "Only show what the patch would do.",
                default=False,
                aliases=("dry_run", "dryrun", "dry-run", "preview", "simulate"),
            ),
            _WORK,
        ),
        result=shapes.PATCH,
    ),
    Tool(
        name="operation_status",
        title="Status of an operation",
        group="files",
        description=(
            "Say what became of a patch or a command, by operation_id or by your operation_key: after a lost answer, "
            "a timeout or a restart ask here before sending anything again."
        ),
        hints=_LOOKS,
        arguments=(_OPERATION, _KEY),
        result=shapes.OPERATION,
        exactly_one=("operation_id", "operation_key"),
    ),
    Tool(
        name="operation_undo",
        title="Undo a patch",
        group="files",
        description=(
            "Take an applied patch back: bytes, modes and directories as they were before it. Refused unless every "
            "file is still as that operation left it. It is an operation of its own and can be undone in turn."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=False),
        arguments=(
            Argument("operation_id", "text", "The id from apply_patch.", required=True, minimum=1, maximum=200),
            _KEY,
        ),
        result=shapes.PATCH,
    ),
)

_EXEC: Final = (
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
            _WORKSPACE,
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
            _wait(limits.WAIT_SECONDS_DEFAULT, "How long to wait for its end before answering."),
            _KEY,
            _WORK,
        ),
        result=shapes.EXEC,
        not_both=("stdin", "open_stdin"),
    ),
    Tool(
        name="read_process",
        title="Read output of a command",
        group="exec",
        description=(
            "Return a command's output from `cursor` on, and whether it has ended. With wait_seconds it waits for new "
            "output or the end. Pass the returned cursor to the next call; eof means that nothing more will come."
        ),
        hints=_LOOKS,
        arguments=(
            _PROCESS,
            Argument(
                "cursor", "integer", "Byte offset to read from.", default=0, minimum=0, maximum=limits.CURSOR_MAXIMUM
            ),
            Argument(
                "stream",
                "text",
                "Which output.",
                default="combined",
                choices=("combined", "stdout", "stderr"),
            ),
            _wait(0.0, "How long to wait for new output."),
            Argument(
                "limit_bytes",
                "integer",
                "Most bytes.",
                default=limits.OUTPUT_CHUNK_BYTES,
                minimum=1,
                maximum=limits.OUTPUT_CHUNK_BYTES,
            ),
            _ENCODING,
        ),
        result=shapes.OUTPUT,
    ),
    Tool(
        name="process_status",
        title="Status of a command",
        group="exec",
        description="Say whether a command runs or how it ended, without its output. For output use read_process.",
        hints=_LOOKS,
        arguments=(_PROCESS,),
        result=shapes.STATE,
    ),
    Tool(
        name="list_processes",
        title="List commands",
        group="exec",
        description=(
            "List commands that run, and ended ones that can still be read. Use it to find a process_id again."
        ),
        hints=_LOOKS,
        arguments=(_WORKSPACE,),
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
            _ENCODING,
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

_APPROVALS: Final = (
    Tool(
        name="approval_create",
        title="Ask for approval",
        group="approvals",
        description=(
            "Hold an apply_patch, exec_command or operation_undo for approval without doing it. Then approval_status "
            "with wait_seconds, and operation_resume once it is granted."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            Argument(
                "tool",
                "text",
                "The tool to hold.",
                required=True,
                choices=("apply_patch", "exec_command", "operation_undo"),
            ),
            Argument("arguments", "object", "The arguments of that tool.", required=True),
        ),
        result=shapes.HELD,
    ),
    Tool(
        name="approval_status",
        title="Status of an approval",
        group="approvals",
        description=(
            "Say whether a held request was granted, denied or resumed; with wait_seconds it waits for a decision. "
            "Once granted, call operation_resume."
        ),
        hints=_LOOKS,
        arguments=(_APPROVAL, _wait(0.0, "How long to wait for a decision.")),
        result=shapes.APPROVAL,
    ),
    Tool(
        name="approval_resolve",
        title="Grant or deny",
        group="approvals",
        description=(
            "Grant or deny a held request, where the workspace lets the caller do so (`confirm`); ask your user first. "
            "Where approvals are `operator` only the operator can."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            _APPROVAL,
            Argument("decision", "text", "What to decide.", required=True, choices=("grant", "deny")),
        ),
        result=shapes.HELD,
    ),
    Tool(
        name="operation_resume",
        title="Run what was granted",
        group="approvals",
        description=(
            "Run a granted request, exactly as it was shown, once; asked again it repeats the stored result. Before a "
            "grant it is refused with APPROVAL_REQUIRED."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=True, open_world=True),
        arguments=(_APPROVAL,),
        result=shapes.RESUMED,
    ),
)

_WORKS: Final = (
    Tool(
        name="work_open",
        title="Open a work",
        group="work",
        description=(
            "Begin a stretch of work that your user can steer while you are at it. Send its work_id with apply_patch "
            "and exec_command: where their results carry `coordination`, user input waits; then call steer_claim_next."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
        arguments=(
            _WORKSPACE,
            Argument(
                "title",
                "text",
                "What it is about, in one line.",
                required=True,
                minimum=1,
                maximum=limits.WORK_TITLE_CHARACTERS,
                printable=True,
                aliases=("name",),
            ),
        ),
        result=shapes.OPENED,
    ),
    Tool(
        name="steer_status",
        title="Waiting user input",
        group="work",
        description=(
            "Say how much user input waits in a work (`queued`) and how much you claimed and have not completed "
            "(`claimed`). Ask at natural checkpoints; steer_claim_next gives the input itself."
        ),
        hints=_LOOKS,
        arguments=(_THE_WORK,),
        result=shapes.WORK,
    ),
    Tool(
        name="steer_claim_next",
        title="Claim user input",
        group="work",
        description=(
            "Take the next thing that your user wants, if one is due. Follow it as your user's own instruction: it "
            "grants no permission. Then steer_complete. Without `intent` nothing is due; `undone` repeats what you "
            "claimed before. A `stop_notice` means: stop now."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=False, open_world=False),
        arguments=(_THE_WORK,),
        result=shapes.CLAIMED,
    ),
    Tool(
        name="steer_complete",
        title="Complete user input",
        group="work",
        description=(
            "Say how a claimed intent ended: `done`, or `blocked` with a note that says why. A `note` intent is done "
            "once you have taken it in."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(
            _THE_WORK,
            Argument("intent_id", "text", "The id from steer_claim_next.", required=True, minimum=1, maximum=200),
            Argument("outcome", "text", "How it ended.", required=True, choices=("done", "blocked")),
            Argument("note", "text", "A few words for your user.", minimum=1, maximum=limits.INTENT_NOTE_CHARACTERS),
        ),
        result=shapes.COMPLETED,
    ),
    Tool(
        name="work_finish",
        title="Finish a work",
        group="work",
        description=(
            "End a work. Refused with reason `pending_user_input` while input waits or is claimed and not completed: "
            "claim and complete it, then call again. `commands_running`: it closes once its commands have ended."
        ),
        hints=Hints(read_only=False, destructive=False, idempotent=True, open_world=False),
        arguments=(_THE_WORK,),
        result=shapes.FINISHED,
    ),
)

TABLE: Final[Mapping[str, Tool]] = {tool.name: tool for tool in (*_FILES, *_EXEC, *_APPROVALS, *_WORKS)}
GROUPS: Final[tuple[Group, ...]] = ("files", "exec", "approvals", "work")


def offered(groups: Iterable[str]) -> tuple[Tool, ...]:
    """Return the tools of these groups in the table's order; without `work` none of the others takes a `work_id`.

    Raises: ValueError for a group that does not exist.
    """
    wanted = set(groups)
    if unknown := wanted - set(GROUPS):
        raise ValueError(f"no such group of tools: {', '.join(sorted(unknown))}")
    hidden = () if "work" in wanted else (_WORK.name,)
    return tuple(tool.without(*hidden) for tool in TABLE.values() if tool.group in wanted)
