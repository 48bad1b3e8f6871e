"""Globs of the .gitignore kind, matched without regular expressions.

The patterns come from callers and from files of the workspace. A regular expression made of one can
take for ever; these matchers go back to the last star only, so that the time is bounded by the
product of the two lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Final

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal

_ALTERNATIVES: Final = 64  # from braces: `{a,b}{c,d}` doubles with each pair
_ANY: Final = None  # `**` among segments
Segment = Callable[[str], bool]


def check(pattern: str) -> None:
    """Refuse a caller's pattern that is a slip and would match nothing: an empty answer means that there is nothing.

    Raises: Refusal PATH_ESCAPE for one with `..` in it, INVALID_ARGUMENT for `[` without its `]`.
    """
    for name in (name for body in _alternatives(pattern.rstrip("/")) for name in body.split("/")):
        if name == "..":
            raise Refusal(
                "PATH_ESCAPE",
                f"The glob {display(pattern, limit=limits.SHOWN_NAME_CHARACTERS)} has `..` in it, as no path "
                "below the root has. Nothing was searched.",
                next_step="Write it from the workspace root on, or leave it out.",
                details={"argument": "glob"},
            )
        if _has_open_class(name):
            raise Refusal(
                "INVALID_ARGUMENT",
                f"The glob {display(pattern, limit=limits.SHOWN_NAME_CHARACTERS)} has a `[` without its `]`. "
                "Nothing was searched.",
                next_step="Close it as in `[a-z]`, or write `\\[` for the letter.",
                details={"argument": "glob"},
            )


def directory(pattern: str) -> str:
    """Return the directory that holds all that a pattern can match, as far as it is spelt out; `` for the root."""
    above = pattern.removeprefix("/").split("/")[:-1]
    return "/".join(takewhile(lambda name: not any(special in name for special in "*?[{\\"), above))


class Glob:
    """One pattern: `*` and `?` stay within a name, `**` crosses names, `[a-z]` is one of, `{a,b}` either.

    Without a slash, but for one at the end, it matches a name at any depth; else the path from the start.

    Args:
        braces: Whether `{a,b}` is special; in .gitignore it is not.
    Raises: Refusal INVALID_ARGUMENT for one that is too long, or has too many alternatives.
    """

    def __init__(self, pattern: str, *, braces: bool = True) -> None:
        if len(pattern) > limits.SEARCH_PATTERN_CHARACTERS:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"The glob is longer than {limits.SEARCH_PATTERN_CHARACTERS:,} characters. Nothing was done.",
            )
        self.directories_only = pattern.endswith("/")
        bodies = _alternatives(pattern.rstrip("/")) if braces else [pattern.rstrip("/")]
        self._matchers = [_matcher(body) for body in bodies]

    def matches(self, path: str) -> bool:
        """Return whether the path itself matches; what is below it does not count."""
        return any(matcher(path) for matcher in self._matchers)


def _matcher(body: str) -> Callable[[str], bool]:
    if "/" not in body:
        name = _segment(body)
        return lambda path: name(path.rpartition("/")[2])
    parts = [_ANY if part == "**" else _segment(part) for part in body.removeprefix("/").split("/")]
    if parts[-1] is _ANY:
        parts.append(_segment("*"))  # `a/**` is what is below `a`, not `a`
    last = parts[-1]
    assert last is not _ANY
    if parts[:-1] == [_ANY]:
        return lambda path: last(path.rpartition("/")[2])
    # Most paths fail by their last name, which is the cheapest to look at.
    return lambda path: last(path.rpartition("/")[2]) and _match_segments(parts, path.split("/"))


def _match_segments(parts: list[Segment | None], names: list[str]) -> bool:
    """Match names one by one, going back to the last `**` alone."""
    at = star = -1
    at = 0
    position = resume = 0
    while position < len(names):
        part = parts[at] if at < len(parts) else _segment_of_nothing
        if part is _ANY:
            star, resume = at, position
            at += 1
        elif part is not None and part(names[position]):
            at += 1
            position += 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(part is _ANY for part in parts[at:])


def _segment_of_nothing(_: str) -> bool:
    return False


def _segment(pattern: str) -> Segment:
    """Return the matcher of one name, by the cheapest means that is right."""
    stem = pattern.strip("*")
    if not any(special in stem for special in "*?[\\"):
        if stem == pattern:
            return pattern.__eq__
        if not stem:
            return lambda _: True
    start, star, end = pattern.partition("*")
    if star and not any(special in start + end for special in "*?[\\"):
        shortest = len(start) + len(end)
        return lambda name: name.startswith(start) and name.endswith(end) and len(name) >= shortest
    tokens = _tokens(pattern)
    return lambda name: _match_tokens(tokens, name)


Token = Callable[[str], bool] | None


def _tokens(pattern: str) -> list[Token]:
    """Split one name's pattern into tests of a single character; None stands for a star."""
    tokens: list[Token] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*":
            if not tokens or tokens[-1] is not None:
                tokens.append(None)
        elif character == "?":
            tokens.append(lambda _: True)
        elif character == "[" and (end := _class_end(pattern, position)) > 0:
            tokens.append(_one_of(pattern[position:end]))
            position = end + 1
        else:
            if character == "\\" and position < len(pattern):
                character = pattern[position]
                position += 1
            tokens.append(character.__eq__)
    return tokens


