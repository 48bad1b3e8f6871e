"""One step that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the chain."""

    seq: int
    at: float
    """Wall clock, seconds since the epoch."""
    instance_id: str
    kind: str
    subject: str
    event: str
    source: str | None
    target: str | None
    reason: str
    details: Mapping[str, Any]
