"""What .gitignore files leave out, for the walk that does without ripgrep's own.

Read through `beneath` like every file of a workspace, each directory's rules once for a walk. Weighed
as ripgrep does, and read as git does where the two differ: ripgrep also knows `{a,b}`, drops a tab at
the end of a rule, and ends at a line that is no UTF-8. What is over our bounds is not read at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from codespace.beneath import Entry, Root
from codespace.errors import Refusal
from codespace.runner.search.globs import Glob

_FILES: Final = (".rgignore", ".ignore", ".gitignore", ".git/info/exclude")
# The stronger first: what a file says stands against all weaker ones, also those of deeper directories.
_RULE_BYTES: Final = 262_144  # of one file; a longer one is machine-made, and is left out whole
_RULES: Final = 2_000  # of one file
_RULES_BETWEEN: Final = 32  # two looks at the clock: a long rule of many stars takes milliseconds for a long name


@dataclass(frozen=True, slots=True)
class _Rule:
    glob: Glob
    keeps: bool


@dataclass(frozen=True, slots=True)
class _Chain:
    """The rules of one directory's file, and of the next such file above it that has any."""

    start: int
    """Where in a path below the directory that part begins which its rules are about."""
    rules: list[_Rule]
    above: _Chain | None


class Ignores:
    """The rules of one walk. The walk leaves out what is below an ignored directory by itself.

    Args:
        require_time: Raises where the walk's time is over; called every now and then.
    """

    def __init__(self, root: Root, require_time: Callable[[], None]) -> None:
        self._root = root
        self._require_time = require_time
        self._chains: dict[str, dict[str, _Chain | None]] = {file: {} for file in _FILES}

    def skips(self, entry: Entry) -> bool:
        """Return whether an entry is ignored by the strongest file, of those the nearest, that speaks about it."""
        if entry.path == ".":
            return False  # no rule is about the root itself: `.*` would take everything away
        for file in _FILES:
            chain = self._chain(file, _directory(entry.path))
            while chain is not None:
                below = entry.path[chain.start :]
                for number, rule in enumerate(chain.rules, 1):
                    if number % _RULES_BETWEEN == 0:
                        self._require_time()
                    if rule.glob.directories_only and entry.kind != "directory":
                        continue
                    if rule.glob.matches(below):
                        return not rule.keeps
                chain = chain.above
        return False

    def _chain(self, file: str, directory: str) -> _Chain | None:
        """Return the rules that count in a directory; of the many above a deep one only those that have some."""
        chains = self._chains[file]
        unknown: list[str] = []
        while directory not in chains:
            unknown.append(directory)
            if not directory:
                break
            directory = _directory(directory)
        for each in reversed(unknown):
            above = chains[_directory(each)] if each else None
            rules = self._read(f"{each}/{file}" if each else file)
            chains[each] = _Chain(len(each) + 1 if each else 0, rules, above) if rules else above
        return chains[unknown[0] if unknown else directory]

    def _read(self, path: str) -> list[_Rule]:
        """Return a file's rules, the strongest first; none where it may not be read."""
        try:
            content, _ = self._root.read(path, _RULE_BYTES)
        except Refusal:
            return []
        # As git reads it: a line ends with LF alone, and a name is what bytes it has.
        lines = content.decode("utf-8-sig", errors="surrogateescape").split("\n")[:_RULES]
        return [rule for line in reversed(lines) if (rule := _rule(line))]


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _rule(line: str) -> _Rule | None:
    body = line.rstrip("\r\n")
    while body.endswith(" ") and not body.endswith("\\ "):
        body = body[:-1]
    if not body or body.startswith("#"):
        return None
    keeps = body.startswith("!")
    body = body[1:] if keeps else body
    try:
        return _Rule(Glob(body, braces=False), keeps) if body.strip("/") else None
    except Refusal:
        return None  # too long to be a name
