"""A tree in memory, and what a test needs to say what a patch does to one file."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from codespace.errors import Refusal
from codespace.v4a import Directory, File, parse, plan
from codespace.v4a.paths import parents


class MemoryTree:
    """Files by path; their parents are directories."""

    def __init__(self, files: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> None:
        self.files = {path: File(data, (modes or {}).get(path, 0o644)) for path, data in files.items()}
        self.directories = {parent for path in files for parent in parents(path)}
        self.asked: list[str] = []

    def look(self, path: str) -> File | Directory | None:
        self.asked.append(path)
        return Directory() if path in self.directories else self.files.get(path)


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def update(*lines: str, path: str = "f") -> str:
    return envelope(f"*** Update File: {path}", *lines)


def updated(before: bytes, *lines: str) -> bytes:
    """Return a file's bytes after an update made of these lines."""
    changes = plan(parse(update(*lines)), MemoryTree({"f": before})).changes
    if not changes:
        return before
    (change,) = changes
    assert (change.path, change.kind, change.before) == ("f", "update", before)
    assert change.after is not None
    return change.after


def refused(before: bytes, *lines: str) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        plan(parse(update(*lines)), MemoryTree({"f": before}))
    return refusal.value


def lines_of(content: bytes) -> list[bytes]:
    *ended, last = content.split(b"\n")
    return [line + b"\n" for line in ended] + ([last] if last else [])


def apply_diff(before: bytes, diff: str) -> bytes:
    """Apply a unified diff of one file to the letter; a count or context that is wrong is an error."""
    source, out, at = lines_of(before), list[bytes](), 0
    lines = lines_of(diff.encode())
    number = next((number for number, line in enumerate(lines) if line.startswith(b"@@ ")), len(lines))
    while number < len(lines):
        (old_start, old_left), (new_start, new_left) = (
            map(int, part[1:].split(b",")) for part in lines[number].split()[1:3]
        )
        number += 1
        start = old_start - (old_left > 0)
        out += source[at:start]
        at = start
        assert len(out) == new_start - (new_left > 0)
        while old_left or new_left:
            sign, text = lines[number][:1], lines[number][1:]
            number += 1
            if number < len(lines) and lines[number].startswith(b"\\"):
                text, number = text.removesuffix(b"\n"), number + 1
            if sign != b"+":
                assert source[at] == text
                at, old_left = at + 1, old_left - 1
            if sign != b"-":
                out.append(text)
                new_left -= 1
    return b"".join([*out, *source[at:]])


class Bench:
    """The functions of this file: test modules cannot import each other."""

    Tree = MemoryTree
    envelope = staticmethod(envelope)
    update = staticmethod(update)
    updated = staticmethod(updated)
    refused = staticmethod(refused)
    apply_diff = staticmethod(apply_diff)


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench
