"""The built-in list of protected paths: what editors, agents and git run by themselves.

Whoever may write one of these files chooses what runs, outside every sandbox, the next time a
person opens the directory, an agent starts in it, or git does its work. Globs are of the .gitignore
kind; a leading slash means the root of the workspace. Letter case never matters. Git directories
are not here: they are known by content too, and follow the setting `git`.
"""

from __future__ import annotations

from typing import Final

from codespace.contract import Workspace

PROTECTED: Final[tuple[str, ...]] = (
    # agents: servers they start, hooks they run, permissions they grant themselves
    "/.mcp.json",
    "/.cursor/",
    "/.claude/",
    "/.codex/",
    "/.gemini/",
    "/.windsurf/",
    "/.continue/",
    "/.roo/",
    "/.kiro/",
    "/.amazonq/",
    "/.opencode/",
    "/opencode.json",
    "/opencode.jsonc",
    "/crush.json",
    "/.crush.json",
    "/.aider.conf.yml",
    # editors: tasks, launchers, paths of programs, containers that are built on opening
    "/.vscode/tasks.json",
    "/.vscode/settings.json",
    "/.vscode/launch.json",
    "/.vscode/mcp.json",
    "/*.code-workspace",
    "/.idea/",
    "/.zed/",
    "/.helix/",
    "/.devcontainer/",
    "/.devcontainer.json",
    "/.exrc",
    "/.nvimrc",
    "/.nvim.lua",
    "/.dir-locals.el",
    # shells
    "/.envrc",
    # git: what it fetches and runs by itself
    "/.gitmodules",
    "/.githooks/",
    "/.husky/",
)


def protected_paths(workspace: Workspace) -> tuple[str, ...]:
    """Return the globs in force: the operator's own list where there is one."""
    return PROTECTED if workspace.protected_paths is None else workspace.protected_paths


def git_is_protected(workspace: Workspace) -> bool:
    """Return whether patches leave git directories alone. `commit` lets commands in, never a patch."""
    return workspace.git != "unprotected"
