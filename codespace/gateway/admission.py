"""The order in which a mutation is let in: policy, key, hold, and only then its driver.

A refusal here leaves no row and burns no key. The drivers (`patching`, `execution`) do the rest:
occupancy, minting, acting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from codespace.contract import Caller, Workspace
from codespace.errors import Refusal
from codespace.gateway import lasting
from codespace.gateway.grants import Grants
from codespace.gateway.hold import Hold
from codespace.gateway.holds import Holds, result_of
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.registry import Registry
from codespace.gateway.request import Fingerprints, Request, require_same
from codespace.gateway.view import denied, held, visible_body

_WITHOUT_END: Final = frozenset({"STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"})
# What a run told whose patch had no end in the ledger yet; it gets one.


class Driver(Protocol):
    """What makes one kind of mutation happen."""

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the workspace's defaults filled in, or refuse by policy."""

    async def preview(self, request: Request) -> dict[str, Any]:
        """Say what the request would do now, for a person and for comparison at resume."""

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Enter the root, mint, act. With a hold, only exactly what it showed."""

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Answer again for a recorded operation, without any effect."""


class Admission:
    """Lets requests in, each to the driver of its tool."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        holds: Holds,
        grants: Grants,
        fingerprints: Fingerprints,
        drivers: Mapping[str, Driver],
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._holds = holds
        self._grants = grants
        self._fingerprints = fingerprints
        self._drivers = drivers

    async def admit(
        self, tool: str, workspace: Workspace, arguments: Mapping[str, Any], caller: Caller
    ) -> dict[str, Any]:
        """Answer a mutation: replay it, hold it, or perform it.

        Raises: Refusal; APPROVAL_REQUIRED where it is held.
        Cancel: what was started is the driver's; a patch before its first rename is abandoned.
        """
        request = await self._request(tool, workspace, arguments, caller)
        earlier = await self._earlier(request)
        if earlier is not None:
            return earlier
        if workspace.approvals == "off":
            return await self._drivers[tool].perform(request, None)
        hold = await self._find_or_place(request)
        if hold.state == "pending" and hold.approvals == "operator":
            hold = await self._grant_in_advance(hold, workspace)
        return await self.resume(hold, caller, request.arguments)

    async def hold(self, tool: str, workspace: Workspace, arguments: Mapping[str, Any], caller: Caller) -> Hold:
        """Hold a request without sending it, in any approval mode.

        Raises: Refusal INVALID_ARGUMENT for a tool that changes nothing.
        """
        if tool not in self._drivers:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"Only {' and '.join(sorted(self._drivers))} can be held.",
                details={"argument": "tool"},
            )
        request = await self._request(tool, workspace, arguments, caller)
        await self._refuse_taken_key(request)
        return await self._find_or_place(request)

    async def resume(self, hold: Hold, caller: Caller, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a granted hold of a directory of ours, once; wait for the call that runs it, or replay its result.

        Args:
            arguments: As its request was sent again; the work and the wait that it names now are what counts. None for
                who asks by the hold, and was shown before what it is.
        """
        if hold.state == "pending":
            raise held(hold, self._registry.find(hold.workspace_id), again=arguments is None)
        if hold.state == "denied":
            raise denied(hold)
        if hold.state == "consumed":
            return await self._replay(hold, caller)
        assert hold.body is not None  # a hold keeps its body until it is denied or consumed
        workspace = self._registry.find(hold.workspace_id)
        await self._refuse_weaker_grant(hold, workspace)
        driver = self._drivers[hold.tool]
        await driver.authorize(workspace, hold.body)  # the profile may have changed since the grant
        request = Request(hold.tool, workspace, arguments or hold.body, hold.fingerprint, caller)
        return await self._holds.run_once(hold, lambda: driver.perform(request, hold))

    async def result(self, hold: Hold, caller: Caller) -> Mapping[str, Any] | None:
        """Return the result of a hold that ran, as its operation stands now; a refusal as it was stored."""
        hold = await self._settled(hold)
        if hold.result is None:
            return None
        if "refusal" in hold.result:
            return {"refusal": visible_body(hold.result["refusal"], self._registry.find(hold.workspace_id))}
        try:
            return {"ok": lasting.result(await self._replay(hold, caller))}
        except Refusal:  # its root does not answer, or its process is known no more
            return hold.result

    async def refuse_another_directory(self, hold: Hold, workspace: Workspace) -> None:
        """Refuse a hold of another root than the workspace's id names here, and one of which nobody knows it any more.

        Raises: Refusal APPROVAL_CONFLICT.
        """
        if hold.root is None and hold.body is not None:  # of before it was kept: the request itself still says it
            is_here = await self._fingerprints.take(hold.tool, workspace, hold.body) == hold.fingerprint
        else:
            is_here = hold.root == workspace.root
        if is_here:
            return
        lost = hold.root is None and hold.body is None
        problem = "is of before its directory was kept, and it has ended: it may be" if lost else "is"
        raise Refusal(
            "APPROVAL_CONFLICT",
            f"The hold {problem} for another directory than workspace {workspace.id} is here; nothing was done.",
            approval_id=hold.id,
        )

    async def _replay(self, hold: Hold, caller: Caller) -> dict[str, Any]:
        """Return what became of a consumed hold's operation, without waiting for its end; else what was stored.

        Raises: the stored refusal.
        """
        hold = await self._settled(hold)
        workspace = self._registry.find(hold.workspace_id)
        try:
            stored = self._holds.stored(hold)
        except Refusal as refusal:
            raise Refusal.from_body(visible_body(refusal.body(), workspace)) from None
        operation = None if hold.operation_id is None else await self._ledger.get(hold.operation_id)
        if operation is None:
            return stored
        request = Request(hold.tool, workspace, {"wait_seconds": 0.0}, hold.fingerprint, caller)
        return await self._drivers[hold.tool].replay(request, operation)

    async def _settled(self, hold: Hold) -> Hold:
        """Return a hold with the end that its patch has got since, where its run could not tell or record one."""
        refused = (hold.result or {}).get("refusal", {}).get("code") in _WITHOUT_END
        operation = await self._ledger.get(hold.operation_id) if refused and hold.operation_id is not None else None
        if operation is None or operation.kind != "patch" or operation.finished_at is None:
            return hold
        return replace(hold, result=result_of(operation))

    async def _grant_in_advance(self, hold: Hold, workspace: Workspace) -> Hold:
        """Grant a hold in the name of what the operator granted before, where that covers it."""
        grant = await self._grants.use_for(hold, workspace.root)
        if grant is None:
            return hold
        return await self._holds.resolve(hold.id, "grant", by=f"scoped grant {grant.id}", authority="grant")

    async def _refuse_weaker_grant(self, hold: Hold, workspace: Workspace) -> None:
        """Take a caller's own grant back where the operator has to decide by now: `confirm` became `operator`."""
        if workspace.approvals != "operator" or hold.state != "granted" or hold.decided_by in ("operator", "grant"):
            return
        by = "configuration: only the operator may grant now"
        raise denied(await self._holds.resolve(hold.id, "deny", by=by, authority="operator"))

    async def _request(self, tool: str, workspace: Workspace, arguments: Mapping[str, Any], caller: Caller) -> Request:
        complete = await self._drivers[tool].authorize(workspace, arguments)
        fingerprint = await self._fingerprints.take(tool, workspace, complete)
        return Request(tool, workspace, complete, fingerprint, caller)

    async def _earlier(self, request: Request) -> dict[str, Any] | None:
        """Answer from what the operation_key names already, if it names anything."""
        operation = await self._refuse_taken_key(request)
        if operation is None:
            return None
        return await self._drivers[request.tool].replay(request, operation)

    async def _refuse_taken_key(self, request: Request) -> Operation | None:
        """Return the operation that this very request became before.

        Raises: Refusal OPERATION_KEY_CONFLICT, or the denial of the hold that the key names.
        """
        key = request.operation_key
        if key is None:
            return None
        operation = await self._ledger.by_key(key)
        if operation is not None:
            if not await self._is_of_before(request, operation):
                require_same(request, operation.fingerprint, operation_id=operation.id)
            return operation
        hold = await self._holds.by_key(key)
        if hold is None:
            return None
        require_same(request, hold.fingerprint, approval_id=hold.id)
        if hold.state == "denied" and not hold.expired:
            raise denied(hold)
        return None

    async def _is_of_before(self, request: Request, operation: Operation) -> bool:
        """Return whether it is this request, recorded when fingerprints did not name the root: the row says it."""
        if request.fingerprint == operation.fingerprint or request.workspace.root != operation.root:
            return False
        older = await self._fingerprints.take(request.tool, request.workspace, request.arguments, rooted=False)
        return older == operation.fingerprint

    async def _find_or_place(self, request: Request) -> Hold:
        hold = await self._holds.active(request.fingerprint)
        if hold is not None:
            return hold
        shown = await self._drivers[request.tool].preview(request)
        hold = await self._holds.place(request, shown)
        require_same(request, hold.fingerprint, approval_id=hold.id)
        return hold
