"""Identifiers minted by the server: opaque, prefixed, unguessable. Knowing one grants nothing."""

from __future__ import annotations

import base64
import secrets
from typing import Final

OPERATION: Final = "op-"
PROCESS: Final = "proc-"
APPROVAL: Final = "appr-"
GRANT: Final = "grant-"
WORK: Final = "work-"
INTENT: Final = "int-"
INSTANCE: Final = "inst-"

_RANDOM_BYTES: Final = 15  # 120 bits: no collision and no guess; 24 base32 letters without padding


def mint(prefix: str) -> str:
    """Return a new identifier: the prefix and 24 lower-case letters and digits."""
    return prefix + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode("ascii").lower()
