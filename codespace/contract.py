"""Plain data types that cross rooms, and the ports where gateway and runner meet.

Nothing here does anything: no I/O, no defaults that decide policy. The gateway knows the runner
only as `Runner`; `daemon` wires a real one to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from codespace import limits

Profile = Literal["read-only", "workspace-write"]
NetworkPolicy = Literal["restricted", "enabled"]
Approvals = Literal["off", "confirm", "operator"]
Stream = Literal["combined", "stdout", "stderr"]
Encoding = Literal["text", "base64"]
ChangeKind = Literal["add", "update", "delete", "move"]
Termination = Literal["exited", "timeout", "terminated", "limit", "lost"]
Delivery = Literal["next_checkpoint", "after_current_work", "next_work"]
IntentKind = Literal["follow_up", "note", "stop_notice"]
Outcome = Literal["done", "blocked"]


# --- what the operator registered ---


@dataclass(frozen=True, slots=True)
class WorkspaceLimits:
    """The operator's limits of one workspace; None where nothing is limited."""

    pids: int | None = None
    processes: int = 16
    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    tmp_bytes: int | None = None
    open_files: int | None = None
    file_bytes: int = limits.FILE_BYTES
    """The largest file that the file tools and patches handle."""
    command_file_bytes: int | None = None
    """The largest file that a command may write. The operator's `file_bytes` sets both; its default only the first."""
    patch_bytes: int = limits.PATCH_BYTES
    read_bytes: int = limits.READ_BYTES


@dataclass(frozen=True, slots=True)
class Domain:
    """One entry of allowed_domains; `address` pins it."""

    host: str
    port: int | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """One registered directory and everything its operator decided about it."""

    id: str
    root: str
    profile: Profile = "read-only"
    network: NetworkPolicy = "restricted"
    allowed_domains: tuple[Domain, ...] = ()
    approvals: Approvals = "off"
    environment: str = "host"
    environment_kind: Literal["host", "linux-container"] = "host"
    occupancy: Literal["exclusive", "shared"] = "exclusive"
    timeout_seconds: float = limits.TIMEOUT_SECONDS
    max_timeout_seconds: float = limits.MAX_TIMEOUT_SECONDS
    env: Mapping[str, str] = field(default_factory=dict)
    limits: WorkspaceLimits = WorkspaceLimits()
    sandbox: Literal["optional", "required"] = "optional"
    allow_degraded: bool = False
    allow_submounts: bool = False
    git: Literal["read_only", "commit", "unprotected"] = "read_only"
    readable_paths: tuple[str, ...] = ()
    hidden_paths: tuple[str, ...] = ()
    protected_paths: tuple[str, ...] | None = None
    """None: the built-in list; a tuple replaces it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a transport and a name for the record. It grants nothing by itself."""

    transport: Literal["stdio", "http", "memory"]
    client: str = "unknown"
    progress: Callable[[float, str], Awaitable[None]] | None = None
    """Tells the client that a long wait goes on: (seconds waited, message). None: not asked for."""


