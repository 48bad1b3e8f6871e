"""What a verb found on disk, in the words of the contract's PatchReport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codespace.errors import Refusal


def report(*, kept: Sequence[str] = (), rescued: Sequence[str] = (), refusal: Refusal | None = None) -> dict[str, Any]:
    """Return a report as plain JSON values; clean where nothing was kept and nothing refused."""
    return {
        "clean": not kept and refusal is None,
        "kept": list(kept),
        "rescued": list(rescued),
        "refusal": None if refusal is None else refusal.body(),
    }