def _class_end(pattern: str, inside: int) -> int:
    """Return where the `]` of a class stands whose first character is at `inside`; -1 where it has none."""
    return pattern.find("]", inside + 1 + pattern.startswith(("!", "^"), inside))


def _has_open_class(pattern: str) -> bool:
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "[":
            position = _class_end(pattern, position) + 1
            if not position:
                return True
        elif character == "\\":
            position += 1
    return False


def _one_of(inside: str) -> Callable[[str], bool]:
    negated = inside[0] in "!^"
    body = inside[1:] if negated else inside
    ranges: list[tuple[str, str]] = []
    position = 0
    while position < len(body):
        if body[position + 1 : position + 2] == "-" and position + 2 < len(body):
            ranges.append((body[position], body[position + 2]))
            position += 3
        else:
            ranges.append((body[position], body[position]))
            position += 1
    return lambda character: any(low <= character <= high for low, high in ranges) is not negated


def _match_tokens(tokens: list[Token], name: str) -> bool:
    """Match characters one by one, going back to the last star alone."""
    at = position = resume = 0
    star = -1
    while position < len(name):
        token = tokens[at] if at < len(tokens) else _segment_of_nothing
        if token is None:
            star, resume = at, position
            at += 1
        elif token(name[position]):
            at += 1
            position += 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(token is None for token in tokens[at:])


def _alternatives(pattern: str) -> list[str]:
    """Write out braces, from the left; unbalanced ones are letters."""
    done: list[str] = []
    left = [pattern]
    looks = 0
    while left:
        body = left.pop()
        looks += 1
        parts = _first_brace(body)
        if parts is None:
            done.append(body)
        else:
            before, choices, after = parts
            left.extend(before + choice + after for choice in choices)
        # Pairs of braces with one choice grow nothing, and each is another look at the whole pattern.
        if len(done) + len(left) > _ALTERNATIVES or looks > 2 * _ALTERNATIVES:
            raise Refusal(
                "INVALID_ARGUMENT", f"The glob has over {_ALTERNATIVES} alternatives in braces. Nothing was done."
            )
    return done


def _first_brace(body: str) -> tuple[str, list[str], str] | None:
    """Return what is before the first pair of braces, the choices in it, and what is behind it."""
    start, depth, begin, position = -1, 0, 0, 0
    choices: list[str] = []
    while position < len(body):
        character = body[position]
        if character == "\\":
            position += 1  # what is behind it is a letter
        elif character == "[" and (end := _class_end(body, position + 1)) > 0 and "/" not in body[position:end]:
            position = end
        elif character == "{":
            if start < 0:
                start, begin = position, position + 1
            depth += 1
        elif start >= 0 and character in ",}":
            depth -= character == "}"
            if depth == 0 or (depth == 1 and character == ","):
                choices.append(body[begin:position])
                begin = position + 1
            if depth == 0:
                return body[:start], choices, body[position + 1 :]
        position += 1
    return None
