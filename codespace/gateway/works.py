"""Works as the agent has them: opened, steered by what the operator queued, and finished.

The agent learns of an intent by claiming it, once; before that it gets counts and no text. What is
decided here is decided inside one write transaction, on the rows as they are in it, so that an
operator's click and an agent's call cannot pass each other. A text is an instruction to the agent:
nothing in this room, or in the gate, grants anything because of it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import structlog
from sqlite_utils import Database
from statemachine import StateMachine

from codespace import ids, limits
from codespace.contract import Outcome, Workspace
from codespace.drive import Motion
from codespace.errors import Refusal
from codespace.gateway import intent as intents
from codespace.gateway import work as works
from codespace.gateway.audit import Audit
from codespace.gateway.intent import Intent
from codespace.gateway.ledger import Ledger
from codespace.gateway.store import Store
from codespace.gateway.work import Work
from statemachines.intent import Intent as IntentLaw
from statemachines.work import Work as WorkLaw

log = structlog.get_logger("codespace.works")

T = TypeVar("T")

PENDING: Final = "pending_user_input"
"""Why a work is not closed: the operator's input waits, or was claimed and is undone."""
COMMANDS: Final = "commands_running"
"""Why a work is not closed yet: what it started has not ended."""
_OPENED: Final = "The agent begins a stretch of doing that the operator can steer."
_ENDED: Final[Mapping[Outcome, str]] = {"done": "completed", "blocked": "gave_up"}


