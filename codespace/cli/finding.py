"""One line of what `codespace doctor` reports; whoever finds something says it in this shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "limit", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`limit`: works, with less than the full promise; said in every answer too."""

    verdict: Verdict
    subject: str
    found: str
    fix: str = ""
