"""Drives a patch through its machine: plan, snapshot and stage, install, verify, restore if need be.

Works in the daemon's own nursery, so that a request's end is not a patch's end: before the first
rename the patch is abandoned with the last request that waits for it, after it the transaction
finishes or restores. The verbs are the runner's; this module decides which comes next, records each
step, and tells what is on disk also where runner or database fail in the middle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog
import trio

from codespace import ids, limits
from codespace.contract import PatchPlan, PatchReport, Runner, Workspace
from codespace.drive import Motion, is_unsure
from codespace.errors import Refusal
from codespace.gateway import lasting, outcomes, policy
from codespace.gateway.changed import since_shown
from codespace.gateway.ending import Ending
from codespace.gateway.hold import Hold
from codespace.gateway.ledger import KeyTaken, Ledger, Operation, Unsettled
from codespace.gateway.occupancy import Lease, Occupancy, Occupant
from codespace.gateway.plans import Plans
from codespace.gateway.recovery import Recovery
from codespace.gateway.request import Request, require_same
from codespace.gateway.ticket import Ticket
from codespace.gateway.view import hides_any, known, plan_view, visible, visible_body
from statemachines.patch import Patch

log = structlog.get_logger("codespace.patching")

T = TypeVar("T")
_NOT_AS_SHOWN: Final = "The files are no longer as they were when the patch was held; nothing was written."


@dataclass(slots=True)
class _Job:
    """One patch under way."""

    operation_id: str
    request: Request
    hold: Hold | None
    ticket: Ticket = field(default_factory=Ticket)
    unrecorded: Ending | None = None
    """Its end, where the database did not take it at once."""
    recorded_as: str | None = None
    """The operation that the ledger has for its request: its own, or the one that took the key first."""
    untidy: bool = False
    """Whether something that was set aside may still be beside the files."""
    rescued: tuple[str, ...] = ()
    """What tidying found in place of planned bytes, and kept in the journal."""

    @property
    def workspace(self) -> Workspace:
        return self.request.workspace


class Patching:
    """The driver of apply_patch and operation_undo.

    Args:
        predecessors: Settles what dead daemons left in a root before a patch begins in it.
        plans: How each tool's patch is planned; everything behind that is the same.
        left_over: Told when a patch ended without its end in the ledger, for recovery to see to it.
    """

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        occupancy: Occupancy,
        nursery: trio.Nursery,
        wall_clock: Callable[[], float],
        instance_id: str,
        left_over: Callable[[], None],
        predecessors: Recovery,
        plans: Plans,
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._occupancy = occupancy
        self._nursery = nursery
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._left_over = left_over
        self._predecessors = predecessors
        self.plans = plans
        self._jobs: dict[str, _Job] = {}

    @property
    def under_way(self) -> frozenset[str]:
        """The operations that a driver still works for."""
        return frozenset(self._jobs)

    # --- what Admission asks for ---

    async def authorize(self, workspace: Workspace, arguments: Mapping[str, Any]) -> dict[str, Any]:
        policy.require_write(workspace)
        return dict(arguments)

    async def preview(self, request: Request) -> dict[str, Any]:
        return await self.plans.preview(request)

    async def perform(self, request: Request, hold: Hold | None) -> dict[str, Any]:
        """Apply the patch and return its result; a request of the same key under way is waited for.

        Raises: Refusal WORKSPACE_BUSY before anything is recorded; else the patch's own end, with
            operation_id and `details.status`.
        Cancel: before the first rename the patch is abandoned (`rejected`); after it, it goes on.
        """
        while (job := self._of_key(request.operation_key)) is not None and job.ticket.is_given_up:
            await job.ticket.wait_settled()  # nothing was written, and we are the first; or its end is repeated
        if job is not None:
            require_same(request, job.request.fingerprint, operation_id=job.operation_id)
            return await job.ticket.wait() | {"replayed": True}
        job = _Job(ids.mint(ids.OPERATION), request, hold)
        self._jobs[job.operation_id] = job
        self._nursery.start_soon(self._drive, job, name=f"patch {job.operation_id}")
        return await job.ticket.wait()

    async def replay(self, request: Request, operation: Operation) -> dict[str, Any]:
        """Return what the operation did, without doing it again; wait for one in flight.

        Raises: the recorded refusal; OUTCOME_UNKNOWN where the end is not recorded yet.
        """
        job = self._jobs.get(operation.id)
        if job is not None:
            return await job.ticket.wait() | {"replayed": True}
        if operation.state == "applied":
            current = await self.still_current(request.workspace, operation)
            recorded = {
                "status": "applied",
                "operation_id": operation.id,
                "replayed": True,
                "files": list(operation.files),
                "changes": [dict(change) for change in operation.changes],
            }
            return visible(recorded, request.workspace) | ({} if current is None else {"still_current": current})
        if operation.outcome is None:
            raise Refusal.from_body(visible_body(outcomes.unsettled(operation).body(), request.workspace))
        raise lasting.repeated(visible_body(operation.outcome, request.workspace))

    async def wait_idle(self) -> None:
        """Return once every patch under way has its outcome. Cancel: the patches go on."""
        for job in list(self._jobs.values()):
            await job.ticket.wait_settled()

    def _of_key(self, operation_key: str | None) -> _Job | None:
        if operation_key is None:
            return None
        return next((job for job in self._jobs.values() if job.request.operation_key == operation_key), None)

    async def still_current(self, workspace: Workspace, operation: Operation) -> bool | None:
        """Return whether every file is, freshly hashed, as the operation left it; None where that cannot be seen."""
        if workspace.root != operation.root or hides_any(workspace, operation.changes):
            return None  # the operator gave the id to another directory, or hides a file by now
        expected = outcomes.left_behind(operation.changes)
        try:
            return dict(await self._runner.versions(workspace, list(expected))) == expected
        except Refusal:
            return None

    # --- the life of a patch ---

    async def _drive(self, job: _Job) -> None:
        """Run one patch to its end. Never raises: a fault ends this patch, not the daemon."""
        try:
            await self._answer(job)
            if job.unrecorded is not None:
                await job.unrecorded.persist()
                await self._tidy(job)
            for _ in range(limits.TIDY_TRIES):
                if job.untidy:
                    await trio.sleep(limits.RECORD_RETRY_SECONDS)
                    await self._tidy(job)
        except Exception:
            log.exception("patch driver failed", operation_id=job.operation_id)
            self._left_over()
            fault = "The patch ended by a fault of CodeSpace; operation_status will say how, once that was settled."
            job.ticket.fail(Refusal("INTERNAL", fault, operation_id=job.operation_id))
        finally:
            del self._jobs[job.operation_id]
            # Only where the daemon's stop cut the driver off is there no outcome yet.
            job.ticket.fail(outcomes.unseen(job.recorded_as) if job.recorded_as else _not_begun())

    async def _answer(self, job: _Job) -> None:
        try:
            with await self._enter(job):
                job.ticket.succeed(await self._transact(job))
        except KeyTaken as taken:
            await self._answer_from(job, taken.existing)
        except Refusal as refusal:
            job.ticket.fail(refusal)

    async def _answer_from(self, job: _Job, existing: Operation) -> None:
        """Another daemon minted the same key first: answer as its replay."""
        job.recorded_as = existing.id
        try:
            require_same(job.request, existing.fingerprint, operation_id=existing.id)
            job.ticket.succeed(await self.replay(job.request, existing))
        except Refusal as refusal:
            job.ticket.fail(refusal)

    async def _enter(self, job: _Job) -> Lease:
        occupant = Occupant("patch", job.operation_id, self._wall_clock())
        with job.ticket.abandonable():
            return await self._occupancy.enter(job.workspace, occupant)
        raise Refusal("TIMEOUT", "The caller went away before the workspace was free; nothing was done.")

    async def _transact(self, job: _Job) -> dict[str, Any]:
        motion = Motion(Patch, job.operation_id, "minted", self._ledger.recorder("operation"))
        plan = await self._admit(job, motion)
        if isinstance(plan, PatchPlan):
            plan = await self._stage(job, motion, plan)
        if isinstance(plan, Refusal):
            await self._tidy(job)
            rejected = await self._end(job, motion, outcomes.REJECTED, plan, "rejected", ())
            raise lasting.taking(job.request.operation_key, rejected)
        failed = await self._install(job, motion, [known(change) for change in plan.changes])
        if failed is not None:
            if motion.ended:  # recorded; until then the journal proves what is on disk
                await self._tidy(job)
                _tell_rescued(job, failed)
                failed = lasting.taking(job.request.operation_key, failed)
            raise failed
        result = {"status": motion.state, "operation_id": job.operation_id, "replayed": False, **plan_view(plan)}
        return result | {"rescued": list(job.rescued)} if job.rescued else result

    async def _admit(self, job: _Job, motion: Motion) -> PatchPlan | Refusal:
        """Plan, and record the operation together with its plan, or with what stood against it.

        A plan writes nothing, so one transaction does for all that comes before the first write. What was left in the
        root without an end is settled first, and then the tree is another one.
        """
        unsettled: Unsettled | None = None
        try:
            plan = await self._plan(job)
            await self._mint(job, motion, plan, self._predecessors.tolerated())
        except Unsettled as left:
            unsettled = left
        if unsettled is not None:
            if (busy := await self._predecessors.settle_before(unsettled.operations)) is not None:
                raise busy
            plan = await self._plan(job)
            await self._mint(job, motion, plan, None)
        job.recorded_as = job.operation_id
        return plan

    async def _plan(self, job: _Job) -> PatchPlan | Refusal:
        request = job.request
        with job.ticket.abandonable():
            try:
                plan = await _bounded(self.plans.make(request.tool, job.workspace, job.operation_id, request.arguments))
                _require_shown(job.hold, plan)
                return plan
            except Exception as problem:
                return since_shown(job.hold, _told(problem, "Nothing was written."), _NOT_AS_SHOWN)
        return _given_up()

    async def _mint(
        self, job: _Job, motion: Motion, plan: PatchPlan | Refusal, tolerated: Collection[str] | None
    ) -> None:
        if isinstance(plan, Refusal):
            steps = motion.steps("admitted")
        else:
            changes = {"files": list(plan.files), "changes": [known(change) for change in plan.changes]}
            steps = motion.steps("admitted", "planned", changes=changes)
        try:
            await self._ledger.mint(self._operation(job), steps, tolerated=tolerated)
        except BaseException as problem:
            if is_unsure(problem):  # the row may be there, and nobody else would give it its end
                self._left_over()
            # Protects the runner's memory from a plan that nobody will ask for; those that are held are bounded anyhow.
            with trio.move_on_after(limits.TIDY_SECONDS, shield=True):
                await self.plans.forget(job.workspace, job.operation_id)
            raise
        motion.adopt(steps)

    async def _stage(self, job: _Job, motion: Motion, plan: PatchPlan) -> PatchPlan | Refusal:
        """Do everything before the first rename, and record that it is done; return what stood against it."""
        try:
            with job.ticket.abandonable() as scope:
                await _bounded(self._runner.stage(job.workspace, job.operation_id))
                await trio.lowlevel.checkpoint_if_cancelled()
            if scope.cancelled_caught:
                return _given_up()
            await motion.move("staged")
        except Exception as problem:
            return _told(problem, "Nothing was written.")
        return plan

    async def _install(self, job: _Job, motion: Motion, changes: list[dict[str, Any]]) -> Refusal | None:
        """Rename, read back, and record `applied`; else put everything back and return how it ended."""
        try:
            report = await _bounded(self._runner.install(job.workspace, job.operation_id))
            if not report.clean:
                return await self._restore(job, motion, report, changes)
            report = await _bounded(self._runner.verify(job.workspace, job.operation_id))
            if report.clean:
                await self._record_and_tidy(job, motion)
                return None
            await motion.move("installed")
            return await self._restore(job, motion, report, changes)
        except Exception as lost:
            return await self._settle(job, motion, _told(lost, "Its files are looked at again."), changes)

    async def _record_and_tidy(self, job: _Job, motion: Motion) -> None:
        """Record `applied` while what was set aside is thrown away: from the start of that, the journal says it too.

        One transaction for both steps: while the disk is read back, `applying` is still the whole truth.

        Raises: what recording raises.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tidy, job)
            try:
                await motion.move("installed", "verified")
            except Exception as problem:
                failure = problem
        if failure is not None:
            raise failure

    async def _restore(self, job: _Job, motion: Motion, cause: PatchReport, changes: list[dict[str, Any]]) -> Refusal:
        await motion.move("failed", details={"cause": (cause.refusal or {}).get("code", "VERIFY")})
        report = await _bounded(self._runner.restore(job.workspace, job.operation_id))
        refusal = outcomes.not_applied(report, cause.refusal, (*cause.rescued, *report.rescued))
        status = "failed_rolled_back" if report.clean else "failed_partial"
        return await self._end(job, motion, outcomes.taken_back(clean=report.clean), refusal, status, changes)

    async def _settle(self, job: _Job, motion: Motion, lost: Refusal, changes: list[dict[str, Any]]) -> Refusal | None:
        """Runner or database failed in the middle: decide from journal and hashes, and say that.

        Returns: None where they say `applied` and that is recorded; OUTCOME_UNKNOWN where they cannot
            be seen now, and recovery will see to it.
        """
        try:
            settled = await _bounded(self._runner.settle(job.workspace, job.operation_id))
        except Exception as blind:
            log.warning("a patch could not be settled yet", operation_id=motion.subject, exc_info=blind)
            settled = None
        if settled is None:
            return await self._lose_sight(motion, lost, changes)
        status, report = settled
        ways = outcomes.found(status)
        if status != "applied":
            refusal = outcomes.not_applied(report, lost.body(), report.rescued)
            return await self._end(job, motion, ways, refusal, outcomes.FINAL[status], changes)
        job.unrecorded = Ending(motion, ways, details={"cause": lost.code})
        if await job.unrecorded.attempt():
            job.unrecorded = None
            return None
        # From here on the journal says `applied`, whatever a later patch does to the files.
        await self._tidy(job)
        return _about(motion, outcomes.applied_unrecorded(lost.body()), status, changes)

    async def _lose_sight(self, motion: Motion, lost: Refusal, changes: list[dict[str, Any]]) -> Refusal:
        with suppress(Refusal):  # where the database is away too, the row says `applying` and means the same
            if motion.can("sight_lost"):
                await motion.move("sight_lost", details={"cause": lost.code})
        self._left_over()
        return _about(motion, outcomes.unseen(motion.subject), "unknown", changes)

    async def _end(
        self,
        job: _Job,
        motion: Motion,
        ways: Mapping[str, tuple[str, ...]],
        refusal: Refusal,
        status: str,
        changes: Any,
    ) -> Refusal:
        """Record a failed end with its refusal, now or later, and return the refusal for the caller."""
        _about(motion, refusal, status, changes)
        _tell_rescued(job, refusal)
        ending = Ending(
            motion, ways, changes={"outcome": lasting.refusal_body(refusal)}, details={"code": refusal.code}
        )
        if not await ending.attempt():
            job.unrecorded = ending
        return refusal

    async def _tidy(self, job: _Job) -> None:
        """Throw away what was set aside, and record what was rescued; a failure changes nothing that was claimed."""
        try:
            # Protects the clean-up from the caller's cancellation; bounded by the verb's own deadline too.
            with trio.fail_after(limits.TIDY_SECONDS, shield=True):
                report = await self._runner.finish(job.workspace, job.operation_id)
                job.rescued = report.rescued
                await self._ledger.note_rescued(job.operation_id, job.rescued)
                job.untidy = not report.clean
                return
        except Refusal as refusal:
            told: dict[str, Any] = {"code": refusal.code, "reason": refusal.message}
        except Exception as problem:
            told = {"exc_info": problem}
        log.warning("could not tidy up after a patch yet", operation_id=job.operation_id, **told)
        job.untidy = True

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


