"""How a patch may end: the events that record it from each state, and the refusal that tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from codespace.contract import PatchReport
from codespace.digest import ABSENT
from codespace.errors import Refusal
from codespace.gateway.operation import Operation

FOUND: Final[Mapping[str, str]] = {
    "applied": "found_applied",
    "failed_rolled_back": "found_rolled_back",
    "failed_partial": "found_partial",
    "rejected": "found_rolled_back",  # the crash came before the first rename; nothing was written
}
"""The event by which an unknown patch becomes what journal and hashes say."""

FINAL: Final = {status: status for status in FOUND} | {"rejected": "failed_rolled_back"}
"""The final state that each of them is recorded as: `rejected` is said only of what was never tried."""

_BEHIND_FIRST_RENAME: Final = ("applying", "verifying", "restoring")

REJECTED: Final[Mapping[str, tuple[str, ...]]] = {
    "minted": ("refused",),
    "planning": ("refused",),
    "snapshotting": ("refused",),
    # Only where the record of the last step before the first rename was thought lost and was not.
    "applying": ("sight_lost", "found_rolled_back"),
}
"""The ways to the end of a patch of which nothing was written."""


def found(status: str) -> dict[str, tuple[str, ...]]:
    """Return the ways to what journal and hashes say."""
    return dict.fromkeys(_BEHIND_FIRST_RENAME, ("sight_lost", FOUND[status])) | {"unknown": (FOUND[status],)}


def taken_back(*, clean: bool) -> dict[str, tuple[str, ...]]:
    """Return the ways to the end of a patch that was put back, wholly or in part."""
    return found("failed_rolled_back" if clean else "failed_partial") | {
        "restoring": ("restored" if clean else "third_party_kept",)
    }


def left_behind(changes: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """Return the version of every path that an applied patch left."""
    expected = {str(change["from_path"]): ABSENT for change in changes if change.get("from_path")}
    return expected | {str(change["path"]): str(change["after_version"]) for change in changes}


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


def unseen(operation_id: str) -> Refusal:
    """Return the refusal for a patch whose end cannot be seen now."""
    return Refusal(
        "OUTCOME_UNKNOWN",
        "The patch was cut off before its end could be seen. Its journal is kept; each file is whole.",
        operation_id=operation_id,
    )


def unsettled(operation: Operation) -> Refusal:
    """Return the refusal for a replay of a patch whose end is not recorded."""
    refusal = unseen(operation.id)
    refusal.message = f"The patch is recorded as {operation.state!r}; its end is not recorded yet."
    refusal.details = {
        "status": "unknown",
        "changes": [dict(change) for change in operation.changes],
        "replayed": True,
    }
    return refusal


def applied_unrecorded(cause: Mapping[str, Any]) -> Refusal:
    """Return the refusal for a patch that is on disk, read back, while the database does not take that."""
    return Refusal(
        "STORE_UNAVAILABLE",
        "Every file is as the patch leaves it, read back from disk; only the database could not record that. "
        "It is tried again for as long as the daemon runs, and at its next start.",
        next_step="Do not send the patch again without the same operation_key. Ask operation_status; the operator "
        "should look at the disk of the database.",
        retryable=False,
        details={"cause": dict(cause), "recorded": False},
    )