# --- files ---


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One `read`. `content` is text, or base64 where `encoding` says so."""

    path: str
    content: str
    encoding: Encoding
    version: str
    size_bytes: int
    total_lines: int | None
    start_line: int | None
    end_line: int | None
    line_ending: Literal["lf", "crlf", "mixed", "none"] | None
    final_newline: bool | None
    truncated: bool
    media_type: str | None = None
    """`image/png` and such where the file is an image that clients can show."""


@dataclass(frozen=True, slots=True)
class FindResult:
    paths: tuple[str, ...]
    truncated: bool
    total_seen: int
    reason: str | None = None
    """Why it was cut: `limit`, `time`, `size`, or `unreadable` where something may not be read."""
    notes: tuple[str, ...] = ()
    """What was left out besides."""


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    column: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    matches: tuple[Match, ...]
    truncated: bool
    files_searched: int
    reason: str | None = None
    """As in FindResult, or `binary` where matches behind a NUL byte are not shown."""
    notes: tuple[str, ...] = ()
    """What was left out besides, and how to have it."""


# --- patches ---


@dataclass(frozen=True, slots=True)
class Change:
    """The net change of one path. `path` is where the bytes are afterwards (before, for a delete)."""

    path: str
    kind: ChangeKind
    before_version: str
    after_version: str
    from_path: str | None = None
    mode: str | None = None
    """Octal permission bits where there is more to see than bytes: `0644 -> 0755` where they change, `0755` of a file
    that was not there and may be executed, and those of any that runs as its owner or group."""


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """What a patch would do to the tree as it is now. The helper keeps the bytes under `token`."""

    token: str
    files: tuple[str, ...]
    changes: tuple[Change, ...]
    diff: str
    """Unified diff of the net changes, bounded; `diff_truncated` says when it was cut."""
    diff_truncated: bool = False
    notes: tuple[str, ...] = ()
    """Of chunks that were not placed to the letter, or at the first of several places."""


@dataclass(frozen=True, slots=True)
class PatchReport:
    """What was found on disk after a verb. `clean`: every file is as that verb promises."""

    clean: bool
    kept: tuple[str, ...] = ()
    """Paths that a third party changed and that were left alone."""
    rescued: tuple[str, ...] = ()
    """Journal files that hold bytes which were not the planned ones."""
    refusal: Mapping[str, Any] | None = None
    """The error body of what went wrong, where it did."""


# --- processes ---


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One authorised command. Nothing in it is decided by the runner."""

    process_id: str
    argv: tuple[str, ...]
    cwd: str
    """Relative to the root; `.` for the root itself."""
    env: Mapping[str, str]
    """The caller's variables, already checked; the runner adds the clean base and the operator's."""
    timeout_seconds: float
    stdin: bytes | None = None
    """Sent, then closed. None: /dev/null unless open_stdin."""
    open_stdin: bool = False
    tty: bool = False
    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class Spawned:
    started_at: float
    """Wall clock, seconds since the epoch."""
    sandbox: str
    """`none`, `landlock`, `linux-sandbox`: in force for this run."""
    network: str
    """Enforcement in force for this run: `none`, `enforced`."""
    notes: tuple[str, ...] = ()
    spool: str | None = None
    """Where its output lies on disk, for other daemons; None where it lies nowhere."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What is known of a process now."""

    process_id: str
    state: Literal["running", "exited"]
    started_at: float
    output_total: Mapping[str, int]
    """Bytes since the start, for `combined`, `stdout` and `stderr`."""
    exit_code: int | None = None
    signal: str | None = None
    termination: Termination | None = None
    ended_at: float | None = None
    notes: tuple[str, ...] = ()
    resources: Mapping[str, float] | None = None
    """`cpu_seconds` and `max_memory_bytes` of the whole tree, once known."""
    network_decisions: tuple[Mapping[str, Any], ...] | None = None
    """What the network door decided: {host, port, allowed, code, reason, rule, times}; None where there is none."""
    planted: tuple[str, ...] | None = None
    """What the run made below the root that programs of the host run by themselves, once known; None where nothing."""


@dataclass(frozen=True, slots=True)
class NetworkNews:
    """What the network door of a run has decided and was not told before."""

    decisions: tuple[Mapping[str, Any], ...]
    """As in ProcessState; `times` counts from the run's start."""
    not_kept: int
    """Decisions so far of further kinds, of which no more is kept than that they were."""
    cursor: int
    """Ask again with it for what follows."""


@dataclass(frozen=True, slots=True)
class HardLinks:
    """Files of a root that commands can write and that have another name outside it."""

    outside: int
    examples: tuple[str, ...]
    """The first of them, relative to the root, escaped."""
    complete: bool
    """Whether all of the root was looked at; else `outside` may be too few, and too many."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output from a cursor on."""

    text: str
    encoding: Encoding
    cursor: int
    """Where to go on: the absolute byte offset behind this chunk."""
    eof: bool
    retained_from: int
    output_lost: int
    """Bytes between the cursor asked for and the first byte of this chunk."""
    state: ProcessState
    retained_head: int = 0
    """Bytes at the start that are kept too, where a middle is lost; `retained_from` is behind it then."""
    replaced: int = 0
    """Bytes of it that are no UTF-8: each stretch of them stands as U+FFFD in the text."""


