"""The configuration file on disk: found, judged by its permissions, read, parsed. Not understood."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

from codespace import limits
from codespace.settings.fault import SettingsError, shown, whole

KEY: Final = "CODESPACE_CONFIG"
_HALF: Final = re.compile("[\ud800-\udfff]")


def default_path(environ: Mapping[str, str], home: str) -> str:
    """Return where `init` writes the file and where it is looked for if CODESPACE_CONFIG names none."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # A relative XDG path is to be ignored (XDG base directory specification).
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".config"), "codespace", "config.toml")


def read(path: str) -> dict[str, Any]:
    """Return the parsed document.

    Args:
        path: Absolute; `.json` is JSON, `.toml` is TOML.
    Raises: SettingsError for a file that is missing, writable by others, too large or malformed.
    """
    parse = parser(path)
    try:
        text = _bytes(path).decode("utf-8")
        document = parse(text)
    except UnicodeDecodeError as error:
        raise SettingsError(KEY, f"{whole(path)} is not UTF-8 (byte {error.start}).", "Save it as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(KEY, f"{whole(path)} cannot be parsed: {shown(str(error))}.", "Correct it there.") from None
    if not isinstance(document, dict):
        raise SettingsError(KEY, f"{whole(path)} is not a JSON object.", 'Start it with `{"workspaces": {`.')
    return document


def parser(path: str) -> Callable[[str], Any]:
    """Return what reads a file of this name. Raises: SettingsError where its ending says nothing."""
    parse = _PARSERS.get(os.path.splitext(path)[1].lower())
    if parse is None:
        raise SettingsError(
            KEY, f"{whole(path)} is neither `.toml` nor `.json`.", "Give the file one of these endings."
        )
    return parse


def _bytes(path: str) -> bytes:
    try:
        # Non-blocking: a FIFO under this name must not hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise SettingsError(
            KEY,
            f"{whole(path)} cannot be opened: {reason}.",
            "Correct the path, or write a file with `codespace init DIR`.",
        ) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(KEY, f"{whole(path)} is not a regular file.", "Name a regular file.")
        refuse_foreign(KEY, path, found, fix="chmod go-w")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limits.CONFIG_BYTES + 1)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise SettingsError(
            KEY, f"{whole(path)} cannot be read: {reason}.", "Look at the disk that it is on."
        ) from None
    finally:
        os.close(descriptor)
    if len(content) > limits.CONFIG_BYTES:
        raise SettingsError(KEY, f"{whole(path)} is over {limits.CONFIG_BYTES} bytes.", "Name the right file.")
    return content


def refuse_foreign(key: str, path: str, found: os.stat_result, *, fix: str) -> None:
    """Refuse what somebody else could change: who writes the settings decides what an agent may do."""
    if found.st_uid not in (os.geteuid(), 0):
        raise SettingsError(
            key, f"{whole(path)} belongs to user {found.st_uid}.", "Use one that belongs to you, or run as its owner."
        )
    if found.st_mode & 0o022:
        raise SettingsError(
            key, f"{whole(path)} can be changed by other users.", f"Run: {fix} {shlex.quote(whole(path))}"
        )


def _json(text: str) -> Any:
    document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    half = _HALF.search(json.dumps(document, ensure_ascii=False))
    if half is not None:  # TOML refuses it, too
        raise ValueError(f"U+{ord(half[0]):X} alone is no character")
    return document


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys; the operator would be told nothing about the first.
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"the key {name!r} is there twice")
        document[name] = value
    return document


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {".json": _json, ".toml": tomllib.loads}
