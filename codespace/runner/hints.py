"""Why a sandboxed command may have failed, guessed from the well-known words of its own output.

A guess, and worded as one: the words are the command's, which may print what it likes. It decides nothing. That it
tried the network the kernel tells too, while it still waits for it without a word.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Sequence
from typing import Final

from codespace import limits
from codespace.contract import NetworkPolicy
from codespace.display import display
from codespace.sandbox.inventory.git import RULING
from codespace.sandbox.plan import HOME

# The names of error codes in their own case, and each word with its borders: many a `ModuleNotFoundError` is none.
_DIRECTLY: Final = (
    rb"\bcould not resolve host(?:name)?\b|\bfailure in name resolution\b|\bname or service not known\b"
    rb"|\bnetwork is unreachable\b|(?-i:\b(?:EAI_AGAIN|ENETUNREACH)\b)"
)
_NO_DOOR: Final = re.compile(_DIRECTLY, re.IGNORECASE)
_NO_NETWORK: Final = re.compile(
    _DIRECTLY + rb"|\bcould not resolve proxy\b|\bno address associated with (?:host)?name\b|\bnodename nor servname\b"
    rb'|\bfailed to lookup address information\b|\bdns error"?[:,]|(?-i:\bENOTFOUND\b|\bName does not resolve\b)',
    re.IGNORECASE,
)
_HERE: Final = re.compile(
    rb"(?:(?<![\d.])127\.0\.0\.1|\blocalhost|(?<![\w:])::1)\b(?!\D{0,8}3128\b)",  # 3128 is the proxy's
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    rb"\bconnection refused\b|(?-i:\bECONNREFUSED\b)|\b(?:could ?n[o']t|failed to|unable to) connect\b", re.IGNORECASE
)
_APART_BYTES: Final = 120  # most between the two in a line that says that there is no server
_GIT: Final = re.compile(rb"\.git(?![\w-])", re.IGNORECASE)
_RULING: Final = re.compile(
    rb"\.git/(?:worktrees/[^/\n]+/)?(?:%b)(?![\w-])" % b"|".join(re.escape(name.encode()) for name in RULING),
    re.IGNORECASE,
)
_NOBODY: Final = re.compile(rb"^(?:(?:Author|Committer) identity unknown|\*\*\* Please tell me who you are\.)$")
_NO_FILE: Final = re.compile(
    rb"^(?:fatal: cannot hash |error: [^\n]+: (?:unsupported file type|can only add regular files, symbolic links))"
)
_UNWRITABLE: Final = re.compile(
    rb"read-only file system|device or resource busy|(?-i:\b(?:EROFS|EBUSY)\b)", re.IGNORECASE
)
_NUMBERED: Final = re.compile(rb": (?:line )?\d{1,6}: .", re.DOTALL)
_NOT_FOUND: Final = re.compile(rb": (?:command )?not found$")
"""Behind the first of those before it: from each, one pattern of both would look through the rest of the line."""
_MISSING: Final = re.compile(
    rb": command not found(?:: \S+)?$"
    rb"|^(?:(?:/usr/bin/)?env|setsid): [^\n]+: No such file or directory$"
)
_NO_SCRIPT: Final = re.compile(
    rb": \d{1,6}: (?:exec: )?[^\n:/]*/[^\n:]*: not found$|cannot execute: required file not found$"
    rb"|bad interpreter: No such file or directory$"
    rb"|^(?:(?:/usr/bin/)?env|setsid): [^\n:/]*/[^\n:]*: No such file or directory$"
)
_CARRIAGE_RETURN: Final = re.compile(
    rb"\^M: bad interpreter: No such file or directory$"
    rb"|^(?:/usr/bin/)?env: [^\n:]*\\r\W{1,3}: No such file or directory$"
)
_MISSING_BYTES: Final = 400  # the longest line that is looked at for it: the time is its square
_READ_ONLY: Final = re.compile(rb"read-only file system|(?-i:\bEROFS\b)", re.IGNORECASE)
_DENIED: Final = rb"operation not permitted|\bEPERM\b"
_FULL: Final = re.compile(rb"(?<![\w/.-])(?:/tmp|/dev/shm|%b)\b" % re.escape(HOME.encode()))

RESTRICTED: Final = (
    "It seems to have tried the network, and there is none: this workspace's network is `restricted`. What it needs "
    "from outside must be there before, or the operator sets `network` to `enabled` and lists hosts in "
    "`allowed_domains`."
)
BESIDE_THE_PROXY: Final = (
    "It seems to have tried the network directly. The only way out is the proxy that http_proxy and https_proxy name; "
    "there is no DNS inside, and no other protocol."
)
_PERHAPS: Final = (
    "What only looks up its own name, as many a server does, goes on without; what waits for an answer gets none."
)
PERHAPS_RESTRICTED: Final = (
    "Something in it has asked the network, and there is none: this workspace's network is `restricted`. "
    f"{_PERHAPS} What it needs from outside must be there before, or the operator sets `network` to `enabled` and "
    "lists hosts in `allowed_domains`."
)
PERHAPS_BESIDE: Final = (
    "Something in it has asked the network directly. The only way out is the proxy that http_proxy and https_proxy "
    f"name; there is no DNS inside, and no other protocol. {_PERHAPS}"
)
LOOPBACK: Final = (
    "It seems to have looked for a server on 127.0.0.1. Loopback is each command's own here: a server of another "
    "command or of the host is not reached. Start it and what asks it in one command (`sh -c`)."
)
GIT: Final = (
    "`.git` is read-only for commands here (add, commit and checkout do not work; log, status and diff do, but for "
    "committed files that are hidden). "
    "Apply changes with apply_patch and leave committing to the operator, who may set `git` to `commit`."
)
NOT_COMMITTING: Final = (
    "`.git` of this repository is read-only although commands may commit here: git would write through a link in it, "
    "or it has too many directories to be looked through for one, or its working tree is set elsewhere "
    "(`core.worktree`), or it has no `hooks` or `config`, or some of its branches are "
    "hidden. The operator can remove what is in the way."
)
STAYS: Final = (
    "Commands may commit here, but what decides which programs git runs stays read-only (configuration, hooks, the "
    "repositories of submodules). Leave such a change to the operator: only their setting `git: unprotected` lets "
    "commands make it."
)
HIDDEN: Final = (
    "It seems that git tried to read a committed file that is hidden from commands here (the operator's "
    "`hidden_paths`): it stands in status as modified. Leave it out (`git diff -- . ':!PATH'`, and so with add and "
    "commit). Git passes it by once the operator has run `git update-index --skip-worktree PATH`."
)
IDENTITY: Final = (
    "Git does not know who commits: HOME is empty here and gone after the run, also what `git config --global` writes "
    "there. Set GIT_AUTHOR_NAME, GIT_AUTHOR_EMAIL, GIT_COMMITTER_NAME and GIT_COMMITTER_EMAIL in `env`; the operator "
    "can set them in their `env`, or `user.name` and `user.email` in the repository."
)
MISSING: Final = (
    "It seems that a program was not found. Commands see /usr, the workspace and the operator's `readable_paths`: what "
    "is installed elsewhere on this machine (in a home, in /opt) the operator can add there and to PATH in `env`."
)
NO_SCRIPT: Final = (
    "It seems that a script is not where it was looked for, or that the interpreter in its first line is not. If that "
    "line ends in CRLF, the carriage return is taken for a part of the interpreter's name: give the file LF line "
    "endings. An interpreter outside of /usr and the workspace the operator can add to `readable_paths`."
)
CARRIAGE_RETURN: Final = (
    "The first line of the script ends in CRLF, and the carriage return is taken for a part of the interpreter's name: "
    "give the file LF line endings."
)
READ_ONLY: Final = (
    "Only the workspace (but for its protected paths), /tmp and HOME can be written in the sandbox; HOME and /tmp are "
    "empty and gone after the run."
)
MODES: Final = (
    "It seems that a mode or an owner was set that cannot be had here. Set-user-id and set-group-id bits are refused, "
    "also where a mode keeps one that a directory has from its parent (`chmod g-s` takes it off), and there are no "
    "other owners. Copy without `-a` and `-p`; unpack with `--no-same-owner --no-same-permissions`."
)
TRACED: Final = (
    "It seems to have tried to trace a process (strace, gdb) or to make a namespace (unshare, bwrap, a container, a "
    "browser's own sandbox): neither can be had in the sandbox. Do without (a browser takes `--no-sandbox`), or ask "
    "the operator to run it."
)
FULL: Final = (
    "It seems that /tmp, /dev/shm or HOME is full: in the sandbox each is memory, as much as the operator's "
    "`limits.tmp_bytes`. Write what is large into the workspace (`TMPDIR` and most caches can be set in `env`)."
)
PROTECTED: Final = (
    "Some of the workspace is protected: commands can read it, but not write, replace or remove it, as editors, agents "
    "or git run what is in it. Leave it alone, or ask the operator to change it. It is: "
)

_KINDS: Final = (
    (
        MODES,
        re.compile(rb"chang(?:e|ing) (?:mode|permissions|ownership|group)|preserving permissions", re.IGNORECASE),
        re.compile(rb"%b|invalid argument" % _DENIED, re.IGNORECASE),
    ),
    (TRACED, re.compile(rb"ptrace|namespace|unshare", re.IGNORECASE), re.compile(_DENIED, re.IGNORECASE)),
    (FULL, _FULL, re.compile(rb"no space left on device|\bENOSPC\b", re.IGNORECASE)),
)
"""A hint, and the two that a line has where it is given."""


def look(
    tail: bytes, *, network: NetworkPolicy, git: str, read_only: Sequence[str] = (), tried_network: bool = False
) -> list[str]:
    """Return hints for the end of a command's output.

    Args:
        tail: The last limits.HINT_BYTES of it, as a rule.
        network, git: The workspace's settings.
        read_only: What of the workspace is, relative to the root.
        tried_network: Whether the kernel has counted what had no way out; of a command that does not say it itself.
    """
    return list(_look(tail[-limits.HINT_BYTES :], network, git, tuple(read_only), tried_network))


@functools.lru_cache(maxsize=2 * limits.RETAINED_PROCESSES)  # a list of all asks of each anew, and nothing has changed
def _look(
    tail: bytes, network: NetworkPolicy, git: str, read_only: tuple[str, ...], tried_network: bool
) -> tuple[str, ...]:
    hints = []
    if (_NO_NETWORK if network == "restricted" else _NO_DOOR).search(tail):
        hints.append(RESTRICTED if network == "restricted" else BESIDE_THE_PROXY)
    elif tried_network:
        hints.append(PERHAPS_RESTRICTED if network == "restricted" else PERHAPS_BESIDE)
    if _says_no_server(tail):
        hints.append(LOOPBACK)
    lines = tuple(dict.fromkeys(tail.splitlines()))  # each once: a command may say the same a thousand times
    if b"not found" in tail or b"No such file" in tail:
        hints += dict.fromkeys(filter(None, map(_missing, lines)))
    hints += [told for told, named, said in _KINDS if any(named.search(line) and said.search(line) for line in lines)]
    if any(map(_NO_FILE.search, lines)):
        hints.append(HIDDEN)
    if git != "read_only" and any(map(_NOBODY.search, lines)):
        hints.append(IDENTITY)
    unwritable = list(filter(_UNWRITABLE.search, lines))
    about_git = [] if git == "unprotected" else list(filter(_names_git, unwritable))
    if about_git and git == "read_only":
        hints.append(GIT)
    elif about_git:
        is_closed = any(path.endswith(".git") for path in read_only)
        hints.append(NOT_COMMITTING if is_closed and not all(map(_RULING.search, about_git)) else STAYS)
    elif unwritable:
        protected = [path for path in read_only if ".git" not in path.split("/")]
        hints += _unwritable(b"\n".join(unwritable), protected)
    return tuple(hints)


def _unwritable(said: bytes, protected: Sequence[str]) -> list[str]:
    """Return hints for lines that say that something cannot be written: by the names in them, which may be short."""
    named = [path for path in protected if _is_named(posixpath.basename(path).encode("utf-8", "surrogateescape"), said)]
    # Who replaces a protected file may name a new one beside it only; nothing else in a sandbox is as often busy.
    if named or (protected and not _READ_ONLY.search(said)):
        shown = [display(path, limit=200) for path in (named or protected)[: limits.SANDBOX_SHOWN]]
        return [f"{PROTECTED}{', '.join(shown)}{'' if len(shown) == len(named or protected) else ', ...'}."]
    return [READ_ONLY] if _READ_ONLY.search(said) else []


def _is_named(name: bytes, said: bytes) -> bool:
    return name in said and re.search(rb"(?<![\w.-])%b(?![\w-])" % re.escape(name), said) is not None


def _says_no_server(said: bytes) -> bool:
    """Return whether a line has both close together; each is looked for once, as a line may have one very often."""
    if not _REFUSED.search(said):
        return False
    spans = [(*found.span(), which) for which in (_HERE, _REFUSED) for found in which.finditer(said)]
    return any(
        which is not other and start - end <= _APART_BYTES and b"\n" not in said[end:start]
        for (_, end, which), (start, _, other) in itertools.pairwise(sorted(spans, key=lambda span: span[:2]))
    )


def _names_git(line: bytes) -> bool:
    """Return whether a line says that something of a git directory cannot be written.

    In two steps, as one pattern of both would look through the rest of a line from each `.git` in it: seconds, in which
    nothing else of the daemon's goes on.
    """
    named = _GIT.search(line)
    return named is not None and _UNWRITABLE.search(line, named.end()) is not None


def _missing(line: bytes) -> str | None:
    """Return the hint for a line that is what shells and `env` say of a program that is not there."""
    if len(line) > _MISSING_BYTES:
        return None
    if _CARRIAGE_RETURN.search(line):
        return CARRIAGE_RETURN
    if _NO_SCRIPT.search(line):
        return NO_SCRIPT
    numbered = _NUMBERED.search(line)
    return MISSING if (numbered and _NOT_FOUND.search(line, numbered.end())) or _MISSING.search(line) else None