async def _bounded(verb: Awaitable[T]) -> T:
    """Wait for a verb of the runner, which ends itself; one that does not must not keep the root for ever.

    Raises: whatever the verb raises; trio.TooSlowError.
    """
    with trio.fail_after(limits.VERB_SECONDS):
        return await verb


def _given_up() -> Refusal:
    return Refusal("TIMEOUT", "The caller went away before the first rename; nothing was written.")


def _not_begun() -> Refusal:
    return Refusal("SHUTTING_DOWN", "The daemon stopped before the patch was begun; nothing was done.")


def _told(problem: Exception, left: str) -> Refusal:
    """Return the refusal that tells of a problem; a fault of ours is logged and named as one."""
    if isinstance(problem, Refusal):
        return problem
    log.error("a step of a patch failed", exc_info=problem)
    return Refusal("INTERNAL", f"A step of the patch ended by a fault of CodeSpace. {left}")


def _about(motion: Motion, refusal: Refusal, status: str, changes: Any) -> Refusal:
    """Say in a refusal which operation it ends, and how."""
    refusal.operation_id = motion.subject
    refusal.details = (refusal.details or {}) | {"status": status, "changes": list(changes), "replayed": False}
    return refusal


def _tell_rescued(job: _Job, refusal: Refusal) -> None:
    if job.rescued:
        refusal.details = (refusal.details or {}) | {"rescued": list(job.rescued)}


def _require_shown(hold: Hold | None, plan: PatchPlan) -> None:
    """Refuse unless the plan is exactly what the hold showed."""
    if hold is None:
        return
    if hold.shown["changes"] != [known(change) for change in plan.changes]:
        raise Refusal("APPROVAL_CONFLICT", _NOT_AS_SHOWN, approval_id=hold.id)
