"""A plan as a file: written by `prepare`, run once by `run --plan`, and believed only where it can be.

The file is its owner's alone, is no link, is young, and is gone before the run begins: whoever could
put another in its place, or show the same one twice, could choose what runs.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from codespace import limits
from codespace.contract import Workspace
from codespace.sandbox.plan import Kind, Mount, Plan, Quota
from codespace.sandbox.system import Masks
from codespace.settings import SettingsError, patterns, roots

PROTOCOL: Final = 1
_KINDS: Final = get_args(Kind)
_NAMES: Final = frozenset(Plan.__slots__)
_GIT: Final = ("read_only", "commit", "unprotected")
_WRONG: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)
# What a document of another shape, or with other values, ends in.


class BadPlan(Exception):
    """No plan that may be run, or no order that one is made for; nothing was done. The text says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a plan is asked for."""

    workspace: Workspace
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    protected: tuple[str, ...]


def order_from(data: bytes) -> Order:
    """Return what `prepare` was given, each value checked: one that is misspelt must not be a weaker one.

    Raises: BadPlan.
    """
    try:
        fields = json.loads(data)
        _only(fields, ("workspace", "command", "cwd", "env", "protected"))
        named = fields["workspace"]
        _only(named, ("root", "git", "hidden_paths", "readable_paths", "allow_submounts"))
        root = _absolute(named["root"])
        workspace = Workspace(
            id="run",
            root=root,
            profile="workspace-write",
            git=_choice(named.get("git", "read_only"), _GIT),
            hidden_paths=_patterns("hidden_paths", named.get("hidden_paths", []), root),
            readable_paths=_readable(named.get("readable_paths", [])),
            allow_submounts=_flag(named.get("allow_submounts", False)),
        )
        env, protected = _env(fields.get("env", {})), _patterns("protected", fields.get("protected", []), root)
        return Order(workspace, _command(fields["command"]), _text(fields.get("cwd", ".")), env, protected)
    except KeyError as missing:
        raise BadPlan(f"the request is not complete ({missing})") from missing
    except SettingsError as wrong:
        raise BadPlan(f"the request would not hold as it is written ({wrong})") from wrong
    except _WRONG as error:
        raise BadPlan(f"the request is not complete ({type(error).__name__}: {error})") from error


def write(path: str, plan: Plan, bubblewrap: str) -> None:
    """Write a plan to a new file that only its owner can read. Raises: OSError, BadPlan."""
    _check_absolute(path)
    text = json.dumps({"protocol": PROTOCOL, "written_at": time.time(), "bubblewrap": bubblewrap, "plan": asdict(plan)})
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def take(path: str) -> tuple[Plan, str]:
    """Return the plan and the bubblewrap to run it with; the file is removed, so it can be taken once only.

    Raises: BadPlan.
    """
    _check_absolute(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadPlan(f"it cannot be opened ({error.strerror})") from error
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        _check_file(status)
        try:
            data = file.read(limits.SANDBOX_PLAN_BYTES + 1) or b""
            os.unlink(path)
        except OSError as error:
            raise BadPlan(f"it cannot be read and removed ({error.strerror})") from error
    if len(data) > limits.SANDBOX_PLAN_BYTES:
        raise BadPlan("it is too large")
    try:
        return _read(json.loads(data))
    except _WRONG as error:
        raise BadPlan(f"it is not what `prepare` writes ({type(error).__name__}: {error})") from error


def _check_absolute(path: str) -> None:
    if not posixpath.isabs(path):
        raise BadPlan("its path is not absolute")


def _check_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadPlan("it is not a regular file")
    if status.st_uid != os.geteuid():
        raise BadPlan("it belongs to another account")
    if status.st_mode & 0o077:
        raise BadPlan("others may read or write it; its mode must be 0600")
    if status.st_nlink != 1:
        raise BadPlan("it has another name")


def _read(document: Any) -> tuple[Plan, str]:
    if document["protocol"] != PROTOCOL:
        raise BadPlan(f"its protocol is {document['protocol']!r}; this program speaks {PROTOCOL}")
    age = time.time() - float(document["written_at"])
    if not 0 <= age <= limits.SANDBOX_PLAN_SECONDS:
        raise BadPlan(f"it is older than {limits.SANDBOX_PLAN_SECONDS:g} s, or from the future")
    return plan_from(document["plan"]), _absolute(document["bubblewrap"])


def plan_from(fields: Any) -> Plan:
    """Return the plan that `asdict` took apart, each value checked. Raises: ValueError, KeyError, TypeError."""
    if set(fields) != _NAMES:
        raise ValueError(f"fields {sorted(set(fields) ^ _NAMES)}")
    identity = fields["identity"]
    return Plan(
        root=_absolute(fields["root"]),
        cwd=_absolute(fields["cwd"]),
        command=_command(fields["command"]),
        env=_env(fields["env"]),
        mounts=tuple(Mount(_choice(mount["kind"], _KINDS), _absolute(mount["path"])) for mount in fields["mounts"]),
        readable=_paths(fields["readable"]),
        writable=_paths(fields["writable"]),
        etc=Masks(_paths(fields["etc"]["directories"]), _paths(fields["etc"]["files"])),
        quota=_quota(fields["quota"]),
        network=_choice(fields["network"], ("restricted", "enabled")),
        tty=_flag(fields["tty"]),
        identity=None if identity is None else (_whole(identity[0]), _whole(identity[1])),
        notes=tuple(_text(note) for note in fields["notes"]),
    )


def _command(value: Any) -> tuple[str, ...]:
    command = tuple(_text(item) for item in value) if isinstance(value, list) else ()
    if not command or not command[0]:
        raise ValueError("the command is empty")
    for item in command:
        item.encode()  # UnicodeEncodeError, which is a ValueError: half a character is not an argument
    return command


def _only(fields: Any, names: Collection[str]) -> None:
    if unknown := set(fields) - {*names}:
        raise ValueError(f"unknown: {sorted(unknown)}")


def _env(value: Any) -> dict[str, str]:
    env = {_text(name): _text(text) for name, text in value.items()}
    if wrong := [name for name in env if not name or "=" in name]:
        raise ValueError(f"{wrong[0]!r} is no name of a variable")
    return env


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return tuple(_text(item) for item in value)


def _patterns(name: str, value: Any, root: str) -> tuple[str, ...]:
    """Return patterns that are understood as they were meant, as those of the settings are. Raises: SettingsError."""
    found = _texts(value)
    for number, pattern in enumerate(found):
        patterns.PATTERN.check(f"{name}[{number}]", pattern)
    patterns.refuse_whole_paths(name, found, {root, os.path.realpath(root)})
    return found


def _quota(fields: Any) -> Quota:
    most = {name: fields[name] for name in Quota.__slots__}
    for name, value in most.items():
        if value is None and name != "tmp_bytes":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}")
        if name != "cpu_seconds":
            _whole(value)
    return Quota(**most)


def _paths(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("paths are a list")
    return tuple(_absolute(path) for path in value)


def _readable(value: Any) -> tuple[str, ...]:
    """Return what may be shown beside the root. Raises: SettingsError."""
    found = _paths(value)
    for number, path in enumerate(found):
        roots.refuse_own(f"readable_paths[{number}]", os.path.realpath(path))
    return found


def _absolute(value: Any) -> str:
    path = _text(value)
    if not posixpath.isabs(path) or posixpath.normpath(path) != path:
        raise ValueError(f"{path!r} is not a plain absolute path")
    return path


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is not a text without NUL")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _choice(value: Any, choices: Any) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {choices}")
    return value
