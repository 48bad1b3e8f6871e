"""The inbox: works and intents as the operator has them. Implements `contract.Inbox`.

It writes, edits, queues, orders and withdraws what the agent has not seen, and orders stops. It is
reached by the operator's own door only. A text is kept as it was written; what is shown to a person
passes `display` where it is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
import trio
from sqlite_utils import Database

from codespace import ids, limits
from codespace.contract import Delivery, IntentKind
from codespace.errors import Refusal
from codespace.gateway import intent as intents
from codespace.gateway import work as works
from codespace.gateway.audit import Audit
from codespace.gateway.intent import Intent
from codespace.gateway.store import Store
from codespace.gateway.view import known
from codespace.gateway.work import Work
from codespace.gateway.works import Works, closed, require

log = structlog.get_logger("codespace.inbox")

StopCommands = Callable[[Work], Awaitable[bool]]
"""Ends every live process of a work's workspace; says whether the end of each is recorded."""

STOP_TEXT: Final = (
    "The operator ordered a stop, and the commands of the workspace were ended. Do not go on with the work. "
    "Say where things stand, complete this notice, and call work_finish."
)
_WRITTEN: Final = "The operator wrote it; the agent does not see it before it is queued and claimed."


@dataclass(frozen=True, slots=True)
class _Draft:
    """What a new intent is made of."""

    work_id: str
    text: str
    kind: IntentKind
    delivery: Delivery
    supersedes: str | None = None


@dataclass(slots=True)
class _Stopping:
    """One ordered stop, which goes on when its asker leaves."""

    work: Work
    ended: trio.Event = field(default_factory=trio.Event)
    complete: bool = False
    """Whether every command is known to have ended."""


