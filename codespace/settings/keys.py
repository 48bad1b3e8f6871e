"""Every key of the configuration file: its kind, its default and what it means.

Validation and docs/settings.md both come from these tables, so that neither can know a key that
the other does not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from codespace import limits
from codespace.contract import Domain
from codespace.settings import kinds
from codespace.settings.fault import SettingsError, shown, unknown_key
from codespace.settings.kinds import Kind
from codespace.settings.patterns import PATTERN


@dataclass(frozen=True, slots=True)
class Key:
    """One row of docs/settings.md."""

    kind: Kind
    default: str
    """As the documentation says it; the value itself stands in the type that the key fills."""
    meaning: str


_LABEL: Final = r"[^\W_]([^\W_]|-)*(?<!-)"
_HOST: Final = rf"(\*|(\*\.)?{_LABEL}(\.{_LABEL})*\.?)"
_HOST_NAME: Final = kinds.text("host name", _HOST, "a host name, `*.` and a name, or `*`")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# The last part of what inet_aton and browsers take for an address.
_ADDRESS_TEXT: Final = kinds.text("address", r"[0-9A-Fa-f.:]{2,45}", "an IPv4 or IPv6 address")
_PORT: Final = kinds.whole("port", 1, 65_535)


def _host(key: str, value: object) -> str:
    """Return a host name as it travels: lower case, no dot at the end, other letters as IDNA (`xn--`)."""
    text: str = _HOST_NAME.check(key, value).lower().removesuffix(".")
    if text.isascii():
        return text
    import idna  # 20 ms, for the few lists that need it

    try:
        wild, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
        return wild + idna.encode(name, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise SettingsError(key, f"`{shown(text)}` is no internationalised name.", "Write it as `xn--...`.") from None


def _domain(key: str, value: object) -> Domain:
    if isinstance(value, str):
        host, colon, port = value.partition(":")
        if colon and not re.fullmatch(r"[0-9]{1,5}", port):
            raise SettingsError(key, f"`{shown(value)}` has no port after the colon.", "Write `name` or `name:443`.")
        return _admitting(key, Domain(_host(key, host), _PORT.check(key, int(port)) if colon else None))
    entry = kinds.table(key, value)
    for name in entry:
        if name not in ("host", "port", "address"):
            raise unknown_key(key, name, ("host", "port", "address"))
    if "host" not in entry:
        raise SettingsError(f"{key}.host", "It is missing.", "Name the host that is allowed.")
    return _admitting(
        key,
        Domain(
            _host(f"{key}.host", entry["host"]),
            _PORT.check(f"{key}.port", entry["port"]) if "port" in entry else None,
            _address(f"{key}.address", entry["address"]) if "address" in entry else None,
        ),
    )


def _admitting(key: str, domain: Domain) -> Domain:
    """Refuse what the proxy would let nothing through for: what ends in a number is an address to it, and no name."""
    if _NUMBER.fullmatch(domain.host.rpartition(".")[2]) is None:
        return domain
    try:
        address = str(ipaddress.ip_address(domain.host))
    except ValueError:
        raise SettingsError(
            key, f"`{shown(domain.host)}` ends in a number and is no address.", "Use a name, or pin an address."
        ) from None
    if domain.address is None:
        port = f', "port": {domain.port}' if domain.port is not None else ""
        pin = f'{{"host": "{address}"{port}, "address": "{address}"}}'
        raise SettingsError(key, f"`{address}` is an address, which only a pin lets through.", f"Write `{pin}`.")
    return domain


def _address(key: str, value: object) -> str:
    text: str = _ADDRESS_TEXT.check(key, value)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise SettingsError(key, f"`{shown(text)}` is no address.", "Use an IPv4 or IPv6 address.") from None
    return text


def _variables(key: str, value: object) -> Mapping[str, str]:
    name_kind = kinds.text("name", r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and `_` as the name of a variable")
    value_kind = kinds.text("text", r"[^\x00]*", "a text without NUL, numbers in quotes too")
    return {
        name_kind.check(key, name): value_kind.check(f"{key}.{name}", entry)
        for name, entry in kinds.table(key, value).items()
    }


LIMITS: Final[Mapping[str, Key]] = {
    "processes": Key(kinds.whole("count"), "16", "Most commands that run at once."),
    "pids": Key(
        kinds.whole("count", 1, limits.PIDS_MAXIMUM),
        str(limits.SANDBOX_PIDS),
        "Most processes and threads of one command: by a cgroup, else by the sandbox's own pid_max (from "
        f"{limits.SANDBOX_PIDS_MINIMUM} on) or, where the daemon is not root, by its user namespace.",
    ),
    "memory_bytes": Key(kinds.whole("bytes"), "none", "Most memory of a command: by a cgroup, else in each process."),
    "cpu_seconds": Key(kinds.seconds(), "none", "Most processor time of each process of a command."),
    "tmp_bytes": Key(
        kinds.whole("bytes"),
        str(limits.SANDBOX_TMP_BYTES),
        "Size of a sandboxed command's /tmp, /dev/shm and home, each; it is memory.",
    ),
    "open_files": Key(
        kinds.whole("count"),
        "none",
        "Most open files of each process of a command; half of the daemon's own (`ulimit -Hn`) at most.",
    ),
    "file_bytes": Key(
        kinds.whole("bytes"),
        str(limits.FILE_BYTES),
        "Largest file that is read or patched. Where it is set, also the largest that a command may write; the default "
        "does not limit commands.",
    ),
    "patch_bytes": Key(kinds.whole("bytes"), str(limits.PATCH_BYTES), "Largest patch text."),
    "read_bytes": Key(kinds.whole("bytes"), str(limits.READ_BYTES), "Most content of one read."),
}


def fields(where: str, value: object, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the checked values of the table `value`, only those that are written."""
    written = kinds.table(where, value)
    for name in written:
        if name not in keys:
            raise unknown_key(where, name, keys)
    prefix = f"{where}." if where else ""
    return {name: keys[name].kind.check(f"{prefix}{name}", entry) for name, entry in written.items()}


