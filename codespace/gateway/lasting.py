"""What of an outcome may be stored: codes, hashes, names and times; never patch text, argv or output.

The caller who is answered now gets the whole; a replay gets this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from codespace.errors import CODES, Refusal

_QUOTES_THE_REQUEST: Final = frozenset({"INVALID_PATCH", "INVALID_COMMAND", "PROCESS_SPAWN_FAILED"})
# Their messages and details explain by quoting the patch, the file or the command.
_PLAIN_DETAILS: Final = frozenset({"status", "changes", "replayed", "path", "chunk", "already_applied", "code"})
_OF_THE_ANSWER: Final = frozenset({"diff", "chunk", "encoding", "stream", "cursor", "eof", "command"})
# Journal and ring have diff and output; the database never does.


def refusal_body(refusal: Refusal) -> dict[str, Any]:
    """Return the error body to store for a refusal."""
    body = refusal.body()
    if refusal.code in _QUOTES_THE_REQUEST:
        body["message"] = f"{CODES[refusal.code].meaning} The explanation was told once and is not kept."
        body["next_step"] = CODES[refusal.code].next_step
        _keep_plain(body)
    cause = (body.get("details") or {}).get("cause")
    if isinstance(cause, Mapping) and cause.get("code") in _QUOTES_THE_REQUEST:
        body["details"] = {**body["details"], "cause": refusal_body(Refusal.from_body(cause))}
    return body


def repeated(body: Mapping[str, Any]) -> Refusal:
    """Return a stored refusal as its key repeats it: for good, so trying again needs another key."""
    refusal = Refusal.from_body(body)
    refusal.retryable = False
    refusal.next_step = f"This operation_key repeats this answer; use a new one to try again. {refusal.next_step}"
    refusal.details = (refusal.details or {}) | {"replayed": True}
    return refusal


def taking(operation_key: str | None, refusal: Refusal) -> Refusal:
    """Return a refusal that is recorded under a key, saying that the next call needs another one."""
    if operation_key is not None:
        refusal.next_step += " Use a new operation_key for it: this one is taken by the call that was refused."
        refusal.retryable = False  # the same call would only be told the same
    return refusal


def result(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result to store for an answer."""
    return {name: value for name, value in answer.items() if name not in _OF_THE_ANSWER}


def _keep_plain(body: dict[str, Any]) -> None:
    details = {name: value for name, value in body.pop("details", {}).items() if name in _PLAIN_DETAILS}
    if details:
        body["details"] = details
