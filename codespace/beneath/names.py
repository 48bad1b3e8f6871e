"""Names below a root: which a caller may say, and which exist for no caller.

Nothing here touches the disk.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from codespace.errors import Refusal

PATH_BYTES: Final = 4095  # PATH_MAX without its NUL


def clean(path: str, argument: str = "path") -> str:
    """Return `path` normalised by its letters alone: no `.`, no `..`, no doubled or trailing slash.

    Args:
        path: What a caller said. `` and `.` are the root.
        argument: Under which name it was said.
    Returns: A relative path, or `.` for the root.
    Raises: Refusal PATH_ESCAPE for an absolute path or one that leads above the root; INVALID_ARGUMENT
        for NUL and other control characters, for what is not Unicode text, and for an overlong path.
    """
    if not showable(path):
        raise _wrong(argument, "has a control character or is not Unicode text")
    if path.startswith("/"):
        raise Refusal("PATH_ESCAPE", f"{path} is absolute. Nothing was done.", details={"path": path})
    if len(path) * 4 > PATH_BYTES and len(path.encode()) > PATH_BYTES:
        raise _wrong(argument, f"is longer than {PATH_BYTES} bytes")
    kept: list[str] = []
    for component in path.split("/"):
        if component in ("", "."):
            continue
        if component != "..":
            kept.append(component)
        elif kept:
            kept.pop()
        else:
            raise Refusal("PATH_ESCAPE", f"{path} leads out of the workspace. Nothing was done.")
    return "/".join(kept) or "."


def _wrong(argument: str, problem: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"The {argument} {problem}. Nothing was done.", details={"argument": argument})


def showable(name: str) -> bool:
    """Return whether `name` can be sent to a caller and said by one: Unicode without control characters."""
    if name.isprintable():
        return True
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)


class Hidden:
    """Globs of what exists for no caller, read as .gitignore reads them.

    `*` and `?` stay within a name, `**` crosses names, a glob without a slash matches at any depth,
    and what matches a directory covers everything below it.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._exact = _compiled(self.globs)
        folded = tuple(fold(glob) for glob in globs)
        self._folded = _compiled(folded)
        self._is_folded = folded == self.globs

    def __bool__(self) -> bool:
        return bool(self.globs)

    def covers(self, path: str) -> bool:
        """Return whether `path`, or a directory above it, matches by its exact letters."""
        return self._exact.match(path) is not None

    def covers_folded(self, path: str) -> bool:
        """Return whether `path` would match on a filesystem that ignores letter case."""
        return self._folded.match(fold(path)) is not None

    def may_cover(self, path: str) -> bool:
        """Return whether `path` matches in one way or the other; one match where both are the same."""
        if self._is_folded and (path.islower() and path.isascii()):
            return self.covers(path)
        return self.covers(path) or self.covers_folded(path)


def fold(name: str) -> str:
    """Return `name` as a case-folding filesystem compares it: decomposed, folded, without ignorable characters."""
    if name.isascii():
        return name.lower()
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
    return "".join(character for character in folded if unicodedata.category(character) != "Cf")


@functools.lru_cache(maxsize=256)
def _compiled(globs: tuple[str, ...]) -> re.Pattern[str]:
    if not globs:
        return re.compile(r"(?!)")
    return re.compile(f"(?:{'|'.join(map(_expression, globs))})(?:/.*)?\\Z", re.DOTALL)


def _expression(glob: str) -> str:
    """Translate one glob of the .gitignore kind into a regular expression for the whole path."""
    body = glob.rstrip("/")
    anchored = "/" in body
    body = body.removeprefix("/")
    parts: list[str] = [] if anchored else ["(?:.*/)?"]
    position = 0
    while position < len(body):
        part, position = _token(body, position)
        parts.append(part)
    return "".join(parts)


def _token(body: str, position: int) -> tuple[str, int]:
    if body.startswith("**/", position):
        return "(?:.*/)?", position + 3
    if body.startswith("**", position):
        return ".*", position + 2
    character = body[position]
    if character == "*":
        return "[^/]*", position + 1
    if character == "?":
        return "[^/]", position + 1
    if character == "[" and (end := body.find("]", position + 2 + body.startswith(("!", "^"), position + 1))) > 0:
        return _one_of(body[position + 1 : end]), end + 1
    if character == "\\" and position + 1 < len(body):
        return re.escape(body[position + 1]), position + 2
    return re.escape(character), position + 1


def _one_of(inside: str) -> str:
    """Translate what stands between brackets: letters and ranges, of which one that runs backwards has none."""
    negated = inside[0] in "!^"
    letters = re.findall(r".-.|.", inside[1:] if negated else inside, re.DOTALL)
    known = [part for part in letters if len(part) == 1 or part[0] <= part[2]]
    if not known:
        return "[^/]" if negated else "(?!)"
    spelt = "".join("-".join(map(re.escape, (part[0], part[2]))) if part[1:] else re.escape(part) for part in known)
    return f"(?!/)[{'^' if negated else ''}{spelt}]"
