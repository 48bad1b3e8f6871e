"""What the patch helper replies, in the types of the contract (docs/helper-protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from codespace.contract import Change, DiffPage, PatchPlan, PatchReport
from codespace.errors import Refusal


def answer(verb: str, reply: Mapping[str, Any]) -> Any:
    """Return what a reply says, in the types of the contract.

    Raises: Refusal where that is the answer; KeyError, TypeError or ValueError for nonsense.
    """
    refusal = reply.get("refusal")
    if refusal is not None:
        raise Refusal.from_body(dict(refusal))
    return _READERS[verb](reply["ok"])


def _read_plan(told: Mapping[str, Any]) -> tuple[PatchPlan, dict[str, str]]:
    changes = tuple(Change(**change) for change in told["changes"])
    files = {path: None for change in changes for path in (change.from_path, change.path) if path is not None}
    notes = tuple(map(str, told["notes"]))
    plan = PatchPlan("", tuple(files), changes, str(told["diff"]), bool(told["diff_truncated"]), notes)
    return plan, dict(told["after"])


def _read_report(told: Mapping[str, Any]) -> PatchReport:
    refusal = told["refusal"]
    return PatchReport(
        clean=bool(told["clean"]),
        kept=tuple(told["kept"]),
        rescued=tuple(told["rescued"]),
        refusal=None if refusal is None else Refusal.from_body(dict(refusal)).body(),
    )


def _read_settled(told: Mapping[str, Any]) -> tuple[str, PatchReport, dict[str, str]] | None:
    outcome = told["outcome"]
    if outcome is None:
        return None
    if outcome not in ("applied", "rejected", "failed_rolled_back", "failed_partial"):
        raise ValueError(outcome)
    return outcome, _read_report(told["report"]), dict(told["after"])


def _read_page(told: Mapping[str, Any]) -> DiffPage:
    return DiffPage(str(told["text"]), int(told["cursor"]), int(told["total"]))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "open": dict,
    "plan": _read_plan,
    "plan_undo": _read_plan,
    "diff": _read_page,
    "stage": dict,
    "install": _read_report,
    "restore": _read_report,
    "finish": _read_report,
    "settle": _read_settled,
}
