"""The operator's side of holds and grants: what console, command line and /inbox decide by.

Whoever reaches this object is the operator: the doors see to that, or the ownership of the database file
does. Each decision is a compare-and-set step of the same machines that the daemon moves, so it makes no
difference whether a daemon runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import trio

from codespace import limits
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.gateway import scopes
from codespace.gateway.audit import Audit
from codespace.gateway.grants import Grant, Grants
from codespace.gateway.hold import RUNNABLE, Hold
from codespace.gateway.holds import Holds
from codespace.gateway.instances import Instances
from codespace.gateway.ledger import Ledger
from codespace.gateway.opening import open_store
from codespace.gateway.operation import Kind, Operation
from codespace.gateway.polls import Polls
from codespace.gateway.scopes import Scope
from codespace.gateway.scrubber import Scrubber
from codespace.gateway.store import Store
from codespace.gateway.view import known, operation_view

Version = tuple[int, int]


class Operator:
    """Looks at holds and grants, decides them, and hears when something changed."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        holds: Holds,
        grants: Grants,
        workspaces: Mapping[str, Workspace],
        dead_ids: Callable[[], Awaitable[frozenset[str]]],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._holds = holds
        self._grants = grants
        self._workspaces = workspaces
        self.dead_ids = dead_ids
        """Return which daemons ended without a word: nothing of theirs runs, whatever is recorded."""

    # --- looking ---

    async def holds(self) -> list[Hold]:
        """Return the holds that may still run, oldest first, at most limits.LIST_ROWS; `hold` has one whole.

        Here a long one has neither diff nor input: however much is held, the list can be had.
        Source: limits.HOLD_LISTED_CHARACTERS.
        """
        return await self._holds.outlines(limits.HOLD_LISTED_CHARACTERS)

    async def outlines(self) -> list[Hold]:
        """Return the same without any diff or input, for a page that is asked for often."""
        return await self._holds.outlines(0)

    async def count_pending(self) -> int:
        """Return how many holds wait for a decision."""
        return await self._holds.count_pending()

    async def decided(self, limit: int = limits.LIST_ROWS) -> list[Hold]:
        """Return the holds that were denied or ran, newest first."""
        return await self._holds.ended(limit)

    async def hold(self, approval_id: str) -> Hold:
        """Return one hold. Raises: Refusal APPROVAL_NOT_FOUND."""
        return await self._holds.get(approval_id)

    async def grants(self) -> list[Grant]:
        """Return the scoped grants, active ones first."""
        await self._grants.sweep()
        return await self._grants.listed()

    async def operations(self, kind: Kind | None = None, limit: int = limits.LIST_ROWS) -> tuple[Operation, ...]:
        """Return the newest operations, and each older one without an end; newest first."""
        return await self._ledger.list(kind=kind, limit=limit)

    async def count(self, kind: Kind | None = None) -> int:
        """Return how many operations are recorded."""
        return await self._ledger.count(kind)

    async def runs_elsewhere(self) -> list[Operation]:
        """Return the commands without an end in directories that are not registered here, newest first."""
        roots = {workspace.root for workspace in self._workspaces.values()}
        found = await self.operations(kind="exec")
        return [each for each in found if each.finished_at is None and each.root not in roots]

    async def operation(self, operation_id: str) -> dict[str, Any]:
        """Return what is recorded of one, in whatever directory it was. Raises: Refusal OPERATION_NOT_FOUND."""
        operation = await self._ledger.get(operation_id)
        if operation is None:
            raise Refusal("OPERATION_NOT_FOUND", "No such operation is recorded.")
        return operation_view(operation, await self._ledger.events(operation_id))

    async def version(self) -> Version:
        """Return what differs once anything was written to the database, by whomever."""
        return await self._store.version()

    async def wait_changed(self, seen: Version, seconds: float) -> Version:
        """Return the version once it is another than `seen`, or after `seconds`. Cancel: nothing is missed."""
        version = await self.version()
        with trio.move_on_after(seconds):
            while version == seen:
                await trio.sleep(limits.DECISION_LOOK_SECONDS)  # no event crosses from one program to another
                version = await self.version()
        return version

    # --- deciding ---

    async def grant(
        self,
        approval_id: str,
        *,
        by: str,
        fingerprint: str | None = None,
        scope: Scope | Literal["once"] = "once",
        path: str | None = None,
        seconds: float | None = None,
    ) -> tuple[Hold, Grant | None]:
        """Grant a hold, and with a scope what is like it, for `seconds` or until the daemon that holds it ends.

        Args:
            by: The channel, for the record.
            fingerprint: Of the hold that was shown.
        Raises: Refusal APPROVAL_NOT_FOUND, APPROVAL_EXPIRED, APPROVAL_CONFLICT, INVALID_ARGUMENT: nothing was
            granted then; STORE_UNAVAILABLE, which says whether the hold was.
        Cancel: nothing, the hold alone, or both were granted.
        """
        grant = partial(self._holds.resolve, approval_id, "grant", by=by, authority="operator", fingerprint=fingerprint)
        if scope == "once":
            return await grant(), None
        asked = await self._holds.get(approval_id)
        if asked.state not in RUNNABLE:  # what it showed is gone
            return await grant(), None  # refused, saying what became of it
        terms = self._terms(asked, scope, path)
        await self._grants.require_end(asked, seconds)
        hold = await grant()
        try:
            return hold, await self._grants.give(hold, scope, terms, seconds)
        except Refusal as refusal:
            refusal.message = f"This hold was granted, once; what is like it was not. {refusal.message}"
            raise

    async def deny(self, approval_id: str, *, by: str, fingerprint: str | None = None) -> Hold:
        """Deny a hold, or take its grant back as long as it was not used. Raises: as grant."""
        return await self._holds.resolve(approval_id, "deny", by=by, authority="operator", fingerprint=fingerprint)

    async def revoke(self, grant_id: str) -> Grant:
        """End a scoped grant. Raises: Refusal APPROVAL_NOT_FOUND."""
        return await self._grants.revoke(grant_id)

    def scopes_for(self, hold: Hold) -> dict[Scope, str | None]:
        """Return the scopes that may be offered for a hold, each with the reason why it is not to be had."""
        found: dict[Scope, str | None] = {}
        for scope in scopes.SCOPES:
            try:
                self._terms(hold, scope, "." if scope == "patches" else None)
                found[scope] = None
            except Refusal as refusal:
                found[scope] = refusal.message.removesuffix(scopes.NOTHING)
        return found

    def _terms(self, hold: Hold, scope: Scope, path: str | None) -> dict[str, Any]:
        workspace = self._workspaces.get(hold.workspace_id)
        if workspace is None or workspace.approvals != "operator":
            raise Refusal(
                "INVALID_ARGUMENT",
                "Scoped grants are for workspaces whose approvals are `operator`." + scopes.NOTHING,
                next_step=scopes.ONCE,
                details={"argument": "scope"},
            )
        # The directory that was shown: the id may name another one here.
        return scopes.terms_of(hold, scope, root=hold.root or workspace.root, path=path)


