"""Drives write_stdin where the operator decides what a process is told: the write is held like a command.

Only for processes whose own hold did not say that they accept stdin; what was granted together with
`open_stdin` needs no second grant. A write is never repeated: one that was cut off is ambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.gateway import policy
from codespace.gateway.hold import Hold
from codespace.gateway.operation import Operation
from codespace.gateway.processes import Processes
from codespace.gateway.request import Request


class Feeding:
    """The driver of write_stdin."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        policy.require_write(workspace)
        if (await self._processes.run(arguments["process_id"])).workspace.id != workspace.id:
            raise Refusal("PROCESS_NOT_FOUND", "No process of this id is in the workspace.")
        return dict(arguments)

    async def preview(self, request: Request) -> dict[str, Any]:
        arguments = request.arguments
        run = await self._processes.run(arguments["process_id"])
        shown = {name: arguments[name] for name in ("process_id", "data", "encoding", "eof")}
        return shown | {"command": list(run.command), "operation_id": run.operation_id}

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Write once. Raises: Refusal PROCESS_EXITED, INVALID_ARGUMENT, APPROVAL_CONFLICT; nothing was written."""
        arguments = request.arguments
        if hold is not None and await self.preview(request) != dict(hold.shown):
            raise Refusal("APPROVAL_CONFLICT", "The process is not what the hold showed; nothing was written.")
        return await self._processes.write_stdin(
            arguments["process_id"], arguments["data"], encoding=arguments["encoding"], eof=arguments["eof"]
        )

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        raise LookupError("a write has no operation_key, so no operation that could be replayed")
