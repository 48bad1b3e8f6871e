"""The verbs of the helper: what it holds between them, and nothing about pipes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from codespace import limits, pages
from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch import finishing, installing, planning, settling, staging, undoing
from helper.patch.journal import Journal
from helper.patch.manifest import Manifest
from helper.patch.patience import Patience
from helper.patch.planning import Bounds, Planned
from helper.patch.policy import Policy
from helper.patch.report import report
from helper.patch.sight import Identity, require_mounts


@dataclass(slots=True)
class Work:
    """An operation with a journal. `identities` of what was staged are known to the helper that staged it only."""

    journal: Journal
    manifest: Manifest
    identities: Mapping[int, Identity] | None = None


@dataclass(slots=True)
class Session:
    """One open root and the operations on it."""

    root: Root
    whole: Root
    """The same with nothing hidden: what a plan may name is decided by then, and its own names may look hidden."""
    policy: Policy
    bounds: Bounds
    folder: str
    plans: dict[str, Planned] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    renaming: dict[int, bool] = field(default_factory=dict)
    """Of each device that was written to, whether it knows the flags of rename."""
    patience: Patience = field(default_factory=Patience)
    """Of the verb that is carried out."""

    @classmethod
    def open(cls, request: Mapping[str, Any]) -> Session:
        """Open the root that the first request names."""
        os.umask(request["umask"])
        root = Patience().persist(partial(_open_root, request))
        policy = Policy(root, request["protected"], git=request["git_protected"])
        return cls(
            root, root.unveiled(), policy, Bounds(request["file_bytes"], request["patch_bytes"]), request["journal"]
        )

    def close(self) -> None:
        """Give up every lock and the root; journals stay for whoever settles them."""
        for work in self.works.values():
            work.journal.close()
        self.root.close()

    def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one request.

        Raises: Refusal.
        """
        verb = _VERBS.get(request["verb"])
        if verb is None:
            raise Refusal("INVALID_ARGUMENT", "The helper knows no such verb. Nothing was done.")
        self.patience = Patience()
        if request["verb"] in _PATIENT:
            self.patience.persist(self.root.check_in_place)
        else:
            self.root.check_in_place()
        return verb(self, request)

    def _plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation, text = request["operation"], request["patch"]
        if len(text) > self.bounds.patch_bytes or len(text.encode("utf-8", "surrogatepass")) > self.bounds.patch_bytes:
            raise Refusal(
                "LIMIT_REACHED",
                f"The patch is over the limit of {self.bounds.patch_bytes:,} bytes. Nothing was written.",
                details={"limit": "patch_bytes", "setting": "limits.patch_bytes", "value": self.bounds.patch_bytes},
            )
        self.plans.pop(operation, None)
        planned = planning.plan(self.root, self.policy, self.bounds, operation, text, request["expected_versions"])
        return self._planned(operation, planned)

    def _plan_undo(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["operation"]
        self.plans.pop(operation, None)
        undone = request["undone"]
        ours = self.works.get(undone)  # its lock is held by this helper where it was not finished yet
        journal = Journal.load(request["folder"], undone) if ours is None else ours.journal
        if journal is None:
            raise undoing.expired()
        try:
            planned = undoing.plan_undo(self.root, self.policy, self.bounds, operation, journal)
        finally:
            if ours is None:
                journal.close()
        return self._planned(operation, planned)

    def _planned(self, operation: str, planned: Planned) -> dict[str, Any]:
        self.plans[operation] = planned
        self._forget_plans()
        return {
            "changes": planned.manifest.changes,
            "diff": planned.diff,
            "diff_truncated": planned.diff_truncated,
            "after": _after(planned.manifest),
            "notes": planned.notes,
        }

    def _forget_plans(self) -> None:
        """Give up the oldest plans while there are too many or they are too large; none of an operation for a look."""
        size = sum(planned.size_bytes for planned in self.plans.values())
        looks = [name for name in self.plans if not name.startswith("op-")]
        *older, latest = self.plans
        for name in (*looks, *(() if latest in looks else (each for each in older if each not in looks))):
            if len(self.plans) <= limits.PLANS_HELD and size <= limits.PLANS_HELD_BYTES:
                return
            size -= self.plans.pop(name).size_bytes

    def _stage(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["operation"]
        planned = self.plans.pop(operation, None)
        if planned is None:
            raise Refusal(
                "FILE_OPERATION_FAILED",
                "The plan of this operation is no longer held. Nothing was written.",
                next_step="Send the patch again.",
                retryable=True,
            )
        self.works[operation] = Work(*staging.stage(self.whole, planned, self.folder, self.renaming))
        return {"atomic": all(self.renaming.values())}

    def _diff(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of a held plan's whole diff: lone surrogates are possible, a character is never split."""
        planned = self.plans.get(request["operation"])
        if planned is None:
            raise Refusal("OPERATION_NOT_FOUND", "The plan of this operation is no longer held.")
        whole = planned.whole_diff() or planned.diff
        page, cursor = pages.cut(whole.encode("utf-8", "surrogatepass"), request["cursor"], request["limit"])
        return {"text": page, "cursor": cursor, "total": len(whole.encode("utf-8", "surrogatepass"))}

    def _install(self, request: Mapping[str, Any]) -> dict[str, Any]:
        work = self.works.get(request["operation"])
        if work is None or work.identities is None:
            raise Refusal(
                "FILE_OPERATION_FAILED",
                "The helper was replaced after staging, so nothing was installed.",
                next_step="Send the patch again.",
                retryable=True,
            )
        done = installing.install(self.whole, work.manifest, work.identities, work.journal, self.renaming)
        if done.refusal is not None:
            work.journal.mark("restoring", done.slots)
        return report(rescued=work.journal.rescued(), refusal=done.refusal)

    def _restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["operation"]
        work = self._work(operation)
        if work is None:
            return report()  # no journal: nothing was ever written
        try:
            if work.journal.marked("finishing"):
                raise Refusal("FILE_OPERATION_FAILED", "The patch was verified and finished, so it is not taken back.")
            self.patience.persist(partial(require_mounts, self.whole, work.manifest))
            _, found = settling.take_back(self.whole, work.manifest, work.journal, self.patience)
        finally:
            self._let_go(operation)
        return found

    def _finish(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["operation"]
        self.plans.pop(operation, None)
        work = self._work(operation)
        if work is None:
            return report()
        try:
            if work.journal.age() <= limits.JOURNAL_AGE_SECONDS:  # what is away for longer is given up
                self.patience.persist(partial(require_mounts, self.whole, work.manifest))
            left, rescued = finishing.finish(self.whole, work.manifest, work.journal, self.patience)
        finally:
            self._let_go(operation)
        return report(kept=left, rescued=rescued)

    def _settle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["operation"]
        self.plans.pop(operation, None)
        journal = self.works[operation].journal if operation in self.works else Journal.load(self.folder, operation)
        if journal is None:
            return {"outcome": None}
        work = self._loaded(operation, journal)
        if work is None:
            return {"outcome": "rejected", "report": report(), "after": {}}
        try:
            outcome, found = settling.settle(self.whole, work.manifest, work.journal, self.patience)
            after = {} if work.journal.marked("finishing") else _after(work.manifest)
        finally:
            self._let_go(operation)
        return {"outcome": outcome, "report": found, "after": after}

    def _let_go(self, operation: str) -> None:
        """Give up the journal's lock: the operator may decide of what cannot be done, or recorded, now."""
        self.works.pop(operation).journal.close()

    def _work(self, operation: str) -> Work | None:
        if operation in self.works:
            return self.works[operation]
        journal = Journal.load(self.folder, operation)
        return None if journal is None else self._loaded(operation, journal)

    def _loaded(self, operation: str, journal: Journal) -> Work | None:
        if operation in self.works:
            return self.works[operation]
        try:
            manifest = journal.manifest()
        except BaseException:
            journal.close()
            raise
        if manifest is None:
            journal.purge()  # cut off before the manifest, so before anything was staged
            return None
        if manifest.identity[1] != self.root.identity[1]:  # device numbers change with a restart of the machine
            journal.close()
            raise Refusal(
                "FILE_OPERATION_FAILED",
                "Another directory is at the root than the one that this operation worked on. Nothing was done.",
                next_step="Put the directory back, or ask the operator for `codespace operations settle`.",
            )
        self.works[operation] = work = Work(journal, manifest)
        return work


def _open_root(request: Mapping[str, Any]) -> Root:
    """Open the directory that the runner saw at the root.

    Raises: Refusal where another one is there.
    """
    root = Root.open(request["root"], allow_submounts=request["allow_submounts"], hidden=request["hidden"])
    if list(root.identity) == request.get("identity", list(root.identity)):
        return root
    root.close()
    raise Refusal("FILE_OPERATION_FAILED", "Another directory is at the workspace root now. Nothing was done.")


def _after(manifest: Manifest) -> dict[str, str]:
    return {slot.path: slot.after for slot in manifest.slots}


_VERBS: Final[Mapping[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]]] = {
    "plan": Session._plan,
    "plan_undo": Session._plan_undo,
    "diff": Session._diff,
    "stage": Session._stage,
    "install": Session._install,
    "restore": Session._restore,
    "finish": Session._finish,
    "settle": Session._settle,
}
_PATIENT: Final = frozenset({"restore", "finish", "settle"})
"""Nothing can be said about a patch, nor taken back, while another directory is at the root for a moment."""