class Inbox:
    """The operator's side of the works of one database.

    Args:
        store, audit: Where rows and events are.
        works: The rules that agent and operator share.
        nursery: The daemon's own: a stop goes on when the one who ordered it leaves.
        stop_commands: How a workspace's processes are ended.
        wall_clock: Seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        audit: Audit,
        works: Works,
        nursery: trio.Nursery,
        stop_commands: StopCommands,
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._audit = audit
        self._works = works
        self._nursery = nursery
        self._stop_commands = stop_commands
        self._wall_clock = wall_clock

    # --- looking ---

    async def works(self) -> dict[str, Any]:
        """Return the newest works, at most limits.LIST_ROWS."""
        return {"works": await self._store.read(lambda db: [_work_view(db, each) for each in _newest(db)])}

    async def work(self, *, work_id: str) -> dict[str, Any]:
        """Return one work. Raises: Refusal WORK_NOT_FOUND."""
        await self._works.current(work_id)
        return await self._store.read(lambda db: _work_view(db, require(db, work_id)))

    async def intents(self, *, work_id: str) -> dict[str, Any]:
        """Return a work's intents in the order of their places, at most limits.LIST_ROWS, the newest ones.

        Raises: Refusal WORK_NOT_FOUND.
        """

        def read(db: Database) -> dict[str, Any]:
            work = require(db, work_id)
            found = intents.of_work(db, work_id, limits.LIST_ROWS)
            return {"work_id": work_id, "state": work.state, "intents": [_view(each) for each in found]}

        return await self._store.read(read)

    # --- writing ---

    async def draft(
        self, *, work_id: str, text: str, kind: IntentKind, delivery: Delivery, supersedes: str | None
    ) -> dict[str, Any]:
        """Write a draft, which the agent does not see.

        Args:
            supersedes: An unseen intent of the same work; the draft takes its place once it is queued.
        Raises: Refusal WORK_NOT_FOUND, WORK_CLOSED, LIMIT_REACHED, INTENT_NOT_FOUND, INTENT_ALREADY_CLAIMED,
            INTENT_NOT_EDITABLE, INVALID_ARGUMENT.
        """
        if kind == "stop_notice":
            raise Refusal(
                "INVALID_ARGUMENT",
                "A stop notice is not written but ordered; nothing was stored.",
                next_step="POST to the work's stop, with the text if you want one of your own.",
                details={"argument": "kind"},
            )

        def write(db: Database) -> dict[str, Any]:
            work = require(db, work_id)
            if work.state != "active":
                raise _closed(work)
            _require_room(db, work_id)
            if supersedes is not None and _unseen(db, supersedes).work_id != work_id:
                raise _not_in("The intent to supersede is not in this work; nothing was stored.")
            return _view(self._insert(db, _Draft(work_id, text, kind, delivery, supersedes)))

        return await self._works.write(write)

    async def edit(
        self, *, intent_id: str, revision: int, text: str | None, kind: IntentKind | None, delivery: Delivery | None
    ) -> dict[str, Any]:
        """Change what the agent has not seen.

        Args:
            revision: The one that was read; an edit made for another is refused.
        Raises: Refusal INTENT_NOT_FOUND, INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE, INTENT_REVISION_CONFLICT,
            WORK_CLOSED where it would be due in a work that is ending, INVALID_ARGUMENT.
        """

        def write(db: Database) -> dict[str, Any]:
            intent = _unseen(db, intent_id, revision)
            if "stop_notice" in (kind, intent.kind):
                raise Refusal("INTENT_NOT_EDITABLE", "A stop notice cannot be edited, or made of something else.")
            given = {"text": text, "kind": kind, "delivery": delivery}
            changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            if delivery is not None and delivery != intent.delivery:
                _require_taken(require(db, intent.work_id), delivery)
                changes["carried_from"] = None  # said anew, `next_work` means the one after this
            changes["revision"] = intent.revision + 1
            self._works.move(db, intent, "rewritten", changes, self._said(text or intent.text, changes))
            return _read_back(db, intent_id)

        return await self._works.write(write)

    async def queue(self, *, intent_id: str, revision: int | None) -> dict[str, Any]:
        """Let a draft be delivered; queued again, nothing changes.

        Raises: as edit; of what it supersedes, too.
        """

        def write(db: Database) -> dict[str, Any]:
            intent = _unseen(db, intent_id, revision)
            if intent.state == "draft":
                _require_taken(require(db, intent.work_id), intent.delivery)
                self._works.move(db, intent, "released", self._take_place(db, intent), {"revision": intent.revision})
            return _read_back(db, intent_id)

        return await self._works.write(write)

    async def cancel(self, *, intent_id: str, revision: int | None) -> dict[str, Any]:
        """Withdraw what the agent has not seen; cancelled again, nothing changes. Raises: as edit."""

        def write(db: Database) -> dict[str, Any]:
            intent = _require_intent(db, intent_id)
            if intent.state != "cancelled":
                intent = _unseen(db, intent_id, revision)
                work = require(db, intent.work_id)
                self._works.move(db, intent, "withdrawn")
                self._works.settle(db, work)
            return _read_back(db, intent_id)

        return await self._works.write(write)

    async def reorder(self, *, work_id: str, intent_ids: list[str]) -> dict[str, Any]:
        """Put unseen intents of a work first, in this order; those not named follow as they were.

        Raises: Refusal WORK_NOT_FOUND, INTENT_NOT_FOUND, INTENT_ALREADY_CLAIMED, INTENT_NOT_EDITABLE,
            INVALID_ARGUMENT.
        """
        if len(set(intent_ids)) != len(intent_ids):
            raise Refusal(
                "INVALID_ARGUMENT", "An intent is named twice; nothing was moved.", details={"argument": "intent_ids"}
            )

        def write(db: Database) -> dict[str, Any]:
            require(db, work_id)
            named = [_unseen(db, intent_id) for intent_id in intent_ids]
            if any(intent.work_id != work_id for intent in named):
                raise _not_in("One of them is not in this work; nothing was moved.")
            unseen = [each for each in intents.unfinished(db, work_id) if each.state in intents.UNSEEN]
            order = [*named, *(each for each in unseen if each.id not in intent_ids)]
            # They share out the places that they have, so that what was claimed keeps its own.
            for intent, place in zip(order, sorted(each.position for each in unseen), strict=True):
                if intent.position != place:
                    self._works.move(db, intent, "moved", {"position": place}, {"position": place})
            return {"work_id": work_id, "intents": [_read_back(db, intent.id) for intent in order]}

        return await self._works.write(write)

    async def stop(self, *, work_id: str, text: str | None) -> dict[str, Any]:
        """Order a stop: the work takes nothing more, a notice is claimed first, the workspace's commands end.

        Args:
            text: Of the notice, instead of STOP_TEXT.
        Returns: the work, whether the commands ended, and the notice where one was left; a work that is
            ending already gets no second one.
        Raises: Refusal WORK_NOT_FOUND, WORK_CLOSED.
        Cancel: what was recorded stays, and the commands end all the same.
        """

        def write(db: Database) -> tuple[Work, str | None]:
            work = require(db, work_id)
            if work.state == "closed":
                raise _closed(work)
            if work.state == "closing":
                self._audit.append(db, "work", work_id, "stop_repeated", None, None, "The operator ordered it again.")
                return work, None
            work = self._works.begin_closing(db, work, {"by": "operator"})
            notice = self._insert(db, _Draft(work_id, text or STOP_TEXT, "stop_notice", "next_checkpoint"))
            self._works.move(db, notice, "released", details={"revision": notice.revision})
            return work, notice.id

        work, notice_id = await self._works.write(write)
        complete = await self._end_commands(work)
        answer = await self.work(work_id=work_id) | {"commands_ended": complete}
        if notice_id is not None:
            answer["notice"] = await self._store.read(lambda db: _read_back(db, notice_id))
        return answer

    # --- steps of the above ---

    async def _end_commands(self, work: Work) -> bool:
        stopping = _Stopping(work)
        self._nursery.start_soon(self._stop, stopping, name=f"stop in {work.workspace_id}")
        await stopping.ended.wait()
        return stopping.complete

    async def _stop(self, stopping: _Stopping) -> None:
        try:
            stopping.complete = await self._stop_commands(stopping.work)
        except Exception:  # in the daemon's own nursery: a fault here must not end the daemon
            log.exception("a stop did not end every command", workspace_id=stopping.work.workspace_id)
        finally:
            stopping.ended.set()

    def _insert(self, db: Database, draft: _Draft) -> Intent:
        intent = Intent(
            id=ids.mint(ids.INTENT),
            work_id=draft.work_id,
            kind=draft.kind,
            delivery=draft.delivery,
            text=draft.text,
            state="draft",
            revision=1,
            position=intents.next_place(db, draft.work_id),
            created_at=self._wall_clock(),
            supersedes=draft.supersedes,
        )
        intents.insert(db, intent)
        said = {"kind": intent.kind, "delivery": intent.delivery, "revision": 1, "work_id": intent.work_id}
        self._audit.append(
            db, "intent", intent.id, "written", None, intent.state, _WRITTEN, self._said(intent.text, said)
        )
        return intent

    def _said(self, text: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Return an event's details: everything but the text, and a digest in its place."""
        kept = {name: value for name, value in changes.items() if name != "text" and value is not None}
        return kept | {"text_digest": self._works.digest(text), "text_characters": len(text)}

    def _take_place(self, db: Database, intent: Intent) -> dict[str, Any]:
        """Overtake what the intent supersedes, if it still waits; return the changes that come with its place."""
        if intent.supersedes is None:
            return {}
        other = _require_intent(db, intent.supersedes)
        if other.state in ("cancelled", "superseded"):
            return {}
        other = _unseen(db, other.id)
        self._works.move(db, other, "overtaken", details={"by": intent.id})
        return {"position": other.position} if other.work_id == intent.work_id else {}


