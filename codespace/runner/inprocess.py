"""The runner in the daemon's own process: every verb, each from the room it belongs to.

Nothing is decided here; what arrives was authorised by the gateway.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from codespace import limits
from codespace.beneath import clean
from codespace.contract import (
    Chunk,
    DiffPage,
    Encoding,
    FindResult,
    HardLinks,
    Kept,
    NetworkNews,
    PatchPlan,
    PatchReport,
    ProcessState,
    ReadResult,
    SearchResult,
    Spawned,
    SpawnRequest,
    Stream,
    Workspace,
)
from codespace.errors import Refusal
from codespace.runner import environment, program
from codespace.runner.files import Files
from codespace.runner.output import kept
from codespace.runner.patch import journals
from codespace.runner.patch.patcher import Patcher
from codespace.runner.protected import protected_paths
from codespace.runner.roots import Roots
from codespace.runner.search.search import Search
from codespace.runner.supervisor import Supervisor
from codespace.runner.turns import Turns
from codespace.sandbox import plan
from codespace.sandbox.box import Sandbox
from codespace.sandbox.inventory import hardlinks


@asynccontextmanager
async def open_runner(
    *,
    state_dir: str,
    rg_path: str | None,
    bwrap_path: str | None,
    retention_seconds: float,
    wall_clock: Callable[[], float],
    spool_bytes: int = limits.SPOOL_BYTES,
    process_spool_bytes: int = limits.PROCESS_SPOOL_BYTES,
    sandbox: Sandbox | None = None,
    networked: bool = False,
) -> AsyncIterator[InProcess]:
    """Run the runner until the block ends; then its helpers and all its processes are gone, in bounded time.

    Args:
        sandbox: What commands are locked into where it can be had; None for no sandbox at all.
        networked: Whether a workspace's commands may have a network.
    """
    roots = Roots()
    try:
        if sandbox is not None:
            await trio.to_thread.run_sync(sandbox.sweep)
        async with (
            Patcher(state_dir, roots=roots) as patcher,
            Supervisor(
                state_dir,
                wall_clock=wall_clock,
                retention_seconds=retention_seconds,
                spool_bytes=spool_bytes,
                process_spool_bytes=process_spool_bytes,
                sandbox=sandbox,
                networked=networked,
            ) as supervisor,
        ):
            search = Search(roots, rg_path=rg_path, bwrap_path=bwrap_path)
            yield InProcess(roots, Files(roots), search, patcher, supervisor, state_dir, wall_clock, sandbox)
    finally:
        roots.close()


class InProcess:
    """Implements `contract.Runner`."""

    def __init__(
        self,
        roots: Roots,
        files: Files,
        search: Search,
        patcher: Patcher,
        supervisor: Supervisor,
        state_dir: str,
        wall_clock: Callable[[], float],
        sandbox: Sandbox | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._state_dir = state_dir
        self._wall_clock = wall_clock
        self._roots = roots
        self._files = files
        self._search = search
        self._patcher = patcher
        self._supervisor = supervisor
        self._turns = Turns(limits.READS_AT_ONCE)
        self._counting = Turns(1)
        """Counts take their time, and none of the threads that calls wait for."""

    # --- what is in force ---

    async def describe(self, workspace: Workspace) -> Mapping[str, Any]:
        """Return the facts for the execution contract, from probes; what is lasting is probed once."""
        confinement = await self._search.confinement()
        root = await self._turns.run(workspace, partial(self._roots.of, workspace), "the root")
        confined = await self._helper_confinement(workspace)
        commands = await self._commands(workspace)
        reasons = [*commands["reasons"], *([confinement.reason] if confinement.reason else [])]
        if confined.get("reason"):
            reasons.append(f"The patch helper is not wholly confined: {confined['reason']}.")
        in_steps = [_IN_STEPS] if self._patcher.atomic(workspace) is False else []
        return {
            **commands,
            "runner": "in-process",
            "file_io": root.primitive,
            "search_confinement": confinement.kind,
            "tty_supported": True,
            "patch_helper_confined": bool(confined.get("files")),
            "reasons": reasons,
            "caveats": [*commands["caveats"], *in_steps],
        }

    async def command_sandbox(self, workspace: Workspace) -> str:
        """Return what a command would be locked into; `none` also where nothing can be concluded now."""
        if self._sandbox is None or self._sandbox.known is not None:
            await trio.lowlevel.checkpoint()
            return "none" if self._sandbox is None else self._sandbox.rung(workspace)
        try:
            return await trio.to_thread.run_sync(self._sandbox.rung, workspace)
        except Refusal:
            return "none"

    async def _commands(self, workspace: Workspace) -> dict[str, Any]:
        """Return what commands are locked into; where nothing can be concluded now, that none can be started."""
        if workspace.environment_kind != "host":
            return self._unlocked(workspace, _NO_PATH.format(workspace))
        if self._sandbox is None:
            free = workspace.network == "restricted" and workspace.sandbox == "optional"
            return self._unlocked(workspace, _NO_SANDBOX) | {"exec_available": free, "caveats": [_UNSANDBOXED]}
        try:
            facts = dict(await trio.to_thread.run_sync(self._sandbox.facts, workspace))
        except Refusal as refusal:
            return self._unlocked(workspace, refusal.message)
        return facts | {"sandbox": self._with_limits(workspace, facts)}

    def _unlocked(self, workspace: Workspace, reason: str) -> dict[str, Any]:
        """Return that nothing locks a command in, and that none is started."""
        return {
            "exec_available": False,
            "command_sandbox": "none",
            "network_enforcement": "none",
            "sandbox": {
                "filesystem": {"enforcement": "none", "writable": [], "hidden": []},
                "git": "none",
                "syscalls": "none",
                "limits": self._supervisor.limits(workspace),
                "process_tree": "monitor",
                "runs_as_root": os.geteuid() == 0,
                "degraded": [],
            },
            "reasons": [reason],
            "caveats": [],
        }

    def _with_limits(self, workspace: Workspace, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of the sandbox with what carries each limit, those of each process included."""
        own = self._supervisor.limits(workspace)
        if facts["command_sandbox"] == "linux-sandbox":
            own |= facts["sandbox"]["limits"]
        return {**facts["sandbox"], "limits": own}

    async def _helper_confinement(self, workspace: Workspace) -> Mapping[str, Any]:
        """Return what the patch helper's own witness found; a workspace that takes no patch never has one."""
        if workspace.profile != "workspace-write":
            return {"files": False}
        return await self._patcher.confinement(workspace)

    async def hard_links(self, workspace: Workspace) -> HardLinks:
        sandboxed = await self.command_sandbox(workspace) == "linux-sandbox"

        def count() -> HardLinks:
            return hardlinks.count(workspace, protected_paths(workspace), _walk_slowly, sandboxed=sandboxed)

        # The count has its own end, and looks for it between two entries: a hung filesystem never comes to the next.
        with trio.move_on_after(limits.HARD_LINK_SECONDS + limits.ROOT_ANSWER_SECONDS):
            return await trio.to_thread.run_sync(
                count,
                abandon_on_cancel=True,
                limiter=self._counting.of(workspace),
                thread_name="codespace hard links",
            )
        return HardLinks(0, (), complete=False)

    # --- files ---

    async def read(
        self,
        workspace: Workspace,
        path: str,
        *,
        start_line: int | None,
        line_count: int | None,
        encoding: Encoding,
        limit_bytes: int,
    ) -> ReadResult:
        return await self._files.read(
            workspace,
            path,
            start_line=start_line,
            line_count=line_count,
            encoding=encoding,
            limit_bytes=limit_bytes,
        )

    async def find(
        self, workspace: Workspace, *, glob: str | None, query: str | None, include_ignored: bool, limit: int
    ) -> FindResult:
        return await self._search.find(workspace, glob=glob, query=query, include_ignored=include_ignored, limit=limit)

    async def search(
        self,
        workspace: Workspace,
        pattern: str,
        *,
        literal: bool,
        glob: str | None,
        context_lines: int,
        limit: int,
    ) -> SearchResult:
        return await self._search.search(
            workspace, pattern, literal=literal, glob=glob, context_lines=context_lines, limit=limit
        )

    async def versions(self, workspace: Workspace, paths: Sequence[str]) -> Mapping[str, str]:
        return await self._files.versions(workspace, paths)

    async def resolve_program(self, workspace: Workspace, argv: Sequence[str], cwd: str) -> Mapping[str, str]:
        locked_in = await self.command_sandbox(workspace) == "linux-sandbox"
        sees = partial(plan.sees, workspace) if locked_in else None
        async with self._directory(workspace, cwd) as cwd_fd:
            return await program.resolve(workspace, argv, cwd, cwd_fd, partial(self._files.bound, workspace), sees)

    @asynccontextmanager
    async def _directory(self, workspace: Workspace, path: str) -> AsyncIterator[int]:
        """Lend an open descriptor of a directory of the workspace."""
        cwd_fd = await self._turns.open(workspace, lambda: self._roots.of(workspace).open_directory(path), path)
        try:
            yield cwd_fd
        finally:
            os.close(cwd_fd)

    # --- patches ---

    async def plan(
        self, workspace: Workspace, operation_id: str, patch: str, expected_versions: Mapping[str, str]
    ) -> PatchPlan:
        return await self._patcher.plan(workspace, operation_id, patch, expected_versions)

    async def plan_undo(
        self, workspace: Workspace, operation_id: str, undone: str, state_dir: str | None = None
    ) -> PatchPlan:
        return await self._patcher.plan_undo(workspace, operation_id, undone, state_dir)

    async def diff(self, workspace: Workspace, operation_id: str, cursor: int) -> DiffPage:
        return await self._patcher.diff(workspace, operation_id, cursor)

    async def kept_diff(self, operation_id: str, cursor: int, state_dir: str | None = None) -> DiffPage:
        return await trio.to_thread.run_sync(journals.diff, state_dir or self._state_dir, operation_id, cursor)

    async def leftovers(self, state_dir: str | None = None) -> Sequence[str]:
        return await self._patcher.leftovers(state_dir)

    async def expired(self, snapshot_bytes: int, snapshot_age_seconds: float) -> Sequence[str]:
        oldest = self._wall_clock() - snapshot_age_seconds
        return await trio.to_thread.run_sync(journals.expired, self._state_dir, snapshot_bytes, oldest)

    async def discard(self, operation_id: str) -> bool:
        return await trio.to_thread.run_sync(journals.forget, self._state_dir, operation_id)

    def cut_off(self) -> None:
        self._patcher.cut_off()

    async def stage(self, workspace: Workspace, operation_id: str) -> None:
        await self._patcher.stage(workspace, operation_id)

    async def install(self, workspace: Workspace, operation_id: str) -> PatchReport:
        return await self._patcher.install(workspace, operation_id)

    async def verify(self, workspace: Workspace, operation_id: str) -> PatchReport:
        return await self._patcher.verify(workspace, operation_id)

    async def restore(self, workspace: Workspace, operation_id: str) -> PatchReport:
        return await self._patcher.restore(workspace, operation_id)

    async def finish(self, workspace: Workspace, operation_id: str, state_dir: str | None = None) -> PatchReport:
        return await self._patcher.finish(workspace, operation_id, state_dir)

    async def settle(
        self, workspace: Workspace, operation_id: str, state_dir: str | None = None
    ) -> tuple[str, PatchReport] | None:
        return await self._patcher.settle(workspace, operation_id, state_dir)

    # --- processes ---

    def check(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        environment.check_argv(argv)
        environment.check(env)
        clean(cwd, "cwd")

    async def check_directory(self, workspace: Workspace, path: str) -> None:
        async with self._directory(workspace, path):
            pass

    async def spawn(self, workspace: Workspace, request: SpawnRequest) -> Spawned:
        async with self._directory(workspace, request.cwd) as cwd_fd:
            return await self._supervisor.spawn(workspace, request, cwd_fd)

    async def wait_exit(self, process_id: str) -> ProcessState:
        return await self._supervisor.wait_exit(process_id)

    async def output(
        self, process_id: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding
    ) -> Chunk:
        return await self._supervisor.output(
            process_id, cursor=cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding
        )

    async def wait_output(self, process_id: str, *, cursor: int, stream: Stream) -> None:
        await self._supervisor.wait_output(process_id, cursor=cursor, stream=stream)

    async def wait_decisions(self, process_id: str, *, cursor: int) -> NetworkNews | None:
        return await self._supervisor.wait_decisions(process_id, cursor=cursor)

    async def kept_output(
        self, spool: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding, ended: bool
    ) -> Kept:
        piece, totals = await trio.to_thread.run_sync(
            lambda: kept.read(
                spool, cursor=cursor, stream=stream, limit_bytes=limit_bytes, encoding=encoding, ended=ended
            ),
            abandon_on_cancel=True,
        )
        return Kept(
            piece.text,
            piece.encoding,
            piece.cursor,
            piece.eof,
            piece.retained_from,
            piece.retained_head,
            piece.output_lost,
            totals,
            piece.replaced,
        )

    def process(self, process_id: str) -> ProcessState:
        return self._supervisor.process(process_id)

    def knows(self, process_id: str) -> bool:
        return self._supervisor.knows(process_id)

    async def write_stdin(self, process_id: str, data: bytes, *, eof: bool) -> int:
        return await self._supervisor.write_stdin(process_id, data, eof=eof)

    async def resize(self, process_id: str, rows: int, cols: int) -> None:
        await self._supervisor.resize(process_id, rows, cols)

    async def terminate(self, process_id: str, grace_seconds: float) -> ProcessState:
        return await self._supervisor.terminate(process_id, grace_seconds)

    def forget(self, process_id: str) -> None:
        self._supervisor.forget(process_id)


def _walk_slowly() -> None:
    """Leave the interpreter to the event loop; ends the thread of a count that is not wanted any more."""
    trio.from_thread.check_cancelled()
    time.sleep(limits.HARD_LINK_PAUSE_SECONDS)


_NO_PATH = (
    "command_sandbox is `none`: environment `{0.environment}` of kind {0.environment_kind} is registered but is no "
    "execution path; no command runs there, and no file is read or written. Ask the operator to move the workspace to "
    "an environment of kind `host`."
)
_NO_SANDBOX = "command_sandbox is `none`: this runner was started without one."
_IN_STEPS = (
    "The filesystem cannot exchange names in one step (RENAME_EXCHANGE, RENAME_NOREPLACE): a patch replaces a file in "
    "two, and for a moment in between nothing is at its path. No bytes are lost, also by a crash in it."
)
_UNSANDBOXED = (
    "Commands run with all rights of the operator's account: they can read and write outside the root and use the "
    "network. Only the file tools and patches are kept inside."
)
