"""Paths of a patch: checked and resolved as text, before anything on disk is asked.

Links do not exist here; the tree refuses them when it is looked at.
"""

from __future__ import annotations

from typing import Final, NoReturn

from codespace.errors import Refusal

_PATH_BYTES: Final = 4095  # PATH_MAX of Linux without the closing NUL
_STAGED_BYTES: Final = 48  # of the longest name under which a file is staged beside another: that path must fit too
_NAME_BYTES: Final = 255  # NAME_MAX of every common Linux filesystem
_SHOWN_CHARACTERS: Final = 200  # of a path quoted in a message


def clean(path: str) -> str:
    """Return `path` relative to the root without `.`, `..` and empty components; `.` for the root itself.

    Raises: Refusal PATH_ESCAPE for an absolute path or one that climbs above the root on its way;
        INVALID_PATCH for control characters and for what no filesystem can hold.
    """
    if any(character < " " or character == "\x7f" for character in path):
        _refuse("INVALID_PATCH", path, "has a control character")
    if path.startswith("/"):
        _refuse("PATH_ESCAPE", path, "is absolute")
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not names:
                _refuse("PATH_ESCAPE", path, "leads out of the workspace")
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    _check_lengths(path, names)
    return "/".join(names) or "."


def parents(path: str) -> list[str]:
    """Return the directories above a clean path, the outermost first, the root left out."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]


def _check_lengths(path: str, names: list[str]) -> None:
    sizes = [len(name.encode("utf-8", "surrogatepass")) for name in names]
    if any(size > _NAME_BYTES for size in sizes):
        _refuse("INVALID_PATCH", path, f"has a name of more than {_NAME_BYTES} bytes")
    if sum(sizes) + len(sizes) > _PATH_BYTES:
        _refuse("INVALID_PATCH", path, f"is longer than {_PATH_BYTES} bytes")
    if sum(sizes[:-1]) + len(sizes) + _STAGED_BYTES > _PATH_BYTES:
        _refuse(
            "INVALID_PATCH", path, f"leaves no room within {_PATH_BYTES} bytes for the name under which it is staged"
        )


def _refuse(code: str, path: str, problem: str) -> NoReturn:
    shown = path if len(path) <= _SHOWN_CHARACTERS else path[:_SHOWN_CHARACTERS] + "…"
    raise Refusal(
        code,
        f"The path '{shown}' {problem}. Nothing was written.",
        next_step="Use a plain path relative to the workspace root.",
        details={"path": shown},
    )