def _table(shape: str, check: Callable[[str, object], Any]) -> Kind:
    return Kind(shape, check)


WORKSPACE: Final[Mapping[str, Key]] = {
    "root": Key(
        kinds.absolute(), "required", "The directory. It must exist; links in its own path are resolved once, at start."
    ),
    "profile": Key(
        kinds.choice("read-only", "workspace-write"),
        "read-only",
        "`read-only`: read, find and search. `workspace-write`: also patches and commands.",
    ),
    "network": Key(
        kinds.choice("restricted", "enabled"),
        "restricted",
        "`restricted`: a sandboxed command has no network. `enabled`: it reaches what `allowed_domains` lists, through "
        "a proxy; commands are refused (SANDBOX_UNAVAILABLE) where the sandbox cannot be had.",
    ),
    "allowed_domains": Key(
        kinds.listing(_table("`name`, `*.name`, `name:port` or `{host, port, address}`", _domain)),
        "none",
        'What an `enabled` network may reach; `["*"]` for everything.',
    ),
    "approvals": Key(
        kinds.choice("off", "confirm", "operator"),
        "off",
        "`confirm` holds patches, undos and commands until the caller grants them: a pause, not a boundary. `operator` "
        "holds them, and later input, until you do, in the console, on the command line or at `/inbox`; one such "
        "workspace makes the sandbox required and a database file binding for all.",
    ),
    "environment": Key(
        kinds.text("id of an environment", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "the id of an environment"),
        "host",
        "Where commands run; one of `environments`.",
    ),
    "occupancy": Key(
        kinds.choice("exclusive", "shared"),
        "exclusive",
        "`shared`: a live command blocks neither patches nor other commands.",
    ),
    "timeout_seconds": Key(
        kinds.seconds(), f"{limits.TIMEOUT_SECONDS:g}", "A command's time limit where the caller names none."
    ),
    "max_timeout_seconds": Key(
        kinds.seconds(), f"{limits.MAX_TIMEOUT_SECONDS:g}", "The longest time limit that a caller may ask for."
    ),
    "env": Key(_table("table of text", _variables), "empty", "Variables that every command gets, over the caller's."),
    "limits": Key(_table("table", lambda key, value: fields(key, value, LIMITS)), "see below", "See below."),
    "sandbox": Key(
        kinds.choice("optional", "required"),
        "optional",
        "Commands run in the Linux sandbox wherever a probe has shown that it holds. Where it does not, `optional` "
        "runs them without one and every result says so; `required` refuses them (SANDBOX_UNAVAILABLE).",
    ),
    "allow_degraded": Key(
        kinds.flag(),
        "false",
        "Where there is no whole sandbox, lock commands in by Landlock alone: weaker, and results say `landlock`. "
        "Not where the network is `enabled` or the sandbox `required`.",
    ),
    "allow_submounts": Key(
        kinds.flag(), "false", "Let the file tools and sandboxed commands enter other mounts below the root."
    ),
    "git": Key(
        kinds.choice("read_only", "commit", "unprotected"),
        "read_only",
        "What sandboxed commands may do to git directories: `read_only` nothing, `commit` add and commit but not "
        "change hooks and configuration; patches to them are refused with both. `unprotected` lets both change them.",
    ),
    "readable_paths": Key(
        kinds.listing(kinds.absolute()),
        "none",
        "More that sandboxed commands may read: a toolchain under a home or /opt. Links in it are resolved at the "
        "start: inside it has its real name alone, which PATH must say too. Sockets in it can be connected to.",
    ),
    "hidden_paths": Key(
        kinds.listing(PATTERN),
        "none",
        "Patterns, as in .gitignore (one for each kind of file: it knows no `{a,b}`), of files that do not exist for "
        "the file tools and cannot be read in the sandbox. Without the sandbox a command can read them.",
    ),
    "protected_paths": Key(
        kinds.listing(PATTERN),
        "built-in list",
        "Patterns of files that patches and sandboxed commands may not change; replaces the list.",
    ),
}

