"""The tools of the group `files`: reading, finding, patching, and what became of a patch."""

from __future__ import annotations

from typing import Final

from codespace import limits
from codespace.protocol import shapes
from codespace.protocol.arguments import Argument
from codespace.protocol.tool import Hints, Tool
from codespace.protocol.tools.vocabulary import ENCODING, KEY, LOOKS, WORK, WORKSPACE

_VERSION: Final = r"absent|sha256:[0-9a-f]{64}"

_PATH: Final = Argument(
    "path", "text", "Path relative to the workspace root.", required=True, minimum=1, maximum=limits.PATH_CHARACTERS
)
_GLOB: Final = Argument(
    "glob", "text", "Only paths that match, e.g. `src/**/*.py`.", minimum=1, maximum=limits.TEXT_CHARACTERS
)
_OPERATION: Final = Argument("operation_id", "text", "The id from apply_patch or exec_command.", minimum=1, maximum=200)

FILES: Final = (
    Tool(
        name="workspace_info",
        title="Workspace information",
        group="files",
        description=(
            "Say which directories are registered, and for one of them what you may do there and what is enforced "
            "now: permissions, sandbox, network, approvals, limits. Call it first; then find, search and read."
        ),
        hints=LOOKS,
        arguments=(WORKSPACE,),
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
        hints=LOOKS,
        arguments=(
            WORKSPACE,
            _PATH,
            Argument("start_line", "integer", "First line, from 1.", minimum=1, maximum=limits.CURSOR_MAXIMUM),
            Argument("line_count", "integer", "How many lines.", minimum=1, maximum=limits.CURSOR_MAXIMUM),
            ENCODING,
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
        hints=LOOKS,
        arguments=(
            WORKSPACE,
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
            "fuzzy part of the name; the best fit comes first then). When it says that it was cut, narrow further."
        ),
        hints=LOOKS,
        arguments=(
            WORKSPACE,
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
            "Search file contents for a regular expression (Rust syntax), or for a plain text with `literal`, line by "
            "line (a CR alone ends none). Ignored files are left out, and of a file with NUL bytes (binary) all lines "
            "from the first of them on. Matches come with path, line and column; read the places that matter."
        ),
        hints=LOOKS,
        arguments=(
            WORKSPACE,
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
            "read back; notes tell of chunks placed with white space ignored, or at the first of several places. "
            "check_only shows the diff and writes nothing. Give an operation_key, so that a lost answer can be had "
            "again."
        ),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=False),
        arguments=(
            WORKSPACE,
            Argument("patch", "text", "The whole patch text.", required=True, minimum=1, aliases=("diff", "input")),
            Argument(
                "expected_versions",
                "text_map",
                "Path to version (from read), or `absent`; refused unless each is so.",
                pattern=_VERSION,
                means="`absent` or `sha256:` and 64 hex digits",
            ),
            KEY,
            Argument(
                "check_only",
                "flag",
                "Only show what the patch would do.",
                default=False,
                aliases=("dry_run", "dryrun", "dry-run", "preview", "simulate"),
            ),
            WORK,
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
        hints=LOOKS,
        arguments=(_OPERATION, KEY),
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
            KEY,
        ),
        result=shapes.PATCH,
    ),
)
