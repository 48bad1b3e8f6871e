"""Workspaces and environments of the document, checked and built. Whether a root may be one: `roots`."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from codespace import limits
from codespace.contract import Workspace, WorkspaceLimits
from codespace.platform import most_open_files
from codespace.settings import keys, kinds, patterns, roots
from codespace.settings.answer import ask
from codespace.settings.fault import SettingsError, shown, unknown_key, whole

ID: Final = kinds.text(
    "id", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1 to 64 letters, digits, `.`, `_` and `-`, first a letter or digit"
)


def environments(value: object) -> dict[str, str]:
    """Return the kind of each environment; `host` is always there."""
    known = {"host": "host"}
    for name, entry in kinds.table("environments", value).items():
        where = f"environments.{name}"
        ID.check(where, name)
        found = keys.fields(where, entry, keys.ENVIRONMENT)
        if "kind" not in found:
            raise SettingsError(f"{where}.kind", "It is missing.", "Use `host` or `linux-container`.")
        if name == "host" and found["kind"] != "host":
            raise SettingsError(f"{where}.kind", "`host` is the host itself.", "Choose another id for the container.")
        known[name] = found["kind"]
    return known


def workspaces(value: object, kinds_of: Mapping[str, str], default_timeout: float | None) -> dict[str, Workspace]:
    """Return the registered workspaces by id, their roots resolved, in the order of the file.

    Args:
        default_timeout: CODESPACE_PROCESS_TIMEOUT_SECS, for workspaces that name no time limit.
    """
    entries = kinds.table("workspaces", value)
    found = {
        name: _workspace(ID.check(f"workspaces.{name}", name), entry, kinds_of, default_timeout)
        for name, entry in entries.items()
    }
    holding = next((each.id for each in found.values() if each.approvals == "operator"), None)
    if holding is None:
        return found
    for name, entry in entries.items():
        _refuse_weaker(name, entry, holding)
    return {name: replace(each, sandbox="required") for name, each in found.items()}


def _refuse_weaker(name: str, entry: Mapping[str, Any], holding: str) -> None:
    """Refuse what would let a command of this workspace reach the operator's own means and grant for him."""
    why = f"Approvals of workspace `{holding}` are `operator`: an unconfined command could grant itself."
    if entry.get("sandbox") == "optional":
        raise SettingsError(f"workspaces.{name}.sandbox", why, "Use `required`, or leave the key out.")
    if entry.get("allow_degraded"):
        raise SettingsError(f"workspaces.{name}.allow_degraded", why, "Remove it, or use approvals `confirm`.")


def _workspace(name: str, value: object, kinds_of: Mapping[str, str], default_timeout: float | None) -> Workspace:
    where = f"workspaces.{name}"
    found = keys.fields(where, value, keys.WORKSPACE)
    if "root" not in found:
        raise SettingsError(f"{where}.root", "It is missing.", "Name the directory, as an absolute path.")
    written, found["root"] = found["root"], roots.resolve(f"{where}.root", found["root"])
    _choose_environment(where, found, kinds_of)
    _choose_timeouts(where, found, default_timeout)
    if "limits" in found:
        chosen = found["limits"]
        _refuse_more_than_ours(f"{where}.limits.open_files", chosen.get("open_files", 0))
        found["limits"] = WorkspaceLimits(**chosen, command_file_bytes=chosen.get("file_bytes"))
    found["readable_paths"] = tuple(
        _readable(f"{where}.readable_paths[{index}]", path)
        for index, path in enumerate(found.get("readable_paths", ()))
    )
    for key in ("hidden_paths", "protected_paths"):
        patterns.refuse_whole_paths(f"{where}.{key}", found.get(key, ()), {os.path.normpath(written), found["root"]})
    if found.get("allowed_domains") and found.get("network", "restricted") == "restricted":
        raise SettingsError(
            f"{where}.allowed_domains", "The network is `restricted`.", "Remove it, or set network to `enabled`."
        )
    return Workspace(id=name, **found)


def _readable(key: str, path: str) -> str:
    real, there = ask(key, path, lambda: (os.path.realpath(path), os.path.exists(path)))
    kinds.refuse_undecodable(key, real)
    if not there:  # a sandbox that cannot show it is made for no command at all
        raise SettingsError(key, f"{whole(path)} does not exist.", "Correct the path, or leave it out.")
    roots.refuse_own(key, real)
    return real


def _refuse_more_than_ours(key: str, wanted: int) -> None:
    """Refuse a limit that no command could be given: the daemon needs more than any of them."""
    most = most_open_files()
    if wanted > most != resource.RLIM_INFINITY:
        why = f"{wanted} is over half of what this account may have."
        raise SettingsError(key, why, f"Use {most} at most (half of `ulimit -Hn`).")


def _choose_environment(where: str, found: dict[str, Any], kinds_of: Mapping[str, str]) -> None:
    name = found.get("environment", "host")
    if name not in kinds_of:
        meant = unknown_key("", name, kinds_of).fix
        raise SettingsError(f"{where}.environment", f"No environment `{shown(name)}` is registered.", meant)
    found["environment_kind"] = kinds_of[name]


def _choose_timeouts(where: str, found: dict[str, Any], default_timeout: float | None) -> None:
    longest = found.get("max_timeout_seconds", limits.MAX_TIMEOUT_SECONDS)
    if "timeout_seconds" in found:
        if found["timeout_seconds"] > longest:
            raise SettingsError(
                f"{where}.timeout_seconds",
                f"{found['timeout_seconds']:g} is over max_timeout_seconds ({longest:g}).",
                "Lower it, or raise max_timeout_seconds.",
            )
        return
    # The default gives way to a maximum that the operator wrote; it is not what anybody asked for here.
    found["timeout_seconds"] = min(limits.TIMEOUT_SECONDS if default_timeout is None else default_timeout, longest)