ENVIRONMENT: Final[Mapping[str, Key]] = {
    "kind": Key(
        kinds.choice("host", "linux-container"),
        "required",
        "`linux-container` is registered only: no command runs in it, and every tool says so.",
    ),
}

TOP: Final[Mapping[str, Key]] = {
    "results": Key(
        kinds.choice("text", "structured", "both"),
        "both",
        "Which form of a result a client gets: for a model, a program. Clients that show their model only the form for "
        "programs (Claude Code, Codex) are sent `text` for `both`.",
    ),
    "tools": Key(
        kinds.listing(kinds.choice("files", "exec", "approvals", "work")),
        "none",
        "Groups of tools to show always. `files` and `exec` are; `approvals` is where a workspace holds, `work` where "
        "an operator token is set or the console is served.",
    ),
    "approval_expiry_seconds": Key(
        kinds.seconds(),
        f"{limits.APPROVAL_EXPIRY_SECONDS:g}",
        "How long a hold may wait, for its grant and for its use together.",
    ),
    "snapshot_bytes": Key(
        kinds.whole("bytes", 0), str(limits.SNAPSHOT_BYTES), "Most bytes of what undo needs; the oldest go first."
    ),
    "snapshot_age_seconds": Key(
        kinds.seconds(), f"{limits.SNAPSHOT_AGE_SECONDS:.0f}", "How long what undo needs is kept."
    ),
    "spool_bytes": Key(
        kinds.whole("bytes", 0), str(limits.SPOOL_BYTES), "Most output of all commands of one daemon on disk."
    ),
    "process_spool_bytes": Key(
        kinds.whole("bytes", 0),
        str(limits.PROCESS_SPOOL_BYTES),
        "Most output of one command on disk: its beginning and its end where it is more. `0`: only the last "
        f"{limits.OUTPUT_RING_BYTES // 1024} KiB, in memory.",
    ),
    "retention_seconds": Key(
        kinds.seconds(), f"{limits.RETENTION_SECONDS:g}", "How long an ended process stays readable."
    ),
    "bwrap_path": Key(kinds.absolute(), "the newest found", "The bubblewrap to use for commands and searches."),
    "rg_path": Key(kinds.absolute(), "the newest found", "The ripgrep to use."),
}
