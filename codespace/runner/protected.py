"""The built-in list of protected paths: what editors, agents and git run by themselves.

Whoever may write one of these files chooses what runs, outside every sandbox, the next time a
person opens the directory, an agent starts in it, or git does its work. Globs are of the .gitignore
kind; a leading slash means the root of the workspace, no slash any place in it. Letter case never
matters. Git directories are not here: they are known by content too, and follow the setting `git`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import git, gitaccount, gitconfig, shortage
from codespace.sandbox.lasting import Look

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
    "/.cline/",
    "/.clinerules/hooks/",
    "/.factory/",
    "/.github/hooks/",
    "/.kilo/",
    "/.kilocode/",
    "/.qwen/",
    "/.opencode/",
    "/opencode.json",
    "/opencode.jsonc",
    "/kilo.json",
    "/kilo.jsonc",
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
    "/.vimrc",
    "/.gvimrc",
    "/.nvimrc",
    "/.nvim.lua",
    "/.dir-locals.el",
    "/.dir-locals-2.el",
    # shells: what direnv and mise load on entering, mise without asking again about a file that it was told to trust
    "/.envrc",
    "/mise.toml",
    "/mise.*.toml",
    "/.mise.toml",
    "/.mise.*.toml",
    "/mise/",
    "/.mise/",
    "/.config/mise/",
    "/.config/mise.toml",
    "/.config/mise.*.toml",
    # git: what it fetches and runs by itself
    "/.gitmodules",
    "/.githooks/",
    "/.husky/",
    # Mercurial, Sapling, Jujutsu: hooks and tools in their configuration, and which repository they go by; wherever
    # they lie, as they count for whoever is below them
    ".hg/",
    ".sl/",
    ".jj/",
)


def protected_paths(workspace: Workspace) -> tuple[str, ...]:
    """Return the globs in force: the operator's own list where there is one, and what git's configuration outside of
    the root names below it, at most half a minute old.

    A hung root or home keeps nobody for longer than limits.SANDBOX_ACCOUNT_SECONDS.
    """
    return (*listed_paths(workspace), *named_outside(workspace))


def listed_paths(workspace: Workspace) -> tuple[str, ...]:
    """Return the operator's own list, or the built-in one where there is none."""
    return PROTECTED if workspace.protected_paths is None else workspace.protected_paths


def named_outside(workspace: Workspace) -> tuple[str, ...]:
    """Return globs of what git's configuration outside of the root names below it, where that is protected."""
    if not git_is_protected(workspace):
        return ()
    key = workspace.root, workspace.allow_submounts
    look = _looks.get(key)
    if look is None:
        look = _looks[key] = Look(partial(_named_by_git, *key), ())
    return look.recall(gitaccount.recall())


def _named_by_git(path: str, allow_submounts: bool) -> tuple[str, ...]:
    try:
        with Root.open(path, allow_submounts=allow_submounts) as root:
            return gitconfig.places_beyond(root, git.common_directory(path), gitaccount.recall())
    except Refusal as refused:
        if shortage.is_behind(refused):
            shortage.advise(refused)
            raise
        return ()  # a root that cannot be opened takes no patch, and no command


_looks: dict[tuple[str, bool], Look[tuple[str, ...]]] = {}
"""One for each root that the operator has registered since the daemon started."""


def git_is_protected(workspace: Workspace) -> bool:
    """Return whether patches leave git directories alone. `commit` lets commands in, never a patch."""
    return workspace.git != "unprotected"