@asynccontextmanager
async def open_operator(
    database: str, workspaces: Mapping[str, Workspace], wall_clock: Callable[[], float], *, expiry_seconds: float
) -> AsyncIterator[Operator]:
    """Open the database for an operator without a daemon.

    At the end what was scrubbed has left the file, unless somebody reads it for limits.SCRUB_PATIENCE_SECONDS.

    Raises: Refusal STORE_UNAVAILABLE.
    Cancel: what was decided stays decided.
    """
    async with open_store(database) as store, trio.open_nursery() as nursery:
        audit = Audit(wall_clock, COMMAND_LINE)
        ledger = Ledger(store, wall_clock, COMMAND_LINE, audit)
        scrubber = Scrubber(store, nursery)
        holds = Holds(
            store,
            ledger,
            audit,
            nursery,
            wall_clock,
            COMMAND_LINE,
            Polls(),
            expiry_seconds,
            left_over=lambda: None,
            scrubber=scrubber,
        )
        instances = Instances(store, wall_clock, "", ())  # to look at others; it registers none
        grants = Grants(store, ledger, audit, wall_clock, COMMAND_LINE, scrubber, instances.lives)
        yield Operator(store, ledger, holds, grants, workspaces, instances.dead_ids)
        nursery.cancel_scope.deadline = trio.current_time() + limits.SCRUB_PATIENCE_SECONDS


COMMAND_LINE = "command-line"
"""The instance in whose name the command line records."""


def hold_facts(hold: Hold) -> dict[str, Any]:
    """Return a hold as plain JSON values for a program: all that is shown, never the stored body."""
    facts = known(hold)
    facts.pop("body", None)
    return {"approval_id": facts.pop("id"), **facts}


def grant_facts(grant: Grant) -> dict[str, Any]:
    """Return a grant as plain JSON values for a program."""
    facts = known(grant)
    return {"grant_id": facts.pop("id"), **facts}
