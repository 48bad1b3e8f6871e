"""What is in force for commands of a workspace, area by area, in the words of workspace_info. From witnesses only."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Final

from codespace.contract import Workspace
from codespace.sandbox import plan
from codespace.sandbox.plan import HOME
from codespace.sandbox.probe import Rung, Standing

UNSANDBOXED: Final = (
    "Commands run with all rights of the operator's account: they can read and write outside the root and use the "
    "network. Only the file tools and patches are kept inside."
)
_HARD_LINKS: Final = (
    "A file of the root that has another name outside (a hard link, as package stores make them) is changed under both."
)
_COMMIT: Final = (
    "`git: commit` is weaker than `read_only`: commands may write objects, refs and the index, so a new submodule can "
    "be put in place; hooks and configuration stay read-only."
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
    whole = chosen == "linux-sandbox"
    demanded = workspace.network == "enabled" or workspace.sandbox == "required"
    return {
        "command_sandbox": chosen,
        "network_enforcement": "enforced" if whole else "none",
        "exec_available": whole or not demanded,
        "sandbox": _whole(standing, workspace) if whole else _less(chosen),
        "reasons": [] if whole else [f"command_sandbox is `{chosen}`: {cause}" for cause in standing.causes],
        "caveats": _caveats(workspace) if whole else [UNSANDBOXED],
    }


def _whole(standing: Standing, workspace: Workspace) -> dict[str, Any]:
    assert standing.equipment is not None
    carried = standing.equipment.mechanisms.carried(plan.quota(workspace))
    return {
        "filesystem": {
            "enforcement": "namespaces",
            "writable": [workspace.root, "/tmp", HOME],  # noqa: S108 - the sandbox's own
            "hidden": list(workspace.hidden_paths),
        },
        "git": workspace.git,
        "syscalls": "seccomp",
        "limits": asdict(carried),
        "process_tree": "pid-namespace",
        "runs_as_root": os.geteuid() == 0,
        "degraded": ["git"] if workspace.git != "read_only" else [],
    }


def _less(lesser: str) -> dict[str, Any]:
    locked = lesser == "landlock"
    return {
        "filesystem": {"enforcement": "landlock" if locked else "none", "writable": [], "hidden": []},
        "git": "none",
        "syscalls": "none",
        "limits": {"pids": "none", "memory": "none", "cpu": "none"},
        "process_tree": "monitor",
        "runs_as_root": os.geteuid() == 0,
        "degraded": ["filesystem", "git", "network", "syscalls", "limits"] if locked else [],
    }


def _caveats(workspace: Workspace) -> list[str]:
    return [_HARD_LINKS, *([_COMMIT] if workspace.git == "commit" else [])]