class Works:
    """The works of one database, for the agents of one daemon.

    Args:
        store, ledger, audit: Where rows, steps and events are.
        wall_clock: Seconds since the epoch.
        secret: Keys the digests that stand for texts in the chain.
        workspaces: Those that are registered here; a work of another daemon's is not there for an agent.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        audit: Audit,
        wall_clock: Callable[[], float],
        secret: bytes,
        workspaces: Mapping[str, Workspace],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._audit = audit
        self._wall_clock = wall_clock
        self._secret = secret
        self._workspaces = workspaces
        self._recorders = {WorkLaw: ledger.recorder("work"), IntentLaw: ledger.recorder("intent")}

    # --- what the agent may do ---

    async def open(self, workspace: Workspace, title: str) -> dict[str, Any]:
        """Open a work; what earlier ones of the workspace left for the next work moves into it.

        Raises: Refusal LIMIT_REACHED.
        """
        work = Work(ids.mint(ids.WORK), workspace.id, title, "active", self._wall_clock(), root=workspace.root)

        def write(db: Database) -> dict[str, Any]:
            self._require_room(db, workspace)
            works.insert(db, work)
            said = {"workspace_id": workspace.id, "title_digest": self.digest(title)}
            self._audit.append(db, "work", work.id, "opened", None, work.state, _OPENED, said)
            for left in intents.left_for_next(db, workspace.id, workspace.root):
                moved = {"work_id": work.id, "carried_from": left.work_id, "position": intents.next_place(db, work.id)}
                self.move(db, left, "carried", moved, {"from": left.work_id, "to": work.id})
            return {"work_id": work.id, **_counted(db, work.id)}

        return await self.write(write)

    async def status(self, work_id: str) -> dict[str, Any]:
        """Return the work's state, and counts of what waits; never a text.

        Raises: Refusal WORK_NOT_FOUND.
        """
        await self._store.read(lambda db: self._mine(db, work_id))
        work = await self.current(work_id)
        return {"work_id": work.id, "state": work.state, **await self._counts(work.id)}

    async def claim_next(self, work_id: str) -> dict[str, Any]:
        """Give the agent its next intent, which is frozen from now on; without one, what it has claimed and not done.

        Raises: Refusal WORK_NOT_FOUND, WORK_CLOSED; INTENT_ALREADY_CLAIMED, where another caller was faster.
        Cancel: claimed or not; asked again, a claim whose answer was lost is told as claimed.
        """
        seen = await self._store.read(lambda db: self._seen_next(db, work_id))
        if seen is None:
            return await self._nothing_due(work_id)

        def write(db: Database) -> dict[str, Any] | None:
            self._refuse_if_faster(db, seen)
            due = intents.next_due(intents.unfinished(db, work_id))
            if due is None:
                return None
            self.move(db, due, "taken", {"claimed_at": self._wall_clock()}, {"revision": due.revision})
            return _told(db, work_id, due.id)

        return await self.write(write) or await self._nothing_due(work_id)

    async def complete(self, work_id: str, intent_id: str, outcome: Outcome, note: str | None) -> dict[str, Any]:
        """Record how a claimed intent ended; the same words again change nothing.

        Raises: Refusal WORK_NOT_FOUND; INTENT_NOT_FOUND, also for what was never claimed;
            INTENT_NOT_EDITABLE, where it ended otherwise.
        """

        def write(db: Database) -> dict[str, Any]:
            work = self._mine(db, work_id)
            intent = self._claimed(db, work, intent_id)
            if intent.state == "claimed":
                said = {} if note is None else {"note_digest": self.digest(note)}
                self.move(db, intent, _ENDED[outcome], {"note": note}, said)
                self.settle(db, work)
            elif (intent.state, intent.note) != (outcome, note):
                raise Refusal(
                    "INTENT_NOT_EDITABLE",
                    f"The intent is {intent.state} already; nothing was changed.",
                    next_step="What was said stays said; go on with steer_claim_next.",
                )
            return _told(db, work_id, intent.id)

        return await self.write(write)

    async def finish(self, work_id: str) -> dict[str, Any]:
        """End a work, unless the operator's input waits. Asked again for a closed one, it says so.

        Returns: closed; where not, reason PENDING, or COMMANDS: it is ending, and closes once they ended.
        Raises: Refusal WORK_NOT_FOUND.
        """

        def write(db: Database) -> dict[str, Any]:
            work = self._mine(db, work_id)
            waiting = intents.counts(db, work_id)
            if any(waiting):
                return {"closed": False, "reason": PENDING, "state": work.state, **waiting._asdict()}
            if work.state == "active":
                work = self.begin_closing(db, work, {"by": "agent"})
            state = self.settle(db, work)
            return {"closed": True} if state == "closed" else {"closed": False, "reason": COMMANDS}

        return {"work_id": work_id, **await self.write(write)}

    # --- what the gate asks ---

    async def require_active(self, work_id: str, workspace: Workspace) -> None:
        """Refuse to account something new to a work that is not there, not of this workspace, or ending.

        Raises: Refusal WORK_NOT_FOUND, WORK_CLOSED.
        """
        work = await self._store.read(lambda db: works.one(db, work_id))
        if work is None or not work.is_of(workspace):
            raise Refusal(
                "WORK_NOT_FOUND",
                "No work of this id is open in this workspace; nothing was done.",
                next_step="Leave work_id out, or open a work with work_open.",
            )
        if work.state != "active":
            raise closed(work)

    async def coordination(self, work_id: str) -> dict[str, int] | None:
        """Return counts where input waits in the work. Never raises a Refusal: it only comes with a result."""
        try:
            found = await self._store.read(lambda db: intents.counts(db, work_id))
        except Refusal as refusal:
            # The result that it would go with is true all the same, and must not become an error.
            log.warning("waiting input could not be counted", code=refusal.code, work_id=work_id)
            return None
        return found._asdict() if found.queued else None

    # --- what the inbox shares ---

    async def write(self, fn: Callable[[Database], T]) -> T:
        """Decide and record in one transaction, flushed: what an operator or an agent was told stays told."""
        return await self._store.write(fn, durable=True)

    async def current(self, work_id: str) -> Work:
        """Return the work as it is now; one that was only waiting for its commands is closed first.

        Raises: Refusal WORK_NOT_FOUND.
        """
        work = await self._store.read(lambda db: require(db, work_id))
        if work.state != "closing":
            return work

        def write(db: Database) -> Work:
            self.settle(db, require(db, work_id))
            return require(db, work_id)

        return await self.write(write)

    async def settle_all(self) -> None:
        """Close every ending work that waits for nothing any more: for the start, behind recovery."""

        def write(db: Database) -> None:
            for work in works.closing(db):
                self.settle(db, work)

        await self.write(write)

    def begin_closing(self, db: Database, work: Work, details: Mapping[str, Any]) -> Work:
        """Take nothing more into the work: what the agent has not seen is overtaken, or left for the next work."""
        for intent in intents.unfinished(db, work.id):
            if intent.state in intents.UNSEEN and not intent.for_later:
                self.move(db, intent, "overtaken")
        self.move(db, work, "finish_begun", details=details)
        return require(db, work.id)

    def settle(self, db: Database, work: Work) -> str:
        """Close an ending work that waits for nothing any more; return its state."""
        if work.state != "closing" or any(intents.counts(db, work.id)) or works.has_commands(db, work.id):
            return work.state
        self.move(db, work, "finish_completed")
        return require(db, work.id).state

    def move(
        self,
        db: Database,
        subject: Work | Intent,
        event: str,
        changes: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Move a row that was read in this transaction by its law."""
        law: type[StateMachine] = WorkLaw if isinstance(subject, Work) else IntentLaw
        motion = Motion(law, subject.id, subject.state, self._recorders[law])
        self._ledger.apply_within(db, motion.steps(event, changes=changes, details=details))

    def digest(self, text: str) -> str:
        """Return what stands for a text in the chain: keyed, so that a short text cannot be guessed from it."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    # --- steps of the above ---

    async def _counts(self, work_id: str) -> dict[str, int]:
        return await self._store.read(lambda db: _counted(db, work_id))

    def _seen_next(self, db: Database, work_id: str) -> Intent | None:
        work = self._mine(db, work_id)
        if work.state == "closed":
            raise closed(work)
        return intents.next_due(intents.unfinished(db, work_id))

    def _refuse_if_faster(self, db: Database, seen: Intent) -> None:
        """Refuse where the intent that was due a moment ago is another caller's by now."""
        now = intents.one(db, seen.id)
        if now is not None and now.state not in intents.UNSEEN | {"cancelled", "superseded"}:
            raise Refusal(
                "INTENT_ALREADY_CLAIMED",
                "Another caller claimed the next intent at the same moment; nothing was claimed by this call.",
                next_step="Call steer_status; if more is queued, call steer_claim_next again.",
                retryable=True,
            )

    async def _nothing_due(self, work_id: str) -> dict[str, Any]:
        known = await self._store.read(lambda db: intents.unfinished(db, work_id))
        claimed = [agent_view(intent) for intent in known if intent.state == "claimed"]
        return {"work_id": work_id, **({"undone": claimed} if claimed else {}), **await self._counts(work_id)}

    def _mine(self, db: Database, work_id: str) -> Work:
        """Return the work if this daemon's agents may know of it. Raises: Refusal WORK_NOT_FOUND."""
        work = works.one(db, work_id)
        if work is None or not work.is_of(self._workspaces.get(work.workspace_id)):
            raise _no_such_work()
        return work

    def _claimed(self, db: Database, work: Work, intent_id: str) -> Intent:
        intent = intents.one(db, intent_id)
        # One that was not claimed is not there for the agent, whatever it guesses.
        if intent is None or intent.work_id != work.id or intent.claimed_at is None:
            raise Refusal("INTENT_NOT_FOUND", "No claimed intent of this id is in this work; nothing was changed.")
        return intent

    def _require_room(self, db: Database, workspace: Workspace) -> None:
        open_works = works.count_open(db, workspace)
        if open_works >= limits.WORKS_OPEN:
            raise Refusal(
                "LIMIT_REACHED",
                f"{open_works} works of this workspace are open; none was opened.",
                next_step="Finish one with work_finish.",
                details={"limit": "works", "maximum": limits.WORKS_OPEN},
            )