def _newest(db: Database) -> tuple[Work, ...]:
    return works.newest(db, limits.LIST_ROWS)


def _work_view(db: Database, work: Work) -> dict[str, Any]:
    view = known(work)
    return {"work_id": view.pop("id"), **view, **intents.counts(db, work.id)._asdict()}


def _view(intent: Intent) -> dict[str, Any]:
    view = known(intent)
    return {"intent_id": view.pop("id"), **view}


def _read_back(db: Database, intent_id: str) -> dict[str, Any]:
    return _view(_require_intent(db, intent_id))


def _require_intent(db: Database, intent_id: str) -> Intent:
    intent = intents.one(db, intent_id)
    if intent is None:
        raise _not_in("No intent of this id exists; nothing was done.")
    return intent


def _not_in(problem: str) -> Refusal:
    return Refusal("INTENT_NOT_FOUND", problem, next_step="List the work's intents.")


def _closed(work: Work) -> Refusal:
    """Return the refusal in words for the operator, who claims and opens nothing."""
    refusal = closed(work)
    refusal.next_step = "Write into a work that is active; the list of works says which is."
    return refusal


def _unseen(db: Database, intent_id: str, revision: int | None = None) -> Intent:
    """Return an intent that the agent has not seen, at this revision if one is named."""
    intent = _require_intent(db, intent_id)
    if intent.state == "claimed":
        raise Refusal(
            "INTENT_ALREADY_CLAIMED",
            "The agent has the intent's text; it is frozen, and nothing was changed.",
            next_step="Write a new intent that says what you want instead.",
        )
    if intent.state not in intents.UNSEEN:
        raise Refusal("INTENT_NOT_EDITABLE", f"The intent is {intent.state}; nothing was changed.")
    if revision is not None and revision != intent.revision:
        raise Refusal(
            "INTENT_REVISION_CONFLICT",
            f"The intent is at revision {intent.revision}, not at {revision}; nothing was changed.",
            details={"expected": revision, "actual": intent.revision},
        )
    return intent


def _require_taken(work: Work, delivery: Delivery) -> None:
    """Refuse what would be due in a work that takes nothing more; what is for the next work only lies in it."""
    if work.state != "active" and delivery != "next_work":
        raise _closed(work)


def _require_room(db: Database, work_id: str) -> None:
    waiting = sum(1 for each in intents.unfinished(db, work_id) if each.state in intents.UNSEEN)
    if waiting >= limits.INTENTS_WAITING:
        raise Refusal(
            "LIMIT_REACHED",
            f"{waiting} drafts and queued intents are in this work; nothing was stored.",
            next_step="Cancel some, or wait until the agent has claimed some.",
            details={"limit": "intents", "maximum": limits.INTENTS_WAITING},
        )
