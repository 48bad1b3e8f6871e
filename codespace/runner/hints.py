"""Why a sandboxed command may have failed, guessed from the well-known words of its own output.

A guess, and worded as one: the words are the command's, which may print what it likes. It decides nothing.
"""

from __future__ import annotations

import re
from typing import Final

from codespace import limits
from codespace.contract import NetworkPolicy

_NO_NETWORK: Final = re.compile(
    rb"could not resolve (?:host|proxy)|name resolution|name or service not known|network is unreachable|ENOTFOUND"
    rb"|EAI_AGAIN|ENETUNREACH|no address associated|nodename nor servname|failed to lookup address"
    rb"|name does not resolve|dns error",
    re.IGNORECASE,
)
_NO_DOOR: Final = re.compile(
    rb"could not resolve host|name resolution|name or service not known|ENETUNREACH"
    rb"|network is unreachable|EAI_AGAIN",
    re.IGNORECASE,
)
_GIT: Final = re.compile(rb"\.git\b[^\n]*(?:read-only file system|device or resource busy)", re.IGNORECASE)
_READ_ONLY: Final = re.compile(rb"read-only file system|\bEROFS\b", re.IGNORECASE)

RESTRICTED: Final = (
    "It seems to have tried the network, and there is none: this workspace's network is `restricted`. What it needs "
    "from outside must be there before, or the operator sets `network` to `enabled` and lists hosts in "
    "`allowed_domains`."
)
BESIDE_THE_PROXY: Final = (
    "It seems to have tried the network directly. The only way out is the proxy that http_proxy and https_proxy name; "
    "there is no DNS inside, and no other protocol."
)
GIT: Final = (
    "`.git` is read-only for commands here (status, log and diff work; add, commit and checkout do not). "
    "Apply changes with apply_patch and leave committing to the operator, who may set `git` to `commit`."
)
READ_ONLY: Final = (
    "Only the workspace, /tmp and HOME can be written in the sandbox; HOME and /tmp are empty and gone after the run."
)


def look(tail: bytes, *, network: NetworkPolicy, git: str) -> list[str]:
    """Return hints for the end of a command's output.

    Args:
        tail: The last limits.HINT_BYTES of it, as a rule.
        network, git: The workspace's settings.
    """
    tail = tail[-limits.HINT_BYTES :]
    hints = []
    if network == "restricted" and _NO_NETWORK.search(tail):
        hints.append(RESTRICTED)
    elif network == "enabled" and _NO_DOOR.search(tail):
        hints.append(BESIDE_THE_PROXY)
    if git == "read_only" and _GIT.search(tail):
        hints.append(GIT)
    elif _READ_ONLY.search(tail):
        hints.append(READ_ONLY)
    return hints
