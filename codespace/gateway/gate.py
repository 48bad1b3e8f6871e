"""The gate: what a door may ask for, one method for each tool.

Every request is decided here before anything acts: find the workspace, decide by its profile and
environment, then (for what changes something) hand it to `Admission`, which keeps the order of
keys, holds and occupancy. Arguments arrive validated, defaults filled in; results leave as plain
JSON values.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import trio

from codespace import __version__, limits
from codespace.contract import Caller, Encoding, Outcome, ReadResult, Runner, Stream, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.gateway import information, policy
from codespace.gateway.admission import Admission
from codespace.gateway.hold import Hold
from codespace.gateway.holds import Holds, no_such_hold, operator_only
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.links import Links
from codespace.gateway.patching import Patching
from codespace.gateway.processes import Processes
from codespace.gateway.registry import Registry
from codespace.gateway.undo import require_undoable
from codespace.gateway.view import hold_view, known, operation_view, shown_view, visible, visible_body
from codespace.gateway.works import Works

_SEND_IT_AGAIN: Final = (
    "Nothing was done here under this key until now, though a request under it may be held: send the same call with it "
    "again, and it is done, or its hold is named."
)


class Gate:
    """Implements `contract.Tools` for one daemon."""

    def __init__(
        self,
        registry: Registry,
        runner: Runner,
        ledger: Ledger,
        holds: Holds,
        patching: Patching,
        processes: Processes,
        admission: Admission,
        works: Works,
        links: Links,
        server_facts: Mapping[str, Any],
    ) -> None:
        self._registry = registry
        self._runner = runner
        self._ledger = ledger
        self._holds = holds
        self._patching = patching
        self._processes = processes
        self._admission = admission
        self._works = works
        self._links = links
        self._server_facts = server_facts
        self._closed = False

    def close(self) -> None:
        """Refuse everything from now on with SHUTTING_DOWN."""
        self._closed = True

    # --- what is in force ---

    async def workspace_info(self, caller: Caller, *, workspace_id: str | None) -> dict[str, Any]:
        self._require_open()
        info: dict[str, Any] = {
            "server": "CodeSpace",
            "version": __version__,
            **self._server_facts,
            "workspaces": [{"id": each.id, "profile": each.profile} for each in self._registry],
        }
        if workspace_id is None and len(info["workspaces"]) != 1:
            return info
        workspace = self._registry.find(workspace_id)
        facts = dict(await self._runner.describe(workspace))
        facts["caveats"] = [*facts["caveats"], *self._links.caveats(workspace)]
        return info | {
            "workspace_id": workspace.id,
            "profile": workspace.profile,
            "root": workspace.root,
            "execution": information.execution(workspace, facts),
        }

    # --- files ---

    async def read(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        path: str,
        start_line: int | None,
        line_count: int | None,
        encoding: Encoding,
    ) -> dict[str, Any]:
        workspace = self._readable(workspace_id)
        with _naming_relative(workspace):
            result = await self._runner.read(
                workspace,
                path,
                start_line=start_line,
                line_count=line_count,
                encoding=encoding,
                limit_bytes=workspace.limits.read_bytes,
            )
        return known(result)

    async def read_many(self, caller: Caller, *, workspace_id: str | None, paths: list[str]) -> dict[str, Any]:
        workspace = self._readable(workspace_id)
        left = workspace.limits.read_bytes
        deadline = trio.current_time() + limits.READ_MANY_SECONDS
        entries: list[dict[str, Any]] = []
        for path in paths:
            is_late = bool(entries) and trio.current_time() > deadline
            try:
                result = await self._read_within(workspace, path, left, is_late=is_late)
            except Refusal as refusal:
                entries.append({"path": path, "error": refusal.body()})
            else:
                left -= len(result.content.encode("utf-8", "surrogatepass"))
                entries.append(known(result))
        return {"entries": entries}

    async def _read_within(self, workspace: Workspace, path: str, left: int, *, is_late: bool) -> ReadResult:
        if left <= 0:
            raise Refusal("OUTPUT_LIMIT", "The files before this one filled the answer.", next_step="Read it alone.")
        if is_late:
            raise Refusal("TIMEOUT", "The files before this one took the call's time.", next_step="Read it alone.")
        with _naming_relative(workspace):
            return await self._runner.read(
                workspace, path, start_line=None, line_count=None, encoding="text", limit_bytes=left
            )

    async def find(
        self,
        caller: Caller,
        *,
        workspace_id: str | None,
        glob: str | None,
        query: str | None,
        include_ignored: bool,
        limit: int,
    ) -> dict[str, Any]:
        workspace = self._readable(workspace_id)
        found = await self._runner.find(workspace, glob=glob, query=query, include_ignored=include_ignored, limit=limit)
        return known(found)

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
    ) -> dict[str, Any]:
        workspace = self._readable(workspace_id)
        found = await self._runner.search(
            workspace, pattern, literal=literal, glob=glob, context_lines=context_lines, limit=limit
        )
        matches = [known(match) for match in found.matches]
        if context_lines == 0:  # nobody asked: a quarter of an answer was two empty lists in each match
            for match in matches:
                del match["before"], match["after"]
        return known(found) | {"matches": matches}

    # --- patches ---

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
    ) -> dict[str, Any]:
        workspace = self._writable(workspace_id)
        expected = expected_versions or {}
        await self._require_work(work_id, workspace, operation_key)
        if check_only:
            with _naming_relative(workspace):
                return await self._coordinated(work_id, await self._patching.plans.check(workspace, patch, expected))
        arguments = {
            "workspace_id": workspace.id,
            "patch": patch,
            "expected_versions": expected,
            "operation_key": operation_key,
            "work_id": work_id,
        }
        with _naming_relative(workspace):
            result = await self._admission.admit("apply_patch", workspace, arguments, caller)
            return await self._coordinated(work_id, result)

    async def operation_status(
        self, caller: Caller, *, operation_id: str | None, operation_key: str | None
    ) -> dict[str, Any]:
        self._require_open()
        operation, workspace = await self._operation(operation_id, operation_key)
        view = operation_view(operation, await self._ledger.events(operation.id)) | {"workspace_id": workspace.id}
        status = visible(view, workspace)
        if "code" in view.get("outcome", ()):
            status["outcome"] = visible_body(view["outcome"], workspace)
        if operation.kind == "patch" and operation.state == "applied":
            current = await self._patching.still_current(workspace, operation)
            status |= {} if current is None else {"still_current": current}
        return status

    async def operation_undo(self, caller: Caller, *, operation_id: str, operation_key: str | None) -> dict[str, Any]:
        workspace = self._writable(await self._workspace_of(operation_id))
        arguments = {"workspace_id": workspace.id, "operation_id": operation_id, "operation_key": operation_key}
        return await self._admission.admit("operation_undo", workspace, arguments, caller)

    async def _workspace_of(self, operation_id: str) -> str:
        self._require_open()
        operation, workspace = await self._operation(operation_id, None)
        require_undoable(operation)
        return workspace.id

    async def _operation(self, operation_id: str | None, operation_key: str | None) -> tuple[Operation, Workspace]:
        """Return an operation that agents here may know of, like processes: one in a directory that is registered here.

        Raises: Refusal OPERATION_NOT_FOUND, INVALID_ARGUMENT.
        """
        if operation_id is not None and operation_key is None:
            operation = await self._ledger.get(operation_id)
        elif operation_key is not None and operation_id is None:
            operation = await self._ledger.by_key(operation_key)
        else:
            raise Refusal(
                "INVALID_ARGUMENT",
                "Exactly one of operation_id and operation_key is needed.",
                details={"argument": "operation_id"},
            )
        workspace = None if operation is None else self._registry.of_root(operation.root)
        if operation is None or workspace is None:
            raise Refusal(
                "OPERATION_NOT_FOUND",
                "No such operation is recorded in a workspace of yours.",
                next_step=None if operation_key is None else _SEND_IT_AGAIN,
            )
        return operation, workspace

    # --- commands ---

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
    ) -> dict[str, Any]:
        workspace = self._writable(workspace_id)
        arguments = {
            "workspace_id": workspace.id,
            "command": command,
            "cwd": cwd,
            "env": env or {},
            "stdin": stdin,
            "open_stdin": open_stdin,
            "tty": tty,
            "rows": rows,
            "cols": cols,
            "timeout_seconds": timeout_seconds,
            "wait_seconds": wait_seconds,
            "operation_key": operation_key,
            "work_id": work_id,
        }
        await self._require_work(work_id, workspace, operation_key)
        with _naming_relative(workspace):
            result = await self._admission.admit("exec_command", workspace, arguments, caller)
            return await self._coordinated(work_id, result)

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
    ) -> dict[str, Any]:
        return await self._processes.read(
            caller,
            process_id,
            cursor=cursor,
            stream=stream,
            wait_seconds=wait_seconds,
            limit_bytes=limit_bytes,
            encoding=encoding,
        )

    async def process_status(self, caller: Caller, *, process_id: str) -> dict[str, Any]:
        return await self._processes.status(process_id)

    async def list_processes(self, caller: Caller, *, workspace_id: str | None) -> dict[str, Any]:
        if workspace_id is not None:
            policy.require_read(self._registry.find(workspace_id))
        return {"processes": await self._processes.listed(workspace_id)}

    async def write_stdin(
        self, caller: Caller, *, process_id: str, data: str, encoding: Encoding, eof: bool
    ) -> dict[str, Any]:
        self._require_open()
        run = await self._processes.run(process_id)
        if run.workspace.approvals == "operator" and not run.stdin_granted:
            arguments = {
                "workspace_id": run.workspace.id,
                "process_id": process_id,
                "data": data,
                "encoding": encoding,
                "eof": eof,
            }
            return await self._admission.admit("write_stdin", run.workspace, arguments, caller)
        return await self._processes.write_stdin(process_id, data, encoding=encoding, eof=eof)

    async def resize_process(self, caller: Caller, *, process_id: str, rows: int, cols: int) -> dict[str, Any]:
        self._require_open()
        await self._processes.resize(process_id, rows, cols)
        return {"process_id": process_id, "rows": rows, "cols": cols}

    async def terminate_process(self, caller: Caller, *, process_id: str, grace_seconds: float) -> dict[str, Any]:
        return await self._processes.terminate(process_id, grace_seconds)

    # --- holds ---

    async def approval_create(self, caller: Caller, *, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if tool == "operation_undo":
            workspace = self._writable(await self._workspace_of(str(arguments.get("operation_id"))))
        else:
            workspace = self._writable(arguments.get("workspace_id"))
        _refuse_preview(arguments)
        await self._require_work(arguments.get("work_id"), workspace, arguments.get("operation_key"))
        return hold_view(await self._admission.hold(tool, workspace, _as_called(arguments, workspace), caller))

    async def approval_status(self, caller: Caller, *, approval_id: str, wait_seconds: float) -> dict[str, Any]:
        await self._hold(approval_id)
        hold = await self._holds.wait_decided(approval_id, wait_seconds)
        view = hold_view(hold) | {
            "tool": hold.tool,
            "workspace_id": hold.workspace_id,
            "fingerprint": hold.fingerprint,
            "shown": visible(shown_view(hold, again=True), self._registry.find(hold.workspace_id)),
            "reason": hold.reason,
            "result": await self._admission.result(hold, caller),
        }
        return {name: value for name, value in view.items() if value is not None}

    async def approval_resolve(self, caller: Caller, *, approval_id: str, decision: str) -> dict[str, Any]:
        self._require_open()
        hold = await self._hold(approval_id)
        if self._registry.find(hold.workspace_id).approvals == "operator":
            raise operator_only(approval_id)
        by = f"caller over {caller.transport}"
        return hold_view(await self._holds.resolve(approval_id, decision, by=by, authority="caller"))

    async def operation_resume(self, caller: Caller, *, approval_id: str) -> dict[str, Any]:
        self._require_open()
        hold = await self._hold(approval_id)
        result = await self._admission.resume(hold, caller)
        waiting = await self._waiting(await self._work_behind(result))
        # With both: a client whose user was asked within the call itself gets the inner one alone.
        return {"approval_id": approval_id, "state": "consumed", hold.tool: result | waiting} | waiting

    async def _hold(self, approval_id: str) -> Hold:
        """Return a hold that agents here may know of, like works and processes: one of a workspace and directory here.

        Raises: Refusal APPROVAL_NOT_FOUND, APPROVAL_CONFLICT.
        """
        hold = await self._holds.get(approval_id)
        if not self._registry.knows(hold.workspace_id):
            raise no_such_hold(approval_id)
        await self._admission.refuse_another_directory(hold, self._registry.find(hold.workspace_id))
        return hold

    async def _work_behind(self, result: Mapping[str, Any]) -> str | None:
        """Return the work that the operation of a result belongs to: a hold's own copy goes when it has run."""
        named = result.get("operation_id")
        with suppress(Refusal):  # the result is true all the same, and must not become an error
            if named is not None and (operation := await self._ledger.get(named)) is not None:
                return operation.work_id
        return None

    # --- works ---

    async def work_open(self, caller: Caller, *, workspace_id: str | None, title: str) -> dict[str, Any]:
        return await self._works.open(self._readable(workspace_id), title)

    async def steer_status(self, caller: Caller, *, work_id: str) -> dict[str, Any]:
        self._require_open()
        return await self._works.status(work_id)

    async def steer_claim_next(self, caller: Caller, *, work_id: str) -> dict[str, Any]:
        self._require_open()
        return await self._works.claim_next(work_id)

    async def steer_complete(
        self, caller: Caller, *, work_id: str, intent_id: str, outcome: Outcome, note: str | None
    ) -> dict[str, Any]:
        self._require_open()
        return await self._works.complete(work_id, intent_id, outcome, note)

    async def work_finish(self, caller: Caller, *, work_id: str) -> dict[str, Any]:
        self._require_open()
        return await self._works.finish(work_id)

    async def _require_work(self, work_id: str | None, workspace: Workspace, operation_key: str | None) -> None:
        """Refuse what names a work that does not take it; a repeated key is answered whatever became of the work."""
        if work_id is None or (operation_key is not None and await self._ledger.by_key(operation_key) is not None):
            return
        await self._works.require_active(work_id, workspace)

    async def _coordinated(self, work_id: str | None, result: dict[str, Any]) -> dict[str, Any]:
        return result | await self._waiting(work_id)

    async def _waiting(self, work_id: str | None) -> dict[str, Any]:
        """Return what to say with a result where the operator's input waits: the one place that does."""
        waiting = None if work_id is None else await self._works.coordination(work_id)
        return {} if waiting is None else {"coordination": waiting}

    # --- decisions every request passes ---

    def _require_open(self) -> None:
        if self._closed:
            raise Refusal("SHUTTING_DOWN", "The daemon is stopping; nothing was done.")

    def _readable(self, workspace_id: str | None) -> Workspace:
        self._require_open()
        workspace = self._registry.find(workspace_id)
        policy.require_read(workspace)
        return workspace

    def _writable(self, workspace_id: str | None) -> Workspace:
        workspace = self._readable(workspace_id)
        policy.require_write(workspace)
        return workspace


