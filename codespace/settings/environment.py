"""The environment variables: what each means, checked, as fields of the settings."""

from __future__ import annotations

import ipaddress
import os
import pwd
from collections.abc import Callable, Mapping
from typing import Any, Final

from codespace.settings import kinds
from codespace.settings.fault import SettingsError, near, shown
from codespace.settings.keys import Key

PREFIX: Final = "CODESPACE_"
_TOKEN: Final = kinds.text("text", r"[\x21-\x7e]+", "printable ASCII without spaces")
_HOST: Final = kinds.text("host name or address", r"[A-Za-z0-9.:-]+", "a host name or an address, such as `127.0.0.1`")
_ALLOWED: Final = kinds.text("host", r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?", "`name` or `name:port`")


def _number(kind: kinds.Kind, convert: Callable[[str], float]) -> kinds.Kind:
    """A variable is always text; here, and only here, a number is read out of one."""

    def check(key: str, value: object) -> Any:
        try:
            return kind.check(key, convert(str(value)))
        except ValueError:
            raise SettingsError(key, f"`{shown(value)}` is not a number.", "Use digits only.") from None

    return kinds.Kind(kind.shape, check)


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit()):  # int() would also take " 1_0"
        raise ValueError(text)
    return int(text)


def _folded(kind: kinds.Kind) -> kinds.Kind:
    return kinds.Kind(kind.shape, lambda key, value: kind.check(key, str(value).lower()))


def _hosts(key: str, value: object) -> tuple[str, ...]:
    return tuple(_ALLOWED.check(key, part.strip()).lower() for part in str(value).split(","))


def _database(key: str, value: object) -> str:
    return ":memory:" if value == ":memory:" else str(kinds.absolute().check(key, value))


VARIABLES: Final[Mapping[str, tuple[str, Key]]] = {
    "CODESPACE_CONFIG": (
        "config_path",
        Key(
            kinds.absolute(),
            "$XDG_CONFIG_HOME/codespace/config.toml, if it is there",
            "The configuration file, `.toml` or `.json`.",
        ),
    ),
    "CODESPACE_OPERATIONS_DB": (
        "database",
        Key(
            kinds.Kind("absolute path \\| `:memory:`", _database),
            "operations.sqlite in the state directory",
            "The database. In memory it forgets everything at the end.",
        ),
    ),
    "CODESPACE_STATE_DIR": (
        "state_dir",
        Key(
            kinds.absolute(),
            "$XDG_STATE_HOME/codespace",
            "Database, journals, output and the generated token; made 0700.",
        ),
    ),
    "CODESPACE_HTTP_HOST": ("http_host", Key(_HOST, "127.0.0.1", "Where HTTP door and console listen.")),
    "CODESPACE_HTTP_PORT": (
        "http_port",
        Key(_number(kinds.whole("port", 0, 65_535), _digits), "8787", "Its port; 0 lets the system choose one."),
    ),
    "CODESPACE_HTTP_TOKEN": (
        "http_token",
        Key(
            _TOKEN,
            "generated into http-token in the state directory",
            "The Bearer token of the HTTP door; 16 characters at least where others can connect.",
        ),
    ),
    "CODESPACE_OPERATOR_TOKEN": (
        "operator_token",
        Key(
            _TOKEN,
            "none",
            "The operator's token: opens `/inbox`, signs in to the console, and shows the tools for works.",
        ),
    ),
    "CODESPACE_ALLOWED_HOSTS": (
        "allowed_hosts",
        Key(
            kinds.Kind("hosts, with commas", _hosts),
            "none",
            "More Host names to answer to; any but this machine's own needs a set token.",
        ),
    ),
    "CODESPACE_RUNNER": (
        "runner",
        Key(
            kinds.choice("in-process", "uds"),
            "in-process",
            "Where commands and files are worked on: in the daemon, or in a process of its own behind a socket.",
        ),
    ),
    "CODESPACE_RUNNER_DIR": (
        "runner_dir",
        Key(kinds.absolute(), "the state directory", "Where the `uds` runner's socket gets a fresh directory."),
    ),
    "CODESPACE_PROCESS_TIMEOUT_SECS": (
        "process_timeout_seconds",
        Key(
            _number(kinds.seconds(), float),
            "600",
            "`timeout_seconds` of workspaces that name none; never above their maximum.",
        ),
    ),
    "CODESPACE_LOG": (
        "log_level",
        Key(_folded(kinds.choice("debug", "info", "warning", "error")), "info", "How much is logged, on stderr."),
    ),
    "CODESPACE_LOG_FORMAT": (
        "log_format",
        Key(_folded(kinds.choice("console", "json")), "console", "For a person or for a program."),
    ),
}


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the checked values of the variables that are set, by field."""
    _refuse_slips(environ)
    values = {}
    for name, (field, key) in VARIABLES.items():
        if name not in environ:
            continue
        if not environ[name]:
            raise SettingsError(name, "It is set and empty.", "Give it a value, or unset it.")
        if key.kind is _TOKEN and not _acceptable(environ[name]):  # a secret is not repeated in a message
            raise SettingsError(name, "It is not acceptable as a token.", "Use printable ASCII without spaces.")
        values[field] = key.kind.check(name, environ[name])
    if values.get("http_token") is not None and values.get("http_token") == values.get("operator_token"):
        raise SettingsError("CODESPACE_OPERATOR_TOKEN", "It is the HTTP token.", "Use two different tokens.")
    return values


def home(environ: Mapping[str, str]) -> str:
    """Return the operator's home directory."""
    named = environ.get("HOME", "")
    if os.path.isabs(named):
        return named
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise SettingsError("HOME", "It is not set, and this user has no home.", "Set HOME.") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    bare = host.strip("[]").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _acceptable(token: str) -> bool:
    try:
        _TOKEN.check("", token)
    except SettingsError:
        return False
    return True


def _refuse_slips(environ: Mapping[str, str]) -> None:
    """Refuse a name that is nearly one of ours; others with our prefix belong to other programs."""
    suffixes = {name.removeprefix(PREFIX): name for name in VARIABLES}
    for name in environ:
        if not name.startswith(PREFIX) or name in VARIABLES:
            continue
        meant = near(name.removeprefix(PREFIX), suffixes)
        if meant is not None and abs(len(meant) - len(name.removeprefix(PREFIX))) <= 2 and len(meant) > 3:
            raise SettingsError(name, "There is no such variable.", f"Did you mean {suffixes[meant]}? Else unset it.")
