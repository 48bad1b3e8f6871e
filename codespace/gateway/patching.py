"""Drives a patch through its machine: plan, snapshot and stage, install, verify, restore if need be.

Works in the daemon's own nursery, so that a request's end is not a patch's end: before the first
rename the patch is abandoned with its request, after it the transaction finishes or restores.
The verbs are the runner's; this module decides which comes next and records each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import structlog
import trio

from codespace import ids, limits
from codespace.contract import ABSENT, PatchPlan, PatchReport, Runner, Workspace
from codespace.drive import Motion, Nothing
from codespace.errors import Refusal
from codespace.gateway import lasting, policy
from codespace.gateway.holds import Hold
from codespace.gateway.ledger import KeyTaken, Ledger, Operation
from codespace.gateway.occupancy import Lease, Occupancy, Occupant
from codespace.gateway.request import Request, require_same
from codespace.gateway.ticket import Ticket
from codespace.gateway.view import known, plan_view
from statemachines.patch import Patch

log = structlog.get_logger("codespace.patching")


@dataclass(slots=True)
class _Job:
    """One patch under way."""

    operation_id: str
    request: Request
    hold: Hold | None
    lease: Lease
    ticket: Ticket = field(default_factory=Ticket)

    @property
    def workspace(self) -> Workspace:
        return self.request.workspace


class Patching:
    """The driver of apply_patch."""

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        occupancy: Occupancy,
        nursery: trio.Nursery,
        wall_clock: Callable[[], float],
        instance_id: str,
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._occupancy = occupancy
        self._nursery = nursery
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._inflight: dict[str, _Job] = {}

    # --- what Admission asks for ---

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        policy.require_write(workspace)
        return dict(arguments)

    async def preview(self, request: Request) -> dict[str, Any]:
        plan = await self._plan_only(
            request.workspace, request.arguments["patch"], request.arguments["expected_versions"]
        )
        return plan_view(plan)

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Apply the patch and return its result.

        Raises: Refusal WORKSPACE_BUSY before anything is recorded; else the patch's own end, with
            operation_id and `details.status`.
        Cancel: before the first rename the patch is abandoned (`rejected`); after it, it goes on.
        """
        operation_id = ids.mint(ids.OPERATION)
        occupant = Occupant("patch", operation_id, self._wall_clock())
        lease = await self._occupancy.enter(request.workspace, occupant)
        job = _Job(operation_id, request, hold, lease)
        self._inflight[operation_id] = job
        self._nursery.start_soon(self._drive, job, name=f"patch {operation_id}")
        try:
            return await job.ticket.wait()
        except trio.Cancelled:
            job.ticket.abandon()
            raise

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Return what the operation did, without doing it again; wait for one in flight.

        Raises: the recorded refusal; OUTCOME_UNKNOWN where the end is not recorded yet.
        """
        job = self._inflight.get(operation.id)
        if job is not None:
            return await job.ticket.wait() | {"replayed": True}
        if operation.state == "applied":
            return {
                "status": "applied",
                "operation_id": operation.id,
                "replayed": True,
                "files": list(operation.files),
                "changes": [dict(change) for change in operation.changes],
                "still_current": await self.still_current(request.workspace, operation),
            }
        if operation.outcome is None:
            raise _unsettled(operation)
        refusal = Refusal.from_body(operation.outcome)
        refusal.details = (refusal.details or {}) | {"replayed": True}
        raise refusal

    async def wait_idle(self) -> None:
        """Return once no patch is under way. Cancel: the patches go on."""
        while self._inflight:
            await next(iter(self._inflight.values())).ticket.wait_settled()

    # --- without effect ---

    async def check(self, workspace: Workspace, patch: str, expected: Mapping[str, str]) -> dict[str, Any]:
        """Return what the patch would do now; nothing is recorded or written."""
        motion = Motion(Patch, "preview", "minted", Nothing())
        await motion.move("admitted")
        plan = await self._plan_only(workspace, patch, expected)
        await motion.move("previewed")
        return {"status": motion.state, "replayed": False, **plan_view(plan)}

    async def still_current(self, workspace: Workspace, operation: Operation) -> bool:
        """Return whether every file is, freshly hashed, as the operation left it."""
        expected = _left_behind(operation.changes)
        return dict(await self._runner.versions(workspace, list(expected))) == expected

    async def _plan_only(self, workspace: Workspace, patch: str, expected: Mapping[str, str]) -> PatchPlan:
        token = ids.mint("plan-")
        try:
            return await self._runner.plan(workspace, token, patch, expected)
        except Refusal as refusal:
            refusal.details = (refusal.details or {}) | {"status": "rejected", "changes": [], "replayed": False}
            raise
        finally:
            await self._finish(workspace, token)

    # --- the transaction ---

    async def _drive(self, job: _Job) -> None:
        """Run one patch to its end. Never raises: a fault ends this patch, not the daemon."""
        try:
            with job.lease:
                job.ticket.succeed(await self._transact(job))
        except KeyTaken as taken:
            await self._answer_from(job, taken.existing)
        except Refusal as refusal:
            job.ticket.fail(refusal)
        except Exception:
            log.exception("patch driver failed", operation_id=job.operation_id)
            job.ticket.fail(
                Refusal("INTERNAL", "The patch ended by a fault of CodeSpace.", operation_id=job.operation_id)
            )
        finally:
            self._inflight.pop(job.operation_id, None)
            # Only where the daemon's stop cut the driver off is there no outcome yet.
            job.ticket.fail(_cut_off(job.operation_id))

    async def _answer_from(self, job: _Job, existing: Operation) -> None:
        """Another request minted the same key first: answer as its replay."""
        try:
            require_same(job.request, existing.fingerprint, operation_id=existing.id)
            job.ticket.succeed(await self.replay(job.request, existing))
        except Refusal as refusal:
            job.ticket.fail(refusal)

    async def _transact(self, job: _Job) -> dict[str, Any]:
        motion = Motion(Patch, job.operation_id, "minted", self._ledger.recorder("operation"))
        steps = motion.steps("admitted")
        await self._ledger.mint(self._operation(job), also_move=steps)
        motion.adopt(steps)
        try:
            plan = await self._prepare(job, motion)
            await motion.move("staged")
        except Refusal as refusal:
            await self._finish(job.workspace, job.operation_id)
            raise await self._end(motion, "refused", refusal, ()) from None
        rescued = await self._install(job, motion, plan)
        result = {"status": motion.state, "operation_id": job.operation_id, "replayed": False, **plan_view(plan)}
        return result | {"rescued": list(rescued)} if rescued else result

    async def _prepare(self, job: _Job, motion: Motion) -> PatchPlan:
        """Plan and stage: everything before the first rename."""
        arguments = job.request.arguments
        plan: PatchPlan | None = None
        with job.ticket.abandonable as scope:
            plan = await self._runner.plan(
                job.workspace, job.operation_id, arguments["patch"], arguments["expected_versions"]
            )
            _require_shown(job.hold, plan)
            changes = [known(change) for change in plan.changes]
            await motion.move("planned", changes={"files": list(plan.files), "changes": changes})
            await self._runner.stage(job.workspace, job.operation_id)
            await trio.lowlevel.checkpoint_if_cancelled()
        if scope.cancelled_caught or plan is None:
            raise Refusal("TIMEOUT", "The caller went away before the first rename; nothing was written.")
        return plan

    async def _install(self, job: _Job, motion: Motion, plan: PatchPlan) -> tuple[str, ...]:
        """Rename, read back, and claim `applied`, or put everything back and raise.

        Returns: journal files with bytes that a third party put in the way and that were kept.
        """
        changes = [known(change) for change in plan.changes]
        try:
            report = await self._runner.install(job.workspace, job.operation_id)
            if report.clean:
                await motion.move("installed")
                report = await self._runner.verify(job.workspace, job.operation_id)
        except Refusal as refusal:
            await self._settle(job, motion, refusal, changes)
        else:
            if not report.clean:
                await self._restore(job, motion, report, changes)
            await motion.move("verified")
        return await self._finish(job.workspace, job.operation_id)

    async def _restore(self, job: _Job, motion: Motion, cause: PatchReport, changes: list[dict[str, Any]]) -> NoReturn:
        await motion.move("failed", details={"cause": (cause.refusal or {}).get("code", "VERIFY")})
        try:
            report = await self._runner.restore(job.workspace, job.operation_id)
        except Refusal as lost:
            await self._settle(job, motion, lost, changes)
            raise Refusal("INTERNAL", "A patch that failed was found applied.", operation_id=motion.subject) from None
        refusal = not_applied(report, cause.refusal, (*cause.rescued, *report.rescued))
        ended = await self._end(motion, "restored" if report.clean else "third_party_kept", refusal, changes)
        await self._finish(job.workspace, job.operation_id)
        raise ended

    async def _settle(self, job: _Job, motion: Motion, lost: Refusal, changes: list[dict[str, Any]]) -> None:
        """The runner lost sight in the middle: decide from journal and hashes.

        Returns where they say `applied`. Raises: Refusal with what they say instead, or
            OUTCOME_UNKNOWN where they cannot be seen now.
        """
        await motion.move("sight_lost", details={"cause": lost.code})
        try:
            settled = await self._runner.settle(job.workspace, job.operation_id)
        except Refusal as blind:
            log.warning("a patch could not be settled yet", operation_id=motion.subject, code=blind.code)
            settled = None
        if settled is None:
            unknown = _cut_off(motion.subject)
            unknown.details = {"status": motion.state, "changes": changes, "replayed": False}
            raise unknown
        status, report = settled
        if status == "applied":
            await motion.move(FOUND[status])
            return
        refusal = not_applied(report, lost.body(), report.rescued)
        raise await self._end(motion, FOUND[status], refusal, changes)

    async def _end(self, motion: Motion, event: str, refusal: Refusal, changes: Any) -> Refusal:
        """Record a failed end with its refusal, and return the refusal for the caller."""
        steps = motion.steps(event)
        refusal.operation_id = motion.subject
        refusal.details = (refusal.details or {}) | {
            "status": steps[-1].target,
            "changes": list(changes),
            "replayed": False,
        }
        await motion.move(event, changes={"outcome": lasting.refusal_body(refusal)}, details={"code": refusal.code})
        return refusal

    async def _finish(self, workspace: Workspace, operation_id: str) -> tuple[str, ...]:
        """Let the runner throw away what was set aside; return what it rescued from there.

        A failure changes nothing that was claimed: what is left is swept by recovery.
        """
        # Protects the clean-up from the caller's cancellation; bounded by the verb's own deadline too.
        with trio.move_on_after(limits.TIDY_SECONDS, shield=True):
            try:
                return (await self._runner.finish(workspace, operation_id)).rescued
            except Refusal as refusal:
                log.warning("could not tidy up after a patch", operation_id=operation_id, code=refusal.code)
        return ()

    def _operation(self, job: _Job) -> Operation:
        return Operation(
            id=job.operation_id,
            kind="patch",
            tool=job.request.tool,
            workspace_id=job.workspace.id,
            root=job.workspace.root,
            operation_key=job.request.operation_key,
            fingerprint=job.request.fingerprint,
            state="minted",
            instance_id=self._instance_id,
            created_at=self._wall_clock(),
            work_id=job.request.work_id,
            approval_id=job.hold.id if job.hold else None,
        )


FOUND: Final[Mapping[str, str]] = {
    "applied": "found_applied",
    "failed_rolled_back": "found_rolled_back",
    "failed_partial": "found_partial",
    "rejected": "found_rolled_back",  # the crash came before the first rename; nothing was written
}
"""The event by which an unknown patch becomes what journal and hashes say."""


def _left_behind(changes: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    expected = {str(change["from_path"]): ABSENT for change in changes if change.get("from_path")}
    return expected | {str(change["path"]): str(change["after_version"]) for change in changes}


def _require_shown(hold: Hold | None, plan: PatchPlan) -> None:
    """Refuse unless the plan is exactly what the hold showed."""
    if hold is None:
        return
    if hold.shown["changes"] != [known(change) for change in plan.changes]:
        raise Refusal(
            "APPROVAL_CONFLICT",
            "The files are no longer as they were when the patch was held; nothing was written.",
            approval_id=hold.id,
        )


def not_applied(report: PatchReport, cause: Mapping[str, Any] | None, rescued: tuple[str, ...]) -> Refusal:
    """Return the refusal for a patch that was put back, wholly or in part."""
    why = str(cause["message"]) if cause else "What was read back is not what was written."
    details: dict[str, Any] = {"cause": dict(cause)} if cause else {}
    if rescued:
        details["rescued"] = list(rescued)
    if report.clean:
        return Refusal("PATCH_ROLLED_BACK", f"{why} Every file is as it was before.", details=details)
    details["kept"] = list(report.kept)
    return Refusal("PATCH_PARTIAL", f"{why} The named files were changed by others and left alone.", details=details)


def _cut_off(operation_id: str) -> Refusal:
    return Refusal(
        "OUTCOME_UNKNOWN",
        "The patch was cut off before its end could be seen. Its journal is kept; each file is whole.",
        operation_id=operation_id,
    )


def _unsettled(operation: Operation) -> Refusal:
    refusal = _cut_off(operation.id)
    refusal.message = f"The patch is recorded as {operation.state!r} by a daemon that has not said its end yet."
    refusal.details = {
        "status": "unknown",
        "changes": [dict(change) for change in operation.changes],
        "replayed": True,
    }
    return refusal
