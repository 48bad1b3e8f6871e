"""Why a sandboxed command may have failed, guessed from the well-known words of its own output.

A guess, and worded as one: the words are the command's, which may print what it likes. It decides nothing. That it
tried the network the kernel tells too, while it still waits for it without a word.
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
_HERE: Final = rb"(?:127\.0\.0\.1|localhost|::1)\b(?!\D{0,8}3128\b)"  # 3128 is the proxy's
_REFUSED: Final = rb"(?:connection refused|ECONNREFUSED|could ?n[o']t connect|failed to connect|unable to connect)"
_NO_SERVER: Final = re.compile(
    rb"%b[^\n]{0,120}%b|%b[^\n]{0,120}%b" % (_HERE, _REFUSED, _REFUSED, _HERE), re.IGNORECASE
)
# Within a bounded stretch of a line: one that repeats half of it must not take long.
_GIT: Final = re.compile(rb"\.git\b", re.IGNORECASE)
_UNWRITABLE: Final = re.compile(rb"read-only file system|device or resource busy", re.IGNORECASE)
_MISSING: Final = re.compile(
    rb": (?:line )?\d{1,6}: [^\n]+: (?:command )?not found$|: command not found(?:: \S+)?$"
    rb"|required file not found$|bad interpreter: No such file or directory$"
    rb"|^(?:(?:/usr/bin/)?env|setsid): [^\n]+: No such file or directory$"
)
_MISSING_BYTES: Final = 400  # the longest line that is looked at for it: the time is its square
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
LOOPBACK: Final = (
    "It seems to have looked for a server on 127.0.0.1. Loopback is each command's own here: a server of another "
    "command or of the host is not reached. Start it and what asks it in one command (`sh -c`)."
)
GIT: Final = (
    "`.git` is read-only for commands here (status, log and diff work; add, commit and checkout do not). "
    "Apply changes with apply_patch and leave committing to the operator, who may set `git` to `commit`."
)
NOT_COMMITTING: Final = (
    "`.git` of this repository is read-only although commands may commit here: git would write through a link in it, "
    "or it has too many directories to be looked through for one, or its working tree is set elsewhere "
    "(`core.worktree`), or it has no `hooks` or `config`, or some of its branches are "
    "hidden. The operator can remove what is in the way."
)
MISSING: Final = (
    "It seems that a program, or the interpreter in a script's first line, was not found. Commands see /usr, the "
    "workspace and the operator's `readable_paths`: what is installed elsewhere on this machine (in a home, in /opt) "
    "the operator can add there and to PATH in `env`."
)
READ_ONLY: Final = (
    "Only the workspace, /tmp and HOME can be written in the sandbox; HOME and /tmp are empty and gone after the run."
)


def look(tail: bytes, *, network: NetworkPolicy, git: str, tried_network: bool = False) -> list[str]:
    """Return hints for the end of a command's output.

    Args:
        tail: The last limits.HINT_BYTES of it, as a rule.
        network, git: The workspace's settings.
        tried_network: Whether the kernel has counted what had no way out.
    """
    tail = tail[-limits.HINT_BYTES :]
    hints = []
    if network == "restricted" and (tried_network or _NO_NETWORK.search(tail)):
        hints.append(RESTRICTED)
    elif network == "enabled" and (tried_network or _NO_DOOR.search(tail)):
        hints.append(BESIDE_THE_PROXY)
    if _NO_SERVER.search(tail):
        hints.append(LOOPBACK)
    lines = tail.splitlines()
    if any(map(_names_missing, lines)):
        hints.append(MISSING)
    if git != "unprotected" and any(map(_names_git, lines)):
        hints.append(GIT if git == "read_only" else NOT_COMMITTING)
    elif _READ_ONLY.search(tail):
        hints.append(READ_ONLY)
    return hints


def _names_git(line: bytes) -> bool:
    """Return whether a line says that something of a git directory cannot be written.

    In two steps, as one pattern of both would look through the rest of a line from each `.git` in it: seconds, in which
    nothing else of the daemon's goes on.
    """
    named = _GIT.search(line)
    return named is not None and _UNWRITABLE.search(line, named.end()) is not None


def _names_missing(line: bytes) -> bool:
    """Return whether a line is what shells and `env` say of a program that is not there."""
    return len(line) <= _MISSING_BYTES and _MISSING.search(line) is not None
