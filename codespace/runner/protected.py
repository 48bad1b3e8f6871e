"""The built-in list of protected paths: what editors, agents and git run by themselves.

Whoever may write one of these files chooses what runs, outside every sandbox, the next time a
person opens the directory, an agent starts in it, or git does its work. Globs are of the .gitignore
kind; a leading slash means the root of the workspace, no slash any place in it. Letter case never
matters. Git directories are not here: they are known by content too, and follow the setting `git`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from codespace.beneath import Hidden, Root
from codespace.beneath.faults import refusal
from codespace.contract import Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import shortage
from codespace.sandbox.inventory import detours, git, gitaccount, gitconfig
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


def require_unprotected(workspace: Workspace, root_of: Callable[[], Root], paths: Sequence[str]) -> None:
    """Refuse what is protected by now, also where links lead from such paths: an editor reads it by their names.

    The helper has the globs from when it was started, and follows no link. Blocks. Raises: Refusal.
    """
    root = root_of()
    listed = listed_paths(workspace)
    named = (*named_outside(workspace), *(("/.git",) if git_is_protected(workspace) else ()))
    try:
        behind = detours.behind(root, listed, named)
    except OSError as error:
        raise refusal(error, ".") from error
    except detours.Blind as blind:
        raise _blind(paths[0] if paths else ".", root, str(blind)) from blind
    for path in filter(Hidden((*behind, *listed, *named)).covers_folded, paths):
        leading = (link for glob, link in behind.items() if Hidden((glob,)).covers_folded(path))
        raise _protected(path, root, next(leading, None))


def _blind(path: str, root: Root, directory: str) -> Refusal:
    place = "a directory" if root.is_hidden(directory) else display(directory, limit=200)
    return Refusal(
        "PROTECTED_PATH",
        f"{path} may not be changed by a patch now: not every link could be followed in {place}, where editors or "
        "agents look for what they run by themselves, so one may lead there. Nothing was written.",
        next_step=f"Ask the operator to make it smaller ({detours.BOUNDS}), and readable.",
        details={"path": path},
    )


def _protected(path: str, root: Root, link: str | None) -> Refusal:
    why = "git's configuration has git read it, or run what is in it"
    step = None
    if link is not None:
        named = "a symbolic link" if root.is_hidden(link) else f"the symbolic link {display(link, limit=200)}"
        why = f"{named} leads there from where editors, agents or git look for what they run by themselves"
        step = "Ask the operator to look at the link, and to remove it or replace it by what it leads to."
    return Refusal(
        "PROTECTED_PATH",
        f"{path} may not be changed by a patch: {why}. Nothing was written.",
        next_step=step,
        details={"path": path},
    )
