"""Holds: requests that wait for a grant, bound to what was shown, run at most once.

Keeps them in the database and moves them by the law of `statemachines.approval`. The body (the
request's arguments) exists only while it may still run; afterwards its digest is left. It decides
neither who may grant nor what a request does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
import trio
from sqlite_utils import Database

from codespace import ids, limits
from codespace.drive import Motion, Stale, is_unsure
from codespace.errors import Refusal
from codespace.gateway import hold as hold_rows
from codespace.gateway import lasting
from codespace.gateway.audit import Audit
from codespace.gateway.ending import Ending
from codespace.gateway.hold import EXPIRED, Authority, Hold
from codespace.gateway.ledger import Ledger, Operation
from codespace.gateway.polls import Polls
from codespace.gateway.request import Request
from codespace.gateway.scrubber import Scrubber
from codespace.gateway.store import Store
from codespace.gateway.ticket import Ticket
from codespace.gateway.view import denied
from statemachines.approval import Approval

log = structlog.get_logger("codespace.holds")

_HELD: Final = "The workspace's approvals hold the request; it is bound to what was shown."
_RECORDED_FIRST: Final = frozenset({"apply_patch", "operation_undo"})
# Without a row of theirs they have done nothing: it is written, and flushed, before anything else is.
_GIVEN_BACK: Final = frozenset({"WORKSPACE_BUSY", "LIMIT_REACHED", "SHUTTING_DOWN", "STORE_UNAVAILABLE", "WORK_CLOSED"})
# Refusals that say "nothing was done, try later" where they name no operation: the grant stays good.
_IN_ANOTHER_WORK: Final = (
    "The grant stays good: open a work with work_open, and send the same request with its work_id."
)


class Holds:
    """All holds of one database, as one daemon sees them."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        audit: Audit,
        nursery: trio.Nursery,
        wall_clock: Callable[[], float],
        instance_id: str,
        polls: Polls,
        expiry_seconds: float,
        left_over: Callable[[], None],
        scrubber: Scrubber,
    ) -> None:
        self._store = store
        self._recorder = ledger.recorder("hold")
        self._audit = audit
        self._nursery = nursery
        self._wall_clock = wall_clock
        self._instance_id = instance_id
        self._polls = polls
        self._expiry_seconds = expiry_seconds
        self._left_over = left_over
        self._running: dict[str, Ticket] = {}
        self._changed = trio.Event()
        self._scrubber = scrubber

    # --- finding ---

    async def get(self, approval_id: str) -> Hold:
        """Return the hold as it is now; one whose time is over is denied first.

        Raises: Refusal APPROVAL_NOT_FOUND.
        """
        hold = await self._first("id = ?", approval_id)
        if hold is None:
            raise no_such_hold(approval_id)
        return await self._current(hold)

    async def active(self, fingerprint: str) -> Hold | None:
        """Return the hold that this very request has already, if it may still run."""
        hold = await self._first(f"fingerprint = ? AND {hold_rows.ACTIVE}", fingerprint)
        if hold is None:
            return None
        hold = await self._current(hold)
        return None if hold.state == "denied" else hold

    async def by_key(self, operation_key: str) -> Hold | None:
        """Return the newest hold that used this key."""
        hold = await self._first("operation_key = ?", operation_key)
        return None if hold is None else await self._current(hold)

    async def wait_decided(self, approval_id: str, wait_seconds: float) -> Hold:
        """Return the hold once it is no longer pending, or after `wait_seconds`, whichever is first.

        Cancel: nothing changes.
        """
        deadline = trio.current_time() + wait_seconds
        while True:
            changed = self._changed
            left = deadline - trio.current_time()
            if left <= 0 or self._polls.ended or not await self._waits(approval_id):
                return await self.get(approval_id)
            with self._polls.wait(min(left, limits.DECISION_LOOK_SECONDS)):
                await changed.wait()

    async def ended(self, limit: int) -> list[Hold]:
        """Return the holds that were denied or ran, newest first."""
        return await self._store.read(lambda db: hold_rows.ended(db, limit))

    async def outlines(self, shown_characters: int) -> list[Hold]:
        """Return the holds that may still run, oldest first, to be listed: without bodies.

        Args:
            shown_characters: Of what shows more than this, long texts are left out, and `left_out` is there instead.
        """
        now = self._wall_clock()
        return await self._store.read(
            lambda db: hold_rows.outlines(db, now, shown_characters=shown_characters, limit=limits.LIST_ROWS)
        )

    async def count_pending(self) -> int:
        """Return how many holds wait for a decision."""
        now = self._wall_clock()
        return await self._store.read(lambda db: hold_rows.count_pending(db, now))

    async def sweep(self) -> None:
        """Deny what waited too long, though nobody asks for it any more: a body must not outlive its time.

        Raises: Refusal STORE_UNAVAILABLE.
        """
        now = self._wall_clock()
        for hold in await self._all("state IN ('pending', 'granted') AND expires_at <= ?", now):
            await self._current(hold)

    async def tend(self) -> None:
        """Sweep now and then, until cancelled."""
        while True:
            try:
                await self.sweep()
            except Refusal as refusal:
                log.warning("holds could not be swept yet", code=refusal.code)
            except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
                log.exception("holds could not be swept")
            await trio.sleep(limits.HOLD_SWEEP_SECONDS)

    # --- moving ---

    async def place(self, request: Request, shown: Mapping[str, Any]) -> Hold:
        """Store a request as pending, bound to what is shown, and return its hold.

        The same request that was held a moment before, by another call or another daemon, keeps its hold:
        that one is returned. So is the hold that owns the operation_key by now; the caller compares.

        Raises: Refusal LIMIT_REACHED, also where nobody could look through what is shown.
        Source: limits.HOLD_TEXTS_BYTES, limits.HOLDS_WAITING, limits.HOLDS_WAITING_BYTES.
        """
        now = self._wall_clock()
        row = {
            "id": ids.mint(ids.APPROVAL),
            "tool": request.tool,
            "workspace_id": request.workspace.id,
            "root": request.workspace.root,
            "operation_key": request.operation_key,
            "fingerprint": request.fingerprint,
            "state": "pending",
            "body": json.dumps(dict(request.arguments)),
            "shown": _as_it_is_shown(shown),
            "caller": request.caller.transport,
            "expires_at": now + self._expiry_seconds,
            "created_at": now,
            "instance_id": self._instance_id,
            "approvals": request.workspace.approvals,
        }
        return await self._current(await self._store.write(lambda db: self._insert(db, row)))

    async def resolve(
        self, approval_id: str, decision: str, *, by: str, authority: Authority, fingerprint: str | None = None
    ) -> Hold:
        """Grant or deny; repeating the same decision changes nothing.

        Args:
            by: Who decides, in words for the record.
            fingerprint: Of the hold that was shown to whom decides; another one is refused.
        Raises: Refusal APPROVAL_EXPIRED, APPROVAL_CONFLICT where it was decided otherwise or something else
            was shown, UNAUTHORIZED where only the operator may.
        """
        hold = await self.get(approval_id)
        if authority == "caller" and hold.approvals == "operator":
            raise operator_only(approval_id)
        if fingerprint is not None and fingerprint != hold.fingerprint:
            raise Refusal(
                "APPROVAL_CONFLICT",
                "The decision was made for another request than this hold's; it changes nothing.",
                next_step="Look at the hold again.",
                approval_id=approval_id,
            )
        grant = decision == "grant"
        if hold.expired:
            raise denied(hold)
        if (grant and hold.state == "granted") or (not grant and hold.state == "denied"):
            return hold
        motion = self._motion(hold)
        event = "grant_given" if grant else "grant_refused"
        if not motion.can(event):
            raise Refusal(
                "APPROVAL_CONFLICT",
                f"The hold is {hold.state} already; the decision changes nothing.",
                next_step="Look at the hold again (approval_status, `codespace approvals show`).",
                approval_id=approval_id,
            )
        changes: dict[str, Any] = {"decided_at": self._wall_clock(), "decided_by": authority}
        if not grant:
            changes |= hold_rows.scrubbed(hold) | {"reason": f"denied by the {by}"}
        try:
            await motion.move(event, changes=changes, details={"by": by})
        except Stale:  # somebody else decided in this moment, perhaps the same
            return await self.resolve(approval_id, decision, by=by, authority=authority, fingerprint=fingerprint)
        self._tell_change()
        return hold_rows.moved(hold, motion.state, changes)

    async def run_once(self, hold: Hold, run: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Run a granted hold in the daemon's nursery and return its result; a second call gets the same.

        Raises: the refusal that the run ended in, or that of a hold which was denied meanwhile. One of
            _GIVEN_BACK gives the grant back.
        Cancel: the run goes on; its result is stored.
        """
        if hold.id not in self._running:
            hold = await self.get(hold.id)  # it may have run, or been denied, while the request was authorised
            if hold.state == "consumed":
                return self.stored(hold)
            if hold.state == "denied":
                raise denied(hold)
        ticket = self._running.get(hold.id) or self._begin(hold, run)
        return await ticket.wait()

    def _begin(self, hold: Hold, run: Callable[[], Awaitable[dict[str, Any]]]) -> Ticket:
        if hold.state != "granted":
            raise Refusal(
                "APPROVAL_CONFLICT",
                "Another daemon is running this hold.",
                next_step="Ask approval_status until it is consumed.",
                retryable=True,
                approval_id=hold.id,
            )
        ticket = self._running[hold.id] = Ticket()
        self._nursery.start_soon(self._run, hold, run, ticket, name=f"resume {hold.id}")
        return ticket

    def stored(self, hold: Hold) -> dict[str, Any]:
        """Return the stored result of a consumed hold, or raise the stored refusal."""
        result = dict(hold.result or {})
        if "refusal" in result:
            raise Refusal.from_body({**result["refusal"], "approval_id": hold.id})
        return dict(result.get("ok", {})) | {"replayed": True}

    async def wait_idle(self) -> None:
        """Return once every run under way has its outcome. Cancel: the runs go on."""
        for ticket in list(self._running.values()):
            await ticket.wait_settled()

    async def resuming(self, instance_id: str) -> bool:
        """Return whether a hold is recorded as being run by this instance."""
        return bool(await self._all("state = 'resuming' AND instance_id = ?", instance_id))

    async def settle(self, instance_id: str, ledger: Ledger) -> bool:
        """Settle what an instance was resuming when it ended: a patch from its row, anything else as ambiguous.

        A patch that waits for its own settlement keeps its hold waiting too.

        Returns: whether none is left; what this daemon still runs is none of them.
        """
        left = False
        for hold in await self._all("state = 'resuming' AND instance_id = ?", instance_id):
            operation = await ledger.by_approval(hold.id)
            if hold.id not in self._running:  # asked last: it may have been given back, and resumed, since it was read
                left |= not await self._settle(hold, operation)
        return not left

    async def _settle(self, hold: Hold, operation: Operation | None) -> bool:
        if operation is not None and operation.kind == "patch":
            if operation.finished_at is None:
                return False
            ending = self._consumed(self._motion(hold), hold, "request_ended", result_of(operation))
        elif operation is None and hold.tool in _RECORDED_FIRST:
            nothing = Refusal(
                "TIMEOUT",
                "The daemon ended before the granted patch was begun; nothing was written.",
                next_step="Send it again: it is held anew.",
                approval_id=hold.id,
            )
            ending = self._consumed(self._motion(hold), hold, "request_ended", {"refusal": nothing.body()})
        else:
            is_started = operation is not None and operation.spool is not None  # both are recorded in one step
            when = "ran" if is_started else "was being started, or ran"
            ambiguous = Refusal(
                "APPROVAL_AMBIGUOUS",
                f"The daemon ended while the granted request {when}; it is never started twice.",
                approval_id=hold.id,
                operation_id=operation.id if operation else None,
            )
            ending = self._consumed(self._motion(hold), hold, "daemon_died", {"refusal": ambiguous.body()})
        settled = await ending.attempt()
        self._scrubber.soon()
        return settled

    async def _run(self, hold: Hold, run: Callable[[], Awaitable[dict[str, Any]]], ticket: Ticket) -> None:
        """Run a hold to its end. Never raises: a fault ends this run, not the daemon."""
        try:
            await self._resume(hold, run, ticket)
        except Exception:
            log.exception("resume failed", approval_id=hold.id)
            self._left_over()
            ticket.fail(Refusal("INTERNAL", "The resume ended by a fault of CodeSpace.", approval_id=hold.id))
        finally:
            del self._running[hold.id]
            # Only where the daemon's stop cut the run off is there no outcome yet.
            ticket.fail(Refusal("APPROVAL_AMBIGUOUS", "The daemon stopped while the hold ran.", approval_id=hold.id))

    async def _resume(self, hold: Hold, run: Callable[[], Awaitable[dict[str, Any]]], ticket: Ticket) -> None:
        motion = self._motion(hold)
        result: dict[str, Any] | None = None
        try:
            await self._begin_resume(motion)
            result = await run()
        except Refusal as refusal:
            refusal.approval_id = hold.id
            refused = refusal
        if result is not None:
            ending = self._consumed(motion, hold, "request_ended", {"ok": lasting.result(result)})
        elif motion.state == "resuming":
            ending = self._refused(motion, hold, refused)
        else:
            ticket.fail(refused)
            if is_unsure(refused):
                await self._take_back(motion)
            return
        recorded = await ending.attempt()  # before the answer, so that the next call finds it
        self._scrubber.soon()
        if result is not None:
            ticket.succeed(result)
        else:
            ticket.fail(refused)
        if not recorded:
            await ending.persist()

    async def _take_back(self, motion: Motion) -> None:
        """Give the grant back where its use came to be recorded after all: nothing was run for it.

        Cancel: what is recorded stays; the next start settles it.
        """
        while True:
            try:
                await motion.make_sure()
                break
            except Refusal:
                await trio.sleep(limits.RECORD_RETRY_SECONDS)
        await Ending(motion, {"resuming": ("workspace_was_busy",)}, details={"code": "STORE_UNAVAILABLE"}).persist()

    def _refused(self, motion: Motion, hold: Hold, refusal: Refusal) -> Ending:
        """Return the end of a run that was refused: the grant given back, or the hold consumed."""
        if refusal.code in _GIVEN_BACK and refusal.operation_id is None:
            if refusal.code == "WORK_CLOSED":
                refusal.next_step = _IN_ANOTHER_WORK
            return Ending(motion, {"resuming": ("workspace_was_busy",)}, details={"code": refusal.code})
        event = "world_had_changed" if refusal.code == "APPROVAL_CONFLICT" else "request_ended"
        return self._consumed(motion, hold, event, {"refusal": lasting.refusal_body(refusal)})

    def _consumed(self, motion: Motion, hold: Hold, event: str, result: Mapping[str, Any]) -> Ending:
        operation_id = result.get("ok", result.get("refusal", {})).get("operation_id")
        changes = hold_rows.scrubbed(hold) | {"result": dict(result), "operation_id": operation_id}
        return Ending(motion, {"resuming": (event,)}, changes=changes)

    async def _current(self, hold: Hold) -> Hold:
        if hold.state not in hold_rows.UNDECIDED or self._wall_clock() < hold.expires_at:
            return hold
        motion = self._motion(hold)
        changes = hold_rows.scrubbed(hold) | {"reason": EXPIRED}
        try:
            await motion.move("time_ran_out", changes=changes)
        except Stale:  # somebody else saw it first, or decided it in the last moment
            fresh = await self._first("id = ?", hold.id)
            assert fresh is not None  # rows of holds are never deleted
            return fresh
        self._tell_change()
        return hold_rows.moved(hold, motion.state, changes)

    async def _begin_resume(self, motion: Motion) -> None:
        try:
            await motion.move("resume_begun", changes={"instance_id": self._instance_id})
        except Stale as stale:
            raise Refusal(
                "APPROVAL_CONFLICT",
                f"The hold is {stale.actual} by now; nothing was changed.",
                next_step="Look at the hold again (approval_status, `codespace approvals show`).",
                approval_id=motion.subject,
            ) from None
        self._tell_change()

    def _tell_change(self) -> None:
        """Wake who waits for a decision, and let what was scrubbed leave the file."""
        self._changed.set()
        self._changed = trio.Event()
        self._scrubber.soon()

    def _motion(self, hold: Hold) -> Motion:
        return Motion(Approval, hold.id, hold.state, self._recorder)

    # --- rows ---

    def _insert(self, db: Database, row: Mapping[str, Any]) -> Hold:
        """Insert a hold and return it, or the one that was quicker."""
        taken = hold_rows.insert(db, row)
        if taken is None:
            details = {"tool": row["tool"], "workspace_id": row["workspace_id"]}
            self._audit.append(db, "approval", str(row["id"]), "held", None, "pending", _HELD, details)
        return hold_rows.many(db, "id = ?", taken or row["id"], 1)[0]

    async def _waits(self, approval_id: str) -> bool:
        """Return whether a hold is undecided: looked for often and by many, so without reading what it shows."""
        now = self._wall_clock()
        return await self._store.read(lambda db: hold_rows.waits(db, approval_id, now))

    async def _first(self, where: str, value: str | float) -> Hold | None:
        found = await self._store.read(lambda db: hold_rows.many(db, where, value, 1))
        return found[0] if found else None

    async def _all(self, where: str, value: str | float) -> list[Hold]:
        """Return the holds that match, newest first."""
        return await self._store.read(lambda db: hold_rows.many(db, where, value))


def no_such_hold(approval_id: str) -> Refusal:
    """Return the refusal of an id that names no hold."""
    return Refusal("APPROVAL_NOT_FOUND", "No hold of this id exists.", approval_id=approval_id)


def operator_only(approval_id: str) -> Refusal:
    """Return the refusal of a decision that only the operator may make."""
    return Refusal(
        "UNAUTHORIZED",
        "Only the operator can decide this hold.",
        next_step="Wait for the operator with approval_status.",
        approval_id=approval_id,
    )


def _as_it_is_shown(shown: Mapping[str, Any]) -> str:
    """Return what is shown, to be stored; of its diff, who made it has seen to the size."""
    texts = {name: value for name, value in shown.items() if name != "diff"}
    if len(json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")) > limits.HOLD_TEXTS_BYTES:
        raise Refusal(
            "LIMIT_REACHED",
            "Command, variables or input are too large to be looked through, and nothing is granted unseen; nothing "
            "was held or started.",
            next_step="Put what is long into a file of the workspace, and have the command read it.",
            details={"limit": "HOLD_TEXTS_BYTES", "maximum": limits.HOLD_TEXTS_BYTES},
        )
    return json.dumps(dict(shown))


def result_of(operation: Operation) -> dict[str, Any]:
    """Return the stored result of a resumed patch from its row."""
    if operation.state != "applied":
        return {"refusal": dict(operation.outcome or {})}
    return {
        "ok": {
            "status": operation.state,
            "operation_id": operation.id,
            "files": list(operation.files),
            "changes": [dict(change) for change in operation.changes],
        }
    }
