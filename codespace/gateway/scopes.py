"""What a scoped grant covers: terms made of what one hold showed, and the question whether another fits.

Pure. Terms are never wider than what the operator saw of the program, directory, variables, network and time; and
whatever they cover is still decided by the profile, held, bound to what is shown and recorded.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final, Literal

from codespace.errors import Refusal
from codespace.gateway.hold import Hold
from codespace.gateway.launchers import is_launcher

Scope = Literal["exact", "program", "patches"]
SCOPES: Final[Mapping[Scope, str]] = {
    "exact": "this exact command, with the files that it names as they are",
    "program": "this program with any arguments, in this directory with these variables and this network",
    "patches": "patches that touch nothing but what is under this path",
}
NOTHING: Final = " Nothing was granted."
"""How each refusal of a scope ends, which a page that only offers scopes leaves out."""
ONCE: Final = "Grant it once."
_INSTEAD: Final[Mapping[str, str]] = {
    "exec_command": "Grant this exact command (--exact), or grant it once.",
    "apply_patch": "Grant patches under a path that holds all of this one (--patches PATH), or grant it once.",
}
_PINNED: Final = ("program", "program_file", "program_version")
_SAME: Final = ("cwd", "env", "stdin", "open_stdin", "tty", "network")


def terms_of(hold: Hold, scope: Scope, *, root: str, path: str | None = None) -> dict[str, Any]:
    """Return the terms of a grant of this scope, made of what the hold shows.

    Args:
        root: Of the hold's workspace.
        path: For `patches`: the directory or file below which they may be.
    Raises: Refusal INVALID_ARGUMENT, saying why the scope is not to be had for this hold.
    """
    if scope == "patches":
        return _patches(hold, path, root)
    if hold.tool != "exec_command":
        raise _refused(hold, f"Scope `{scope}` is for held commands; this is {hold.tool}.")
    if path is not None:
        raise _refused(hold, f"A path belongs to scope `patches`, not to `{scope}`.")
    if scope == "exact":
        return {"root": root, "shown": dict(hold.shown)}
    return _program(hold, root)


def covers(scope: str, terms: Mapping[str, Any], hold: Hold, root: str) -> bool:
    """Return whether a hold, of a workspace with this root, is one of those that the terms are for."""
    if terms["root"] != root:
        return False  # the operator gave the workspace's id to another directory
    if scope == "patches":
        touched = _touched(hold)
        return hold.tool == "apply_patch" and bool(touched) and all(_is_under(each, terms["path"]) for each in touched)
    if hold.tool != "exec_command":
        return False
    if scope == "exact":
        return bool(dict(hold.shown) == terms["shown"])
    asked = _asked(hold)
    in_time = hold.shown["timeout_seconds"] <= terms["timeout_seconds"]
    return in_time and all(terms.get(name) == value for name, value in asked.items())


def _program(hold: Hold, root: str) -> dict[str, Any]:
    asked = _asked(hold)
    names = [asked["argv0"], asked["program"], asked["program_file"]]
    if is_launcher(names):
        raise _refused(hold, "The program runs what its arguments say; with any arguments it could do anything.")
    if any(_is_under(name, root) for name in names[1:] if name.startswith("/")) or not asked["program"].startswith("/"):
        raise _refused(hold, "The program is in the workspace, where an agent may have put it under any name.")
    if not str(asked["program_version"]).startswith("sha256:"):
        raise _refused(hold, "The program's file cannot be read, so that nothing would tell another one from it.")
    if asked["stdin"] is not None or asked["open_stdin"] or asked["tty"]:
        raise _refused(hold, "The command is given input, which may be commands too.")
    return asked | {"root": root, "timeout_seconds": hold.shown["timeout_seconds"]}


def _asked(hold: Hold) -> dict[str, Any]:
    shown = hold.shown
    pinned = {name: shown["bound"].get(name) for name in _PINNED}
    return {"argv0": shown["command"][0], **pinned, **{name: shown.get(name) for name in _SAME}}


def _patches(hold: Hold, path: str | None, root: str) -> dict[str, Any]:
    if hold.tool != "apply_patch":
        raise _refused(hold, f"Scope `patches` is for held patches; this is {hold.tool}.")
    if not path:  # normpath makes `.`, the whole workspace, of an empty one
        raise _refused(hold, "Scope `patches` needs the path that they may touch.")
    clean = posixpath.normpath(path)
    if posixpath.isabs(path) or clean == ".." or clean.startswith("../") or not path.isprintable():
        raise _refused(hold, "The path must be below the workspace, such as `src`; `.` is the whole of it.")
    terms = {"root": root, "path": clean}
    if not covers("patches", terms, hold, root):
        raise _refused(hold, f"The patch that is shown touches something outside of `{clean}`.")
    return terms


def _touched(hold: Hold) -> list[str]:
    changes = hold.shown.get("changes", [])
    moved = [change["from_path"] for change in changes if change.get("from_path")]
    return [*hold.shown.get("files", []), *(change["path"] for change in changes), *moved]


def _is_under(path: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return folder == "." or path == folder or path.startswith(folder + "/")


def _refused(hold: Hold, why: str) -> Refusal:
    instead = _INSTEAD.get(hold.tool, ONCE)
    return Refusal("INVALID_ARGUMENT", why + NOTHING, next_step=instead, details={"argument": "scope"})