def agent_view(intent: Intent) -> dict[str, Any]:
    """Return what the agent gets of an intent that it claimed."""
    view = {"intent_id": intent.id, "kind": intent.kind, "state": intent.state, "text": intent.text}
    return view if intent.note is None else view | {"note": intent.note}


def require(db: Database, work_id: str) -> Work:
    """Return the work, for the operator. Raises: Refusal WORK_NOT_FOUND."""
    work = works.one(db, work_id)
    if work is None:
        raise _no_such_work("Look at the list of works.")
    return work


def _no_such_work(next_step: str | None = None) -> Refusal:
    return Refusal("WORK_NOT_FOUND", "No work of this id exists; nothing was done.", next_step=next_step)


def closed(work: Work) -> Refusal:
    """Return the refusal of what a work that is ending or closed does not take any more."""
    ending = (
        "Claim what is queued (steer_claim_next) and complete what is claimed (steer_complete), then call work_finish."
    )
    still = ending if work.state == "closing" else None
    return Refusal("WORK_CLOSED", f"The work is {work.state} and takes nothing new; nothing was done.", next_step=still)


def _counted(db: Database, work_id: str) -> dict[str, int]:
    return intents.counts(db, work_id)._asdict()


def _told(db: Database, work_id: str, intent_id: str) -> dict[str, Any]:
    """Return what the agent is told of a step of an intent, read in its transaction: behind it, a read could fail."""
    intent = intents.one(db, intent_id)
    if intent is None:
        raise LookupError("a row that was moved in this transaction is gone")
    return {"work_id": work_id, "intent": agent_view(intent), **_counted(db, work_id)}