@dataclass(frozen=True, slots=True)
class DiffPage:
    """One page of a whole diff."""

    text: str
    cursor: int
    """Where the next page begins; `total` at the end."""
    total: int
    """Bytes of the whole diff as UTF-8."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Output that lies on disk, from a cursor on; fields as in Chunk."""

    text: str
    encoding: Encoding
    cursor: int
    eof: bool
    retained_from: int
    retained_head: int
    output_lost: int
    output_total: Mapping[str, int]
    """Bytes since the start that are known of, for `combined`, `stdout` and `stderr`."""
    replaced: int = 0

    def against(self, cursor: int, total: int) -> Kept:
        """Return it with what is lost behind its end: a disk can fill up, and a spool be removed.

        Args:
            cursor: From where on it was asked for.
            total: What the process wrote to the stream, where that is known.
        """
        if not self.eof or self.cursor >= total:
            return self
        if self.text:
            return replace(self, eof=False)
        return replace(self, cursor=total, retained_from=total, output_lost=max(0, total - cursor))


class Runner(Protocol):
    """The verbs of the runner. Each raises Refusal; each is bounded in time by the runner itself.

    The runner decides nothing about policy: the gateway has authorised what arrives here.
    """

    # what is in force
    async def describe(self, workspace: Workspace) -> Mapping[str, Any]:
        """Facts for the execution contract: file_io, patch_helper_confined, command_sandbox, reasons, caveats."""

    async def command_sandbox(self, workspace: Workspace) -> str:
        """The one fact that decides whether a command may start: `none`, `landlock` or `linux-sandbox`; cheap."""

    async def hard_links(self, workspace: Workspace) -> HardLinks:
        """Count them, slowly enough not to be noticed; for the start of the daemon."""

    # files
    async def read(
        self,
        workspace: Workspace,
        path: str,
        *,
        start_line: int | None,
        line_count: int | None,
        encoding: Encoding,
        limit_bytes: int,
    ) -> ReadResult: ...
    async def find(
        self, workspace: Workspace, *, glob: str | None, query: str | None, include_ignored: bool, limit: int
    ) -> FindResult: ...
    async def search(
        self,
        workspace: Workspace,
        pattern: str,
        *,
        literal: bool,
        glob: str | None,
        context_lines: int,
        limit: int,
    ) -> SearchResult: ...
    async def versions(self, workspace: Workspace, paths: Sequence[str]) -> Mapping[str, str]:
        """The version of each path now, `absent` where no regular file is."""

    async def resolve_program(self, workspace: Workspace, argv: Sequence[str], cwd: str) -> Mapping[str, str]:
        """What a hold binds: `program`, `program_file` behind links, `program_version`, and for what argv names in the
        root `link:<path>`, where it leads, and `file:<path>`, its version or why it is not bound."""

    # the patch transaction, in order; `operation_id` names the journal
    async def plan(
        self, workspace: Workspace, operation_id: str, patch: str, expected_versions: Mapping[str, str]
    ) -> PatchPlan: ...
    async def plan_undo(
        self, workspace: Workspace, operation_id: str, undone: str, state_dir: str | None = None
    ) -> PatchPlan:
        """As `plan`: what taking back `undone` would do, whose journal the daemon of `state_dir` has."""

    async def diff(self, workspace: Workspace, operation_id: str, cursor: int) -> DiffPage:
        """A page of the whole diff of a plan that is held."""

    async def kept_diff(self, operation_id: str, cursor: int, state_dir: str | None = None) -> DiffPage:
        """A page of the whole diff of an operation that has a journal; SNAPSHOT_EXPIRED where it has none."""

    async def leftovers(self, state_dir: str | None = None) -> Sequence[str]:
        """The operations whose journals say that something of them may still lie beside their files.

        Raises: Refusal FILE_OPERATION_FAILED where the state directory is not there.
        """

    async def expired(self, snapshot_bytes: int, snapshot_age_seconds: float) -> Sequence[str]:
        """The operations whose snapshots are too old, and the oldest while all together are too much."""

    async def discard(self, operation_id: str) -> bool:
        """Remove a snapshot; return whether it was there, finished and not in use."""

    def cut_off(self) -> None:
        """End every wait for a patch helper now: a stop whose time is over."""

    async def stage(self, workspace: Workspace, operation_id: str) -> None: ...
    async def install(self, workspace: Workspace, operation_id: str) -> PatchReport: ...
    async def verify(self, workspace: Workspace, operation_id: str) -> PatchReport: ...
    async def restore(self, workspace: Workspace, operation_id: str) -> PatchReport: ...
    async def finish(self, workspace: Workspace, operation_id: str, state_dir: str | None = None) -> PatchReport:
        """Look again at what was set aside and throw it away; also ends a plan that is not wanted."""

    async def settle(
        self, workspace: Workspace, operation_id: str, state_dir: str | None = None
    ) -> tuple[str, PatchReport] | None:
        """Decide from journal and hashes what a cut-off patch did, putting back what is half done.

        Args:
            state_dir: Of the daemon that began it; None for this one.
        Returns: `applied`, `failed_rolled_back`, `failed_partial` or `rejected`, and what is on disk;
            None where it cannot be seen now.
        """

    # processes
    def check(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """Refuse a command that is wrong by itself (INVALID_COMMAND, PATH_ESCAPE, INVALID_ARGUMENT)."""

    async def check_directory(self, workspace: Workspace, path: str) -> None:
        """Refuse what is no directory to start a command in now (FILE_NOT_FOUND, PATH_NOT_DIRECTORY, ...)."""

    async def spawn(self, workspace: Workspace, request: SpawnRequest) -> Spawned: ...
    async def wait_exit(self, process_id: str) -> ProcessState: ...
    async def output(
        self, process_id: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding
    ) -> Chunk: ...
    async def wait_output(self, process_id: str, *, cursor: int, stream: Stream) -> None:
        """Return once there is output behind `cursor` or the process has ended and drained."""

    async def wait_decisions(self, process_id: str, *, cursor: int) -> NetworkNews | None:
        """Return what the network door of a run decided behind `cursor` (0 for all), waiting until there is some.

        None once nothing will follow, and where the run has no door.
        """

    async def kept_output(
        self, spool: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding, ended: bool
    ) -> Kept:
        """Output of a process of any daemon, live or dead, from where it lies on disk; empty where it is gone.

        `ended`: nothing will follow.
        """

    def process(self, process_id: str) -> ProcessState: ...
    def knows(self, process_id: str) -> bool:
        """Return whether `process` would answer; asked of all processes at each start, so it costs next to nothing."""

    async def write_stdin(self, process_id: str, data: bytes, *, eof: bool) -> int: ...
    async def resize(self, process_id: str, rows: int, cols: int) -> None: ...
    async def terminate(self, process_id: str, grace_seconds: float) -> ProcessState: ...
    def forget(self, process_id: str) -> None:
        """Drop an ended process and its output."""


class Tools(Protocol):
    """What protocol calls: one method for each tool, arguments validated and defaults filled in.

    Each returns the result of CONTRACT section 2 as plain JSON values and raises Refusal.
    """

    async def workspace_info(self, caller: Caller, *, workspace_id: str | None) -> dict[str, Any]: ...
    async def read(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        path: str,
        start_line: int | None,
        line_count: int | None,
        encoding: Encoding,
    ) -> dict[str, Any]: ...
    async def read_many(self, caller: Caller, *, workspace_id: str | None, paths: list[str]) -> dict[str, Any]: ...
    async def find(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        glob: str | None,
        query: str | None,
        include_ignored: bool,
        limit: int,
    ) -> dict[str, Any]: ...
    async def search(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        pattern: str,
        literal: bool,
        glob: str | None,
        context_lines: int,
        limit: int,
    ) -> dict[str, Any]: ...
    async def apply_patch(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        patch: str,
        expected_versions: dict[str, str] | None,
        operation_key: str | None,
        check_only: bool,
        work_id: str | None,
    ) -> dict[str, Any]: ...
    async def operation_status(
        self, caller: Caller, *, operation_id: str | None, operation_key: str | None
    ) -> dict[str, Any]: ...
    async def operation_undo(
        self, caller: Caller, *, operation_id: str, operation_key: str | None
    ) -> dict[str, Any]: ...
    async def exec_command(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        command: list[str],
        cwd: str,
        env: dict[str, str] | None,
        stdin: str | None,
        open_stdin: bool,
        tty: bool,
        rows: int,
        cols: int,
        timeout_seconds: float | None,
        wait_seconds: float,
        operation_key: str | None,
        work_id: str | None,
    ) -> dict[str, Any]: ...
    async def read_process(
        self,
        caller: Caller,
        *,
        process_id: str,
        cursor: int,
        stream: Stream,
        wait_seconds: float,
        limit_bytes: int,
        encoding: Encoding,
    ) -> dict[str, Any]: ...
    async def process_status(self, caller: Caller, *, process_id: str) -> dict[str, Any]: ...
    async def list_processes(self, caller: Caller, *, workspace_id: str | None) -> dict[str, Any]: ...
    async def write_stdin(
        self, caller: Caller, *, process_id: str, data: str, encoding: Encoding, eof: bool
    ) -> dict[str, Any]: ...
    async def resize_process(self, caller: Caller, *, process_id: str, rows: int, cols: int) -> dict[str, Any]: ...
    async def terminate_process(self, caller: Caller, *, process_id: str, grace_seconds: float) -> dict[str, Any]: ...
    async def approval_create(self, caller: Caller, *, tool: str, arguments: dict[str, Any]) -> dict[str, Any]: ...
    async def approval_status(self, caller: Caller, *, approval_id: str, wait_seconds: float) -> dict[str, Any]: ...
    async def approval_resolve(self, caller: Caller, *, approval_id: str, decision: str) -> dict[str, Any]: ...
    async def operation_resume(self, caller: Caller, *, approval_id: str) -> dict[str, Any]: ...
    async def work_open(self, caller: Caller, *, workspace_id: str | None, title: str) -> dict[str, Any]: ...
    async def steer_status(self, caller: Caller, *, work_id: str) -> dict[str, Any]: ...
    async def steer_claim_next(self, caller: Caller, *, work_id: str) -> dict[str, Any]: ...
    async def steer_complete(
        self, caller: Caller, *, work_id: str, intent_id: str, outcome: Outcome, note: str | None
    ) -> dict[str, Any]: ...
    async def work_finish(self, caller: Caller, *, work_id: str) -> dict[str, Any]: ...


class Inbox(Protocol):
    """What the operator's door calls: works and their intents, arguments validated and defaults filled in.

    Each returns plain JSON values and raises Refusal. Nothing of it is reachable by an MCP caller.
    """

    async def works(self) -> dict[str, Any]: ...
    async def work(self, *, work_id: str) -> dict[str, Any]: ...
    async def intents(self, *, work_id: str) -> dict[str, Any]: ...
    async def draft(
        self, *, work_id: str, text: str, kind: IntentKind, delivery: Delivery, supersedes: str | None
    ) -> dict[str, Any]: ...
    async def edit(
        self, *, intent_id: str, revision: int, text: str | None, kind: IntentKind | None, delivery: Delivery | None
    ) -> dict[str, Any]: ...
    async def queue(self, *, intent_id: str, revision: int | None) -> dict[str, Any]: ...
    async def cancel(self, *, intent_id: str, revision: int | None) -> dict[str, Any]: ...
    async def reorder(self, *, work_id: str, intent_ids: list[str]) -> dict[str, Any]: ...
    async def stop(self, *, work_id: str, text: str | None) -> dict[str, Any]: ...
