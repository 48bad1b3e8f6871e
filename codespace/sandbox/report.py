"""What is in force for commands of a workspace, area by area, in the words of workspace_info. From witnesses only."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import Any, Final

from codespace.contract import Workspace
from codespace.display import display
from codespace.sandbox import plan
from codespace.sandbox.inventory import git
from codespace.sandbox.plan import HOME
from codespace.sandbox.probe import Rung, Standing

UNSANDBOXED: Final = (
    "Commands run with all rights of the operator's account: they can read and write outside the root and use the "
    "network. Only the file tools and patches are kept inside."
)
_HARD_LINKS: Final = (
    "A file of the root that has another name outside (a hard link, as package stores make them) is changed under both."
)
_LANDLOCK: Final = (
    "Only Landlock keeps commands (`allow_degraded`): they read and write no file outside their places. It does not "
    "stop them from changing modes, owners and times of files outside, from sending datagrams, from talking to sockets "
    "with a path, or from seeing other processes and their command lines; and it does not keep git directories, "
    "protected and hidden paths of the root."
)
_LANDLOCK_LACKS: Final = (
    (3, "This kernel's Landlock does not stop them from emptying files outside either."),
    (4, "This kernel's Landlock does not stop TCP connections either."),
    (6, "This kernel's Landlock does not stop abstract sockets and signals to other processes either."),
)
"""By the first version that does."""
_AS_ROOT: Final = (
    "Commands are root: Landlock hides nothing of /proc from them, neither the environments of other processes, this "
    "daemon's included, nor the kernel's memory."
)
_AVAILABLE: Final = (
    "Landlock alone could be had here: where the operator sets `allow_degraded`, commands are kept by it, which is "
    "less than the sandbox and more than nothing."
)
_COMMIT: Final = (
    "`git: commit` is weaker than `read_only`: commands may write objects, refs and the index, so a new submodule can "
    "be put in place, or a rebase be left that runs commands when it is continued; hooks and configuration stay "
    "read-only."
)

_COMMIT_OUTSIDE: Final = (
    "The root is a linked worktree, and its repository lies outside: {}. Commands commit into that, so they may write "
    "there all that is not hooks, configuration or another worktree's: the branches and objects of all worktrees, and "
    "the index and unfinished merges or rebases of its main one. A link in it, or hidden branches, keep it read-only."
)


def rung(standing: Standing, workspace: Workspace) -> Rung:
    """Return the rung for commands of a workspace: a lesser one only where its operator allows it."""
    if standing.rung == "landlock" and (not workspace.allow_degraded or workspace.sandbox == "required"):
        return "none"
    return standing.rung


def facts(standing: Standing, workspace: Workspace) -> dict[str, Any]:
    """Return the facts of `Runner.describe` that concern commands: command_sandbox, network_enforcement,
    exec_available, sandbox {filesystem, git, syscalls, limits, process_tree, runs_as_root, degraded}, reasons, caveats.
    """
    chosen = rung(standing, workspace)
    whole, locked = chosen == "linux-sandbox", chosen == "landlock"
    demanded = workspace.network == "enabled" or workspace.sandbox == "required"
    return {
        "command_sandbox": chosen,
        "network_enforcement": "enforced" if whole else "none",
        "exec_available": whole or not demanded,
        "sandbox": _whole(standing, workspace) if whole else _landlock(workspace) if locked else _none(),
        "reasons": [] if whole else _reasons(standing, workspace, chosen),
        "caveats": _caveats(workspace) if whole else _landlock_caveats(standing.landlock) if locked else [UNSANDBOXED],
    }


def _reasons(standing: Standing, workspace: Workspace, chosen: Rung) -> list[str]:
    reasons = [f"command_sandbox is `{chosen}`: {cause}" for cause in standing.causes]
    lower = standing.rung != chosen and workspace.sandbox == "optional" and workspace.network == "restricted"
    return [*reasons, _AVAILABLE] if lower else reasons


def _whole(standing: Standing, workspace: Workspace) -> dict[str, Any]:
    assert standing.equipment is not None
    repository = _repository(workspace)
    carried = standing.equipment.mechanisms.carried(plan.quota(workspace))
    return {
        "filesystem": {
            "enforcement": "namespaces",
            "writable": [workspace.root, *repository, "/tmp", HOME],  # noqa: S108 - the sandbox's own
            "hidden": list(workspace.hidden_paths),
        },
        "git": workspace.git,
        "syscalls": "seccomp",
        "limits": asdict(carried),
        "process_tree": "pid-namespace",
        "runs_as_root": os.geteuid() == 0,
        "degraded": ["git"] if workspace.git != "read_only" else [],
    }


def _landlock(workspace: Workspace) -> dict[str, Any]:
    return _none() | {
        "filesystem": {"enforcement": "landlock", "writable": [workspace.root, "HOME"], "hidden": []},
        "degraded": ["filesystem", "git", "network", "syscalls", "limits", "process_tree"],
    }


def _none() -> dict[str, Any]:
    return {
        "filesystem": {"enforcement": "none", "writable": [], "hidden": []},
        "git": "none",
        "syscalls": "none",
        "limits": {"pids": "none", "memory": "none", "cpu": "none"},
        "process_tree": "monitor",
        "runs_as_root": os.geteuid() == 0,
        "degraded": [],
    }


def _landlock_caveats(version: int) -> list[str]:
    lacks = [sentence for since, sentence in _LANDLOCK_LACKS if version < since]
    return [_LANDLOCK, *lacks, _HARD_LINKS, *([_AS_ROOT] if os.geteuid() == 0 else [])]


def _caveats(workspace: Workspace) -> list[str]:
    outside = [_COMMIT_OUTSIDE.format(display(path)) for path in _repository(workspace)]
    return [_HARD_LINKS, *([_COMMIT] if workspace.git == "commit" else []), *outside]


def _repository(workspace: Workspace) -> tuple[str, ...]:
    """Return the repository outside of the root that commands may commit into, where there is one."""
    with contextlib.suppress(OSError):
        common = git.common_directory(workspace.root) if workspace.git == "commit" else None
        return () if common is None else (common,)
    return ()
