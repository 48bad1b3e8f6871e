"""One authorised request for a mutation, and the fingerprint that says whether two are the same."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from codespace.contract import Caller, Workspace
from codespace.errors import Refusal

_NOT_PART_OF_IDENTITY: Final = frozenset({"wait_seconds", "work_id"})
# How long to wait and what to account it to do not change what would be done.
_LONG_CHARACTERS: Final = 65_536
# A text over this (a patch, stdin) counts by its hash: escaping 8 MiB as JSON takes 60 ms, hashing it 17 ms.


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request: what it asks for, of which workspace, under which key."""

    tool: str
    workspace: Workspace
    arguments: Mapping[str, Any]
    """All arguments with defaults filled in, workspace_id included. Plain JSON values."""
    fingerprint: str
    caller: Caller

    @property
    def operation_key(self) -> str | None:
        return self.arguments.get("operation_key")

    @property
    def work_id(self) -> str | None:
        return self.arguments.get("work_id")


class Fingerprints:
    """Turns requests into keyed digests. The secret stays in the database, so that a digest in a
    log or an exported ledger cannot be matched against guessed patches or commands."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, tool: str, workspace: Workspace, arguments: Mapping[str, Any], *, rooted: bool = True) -> str:
        """Return the hex HMAC over tool, workspace and arguments (without wait_seconds and work_id).

        The root is part of the workspace: daemons that share a database may give one id to different directories,
        and what was done or shown in one of them says nothing of the other. Without it (`rooted`) it is as rows of
        before have it.
        """
        identity = {name: _short(value) for name, value in arguments.items() if name not in _NOT_PART_OF_IDENTITY}
        named = [tool, workspace.id, *([workspace.root] if rooted else []), identity]
        text = json.dumps(named, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hmac.new(self._secret, text.encode("ascii"), hashlib.sha256).hexdigest()

    async def take(self, tool: str, workspace: Workspace, arguments: Mapping[str, Any], *, rooted: bool = True) -> str:
        """Return the same; on a thread where a long text would keep the event loop from others."""
        work = partial(self.of, tool, workspace, arguments, rooted=rooted)
        return await trio.to_thread.run_sync(work) if any(map(_is_long, arguments.values())) else work()


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > _LONG_CHARACTERS


def _short(value: Any) -> Any:
    if not _is_long(value):
        return value
    return {"sha256": hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()}


def require_same(
    request: Request, fingerprint: str, *, operation_id: str | None = None, approval_id: str | None = None
) -> None:
    """Refuse a key that names another request already.

    Raises: Refusal OPERATION_KEY_CONFLICT.
    """
    if request.fingerprint != fingerprint:
        raise Refusal(
            "OPERATION_KEY_CONFLICT",
            "This operation_key was used for a request with other arguments or in another directory; nothing was done.",
            operation_id=operation_id,
            approval_id=approval_id,
        )
