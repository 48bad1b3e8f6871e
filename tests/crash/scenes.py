"""The patches that are cut off: what is there before, what the patch says, what must be there after, modes too."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Tree = Mapping[str, tuple[bytes, int]]
"""Path to bytes and permission bits; a directory is a path that ends with a slash, and has no bytes."""


@dataclass(frozen=True)
class Scene:
    """One patch on one tree."""

    name: str
    before: Mapping[str, str]
    patch: str
    after: Mapping[str, str]

    def build(self, root: Path) -> None:
        """Make the tree in `root` anew; files have a mode that the umask would not give."""
        root.mkdir(exist_ok=True)
        for entry in root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path, text in self.before.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o640)


def look(root: Path) -> Tree:
    """Return everything below `root`, names of the transaction included.

    What a daemon tidies away while it is looked at is left out, as what went a moment before would be.
    """
    found: dict[str, tuple[bytes, int]] = {}
    for folder, directories, names in os.walk(root):
        for name in directories:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):
                found[f"{path.relative_to(root)}/"] = (b"", stat.S_IMODE(path.stat().st_mode))
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):
                found[str(path.relative_to(root))] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    return found


def _patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch", ""))


def _update(path: str, old: str, new: str, move_to: str | None = None) -> tuple[str, ...]:
    move = () if move_to is None else (f"*** Move to: {move_to}",)
    return (f"*** Update File: {path}", *move, "@@", f"-{old}", f"+{new}")


BIG = "".join(f"line {number}\n" for number in range(9000))  # its bytes before do not fit the manifest
MANY = {f"many/f{number:02}": f"old {number}\n" for number in range(20)}

SCENES = (
    Scene(
        "adds",
        {"kept": "kept\n"},
        _patch("*** Add File: new", "+new", "*** Add File: deep/er/new", "+newer"),
        {"kept": "kept\n", "new": "new\n", "deep/er/new": "newer\n"},
    ),
    Scene(
        "updates",
        {"a": "one\n", "d/big": BIG},
        _patch(*_update("a", "one", "two"), *_update("d/big", "line 5000", "changed")),
        {"a": "two\n", "d/big": BIG.replace("line 5000\n", "changed\n")},
    ),
    Scene(
        "deletes",
        {"a": "one\n", "d/b": "two\n", "kept": "kept\n"},
        _patch("*** Delete File: a", "*** Delete File: d/b"),
        {"kept": "kept\n"},
    ),
    Scene(
        "moves",
        {"a": "one\n", "b": "two\n", "kept": "kept\n"},
        _patch(*_update("a", "one", "ONE", "into/a"), *_update("b", "two", "TWO", "c")),
        {"into/a": "ONE\n", "c": "TWO\n", "kept": "kept\n"},
    ),
    Scene(
        "20 files",
        MANY,
        _patch(
            *(line for number in range(16) for line in _update(f"many/f{number:02}", f"old {number}", f"new {number}")),
            *_update("many/f16", "old 16", "new 16", "moved/f16"),
            "*** Delete File: many/f17",
            "*** Delete File: many/f18",
            "*** Add File: many/added",
            "+added",
        ),
        {f"many/f{number:02}": f"new {number}\n" for number in range(16)}
        | {"moved/f16": "new 16\n", "many/f19": "old 19\n", "many/added": "added\n"},
    ),
)


def is_whole(scene: Scene, root: Path, status: str) -> bool:
    """Return whether the tree is, byte for byte and mode for mode, as `status` says, with nothing beside it."""
    found = {path: entry for path, entry in look(root).items() if not path.endswith("/")}
    wanted = scene.after if status == "applied" else scene.before
    made = scene.after.keys() - scene.before.keys() - _targets(scene)
    modes = {path: 0o644 if path in made else 0o640 for path in wanted}
    if found != {path: (text.encode(), modes[path]) for path, text in wanted.items()}:
        return False
    above = {f"{parent}/" for path in (*wanted, *scene.before) for parent in Path(path).parents if str(parent) != "."}
    return {path for path in look(root) if path.endswith("/")} <= above


def _targets(scene: Scene) -> set[str]:
    return {line.removeprefix("*** Move to: ") for line in scene.patch.splitlines() if line.startswith("*** Move to: ")}