@contextmanager
def _naming_relative(workspace: Workspace) -> Iterator[None]:
    """Have a refusal of an absolute path that lies in the root name the relative one."""
    try:
        yield
    except Refusal as refusal:
        path, below = (refusal.details or {}).get("path"), f"{workspace.root.rstrip('/')}/"
        if refusal.code == "PATH_ESCAPE" and isinstance(path, str):
            whole = posixpath.normpath(path)
            relative = whole[len(below) :] or "."
            if f"{whole}/".startswith(below) and display(relative) == relative:  # else it could not be sent as it reads
                named = f"Send '{relative}' instead. "
                refusal.next_step = named + refusal.next_step.removeprefix(named)  # it may be told to several who wait
        raise


def _refuse_preview(arguments: Mapping[str, Any]) -> None:
    if arguments.get("check_only"):
        raise Refusal(
            "INVALID_ARGUMENT",
            "`arguments.check_only` asks for a preview, which needs no grant; nothing was held.",
            next_step="Call apply_patch with check_only, or leave it out to have the patch itself held.",
            details={"argument": "arguments.check_only"},
        )


def _as_called(arguments: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Return the arguments of a call that is to be held as the call itself hands them on: both are one request."""
    filled = {name: value for name, value in arguments.items() if name != "check_only"}
    empty: dict[str, Any] = {
        name: {} for name in ("env", "expected_versions") if name in filled and filled[name] is None
    }
    return filled | empty | {"workspace_id": workspace.id}
