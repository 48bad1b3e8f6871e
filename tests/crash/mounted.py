"""A program of the tests for a mount namespace of its own: `mounted.py SCENE FOLDER` tells what happened as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patcher import Patcher

UPDATE = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** End Patch"
BOTH = UPDATE.replace("*** End Patch", "*** Update File: b\n@@\n-one\n+two\n*** End Patch")
LARGE = "*** Begin Patch\n*** Add File: large\n" + "+" + "x" * 3_000_000 + "\n*** End Patch"
SMALL = "*** Begin Patch\n*** Add File: d/small\n+x\n*** End Patch"
OPERATION = "op-cccccccccccccccccccccccc"


class Place:
    """A root on a mount, and a state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.state = folder / "state"
        self.root.mkdir()
        self.state.mkdir()
        self.workspace = Workspace("w", str(self.root), "workspace-write")

    def mount(self, where: Path, kind: str, options: str) -> None:
        subprocess.run(["mount", "-t", kind, "-o", options, "none", str(where)], check=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.root)], check=True)

    def told(self) -> dict[str, Any]:
        journals = self.state / "journal"
        return {
            "tree": {
                str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()
            },
            "journals": sorted(os.listdir(journals)) if journals.exists() else [],
        }

    async def apply(self, patch: str) -> dict[str, Any]:
        """Apply a patch as the gateway does up to the first rename; say how it went."""
        async with Patcher(str(self.state)) as patcher:
            await patcher.plan(self.workspace, OPERATION, patch, {})
            try:
                await patcher.stage(self.workspace, OPERATION)
            except Refusal as refusal:
                await patcher.finish(self.workspace, OPERATION)
                return {"status": "rejected", "message": refusal.message}
            assert (await patcher.install(self.workspace, OPERATION)).clean
            assert (await patcher.verify(self.workspace, OPERATION)).clean
            assert (await patcher.finish(self.workspace, OPERATION)).clean
            return {"status": "applied"}


async def nothing(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=1m")
    return {}


async def full(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=2m")
    (place.root / "a").write_text("one\n")
    return await place.apply(LARGE)


async def full_state(place: Place) -> dict[str, Any]:
    place.mount(place.state, "tmpfs", "size=2m")
    (place.root / "a").write_text("one\n")
    fill(place.state)
    return await place.apply(SMALL)


def fill(folder: Path) -> None:
    """Fill the filesystem of a folder to the last block."""
    (folder / "journal").mkdir()
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


async def no_inodes(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=8m,nr_inodes=3")
    (place.root / "a").write_text("one\n")
    return await place.apply(SMALL)


async def read_only(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=8m")
    (place.root / "a").write_text("one\n")
    place.remount("ro")
    return await place.apply(UPDATE)


async def turns_read_only(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=8m")
    for name in ("a", "b"):
        (place.root / name).write_text("one\n")
    async with Patcher(str(place.state)) as patcher:
        await patcher.plan(place.workspace, OPERATION, BOTH, {})
        await patcher.stage(place.workspace, OPERATION)
        (place.root / "b").unlink()
        (place.root / "b").mkdir()
        assert not (await patcher.install(place.workspace, OPERATION)).clean
        (place.root / "b").rmdir()
        (place.root / "b").write_text("one\n")
        place.remount("ro")
        found: dict[str, Any] = {}
        try:
            await patcher.restore(place.workspace, OPERATION)
        except Refusal as refusal:
            found["while read-only"] = refusal.code
        place.remount("rw")
    async with Patcher(str(place.state)) as patcher:
        settled = await patcher.settle(place.workspace, OPERATION)
        assert settled is not None
        found["afterwards"] = settled[0]
        await patcher.finish(place.workspace, OPERATION)
    return found


async def overlay(place: Place) -> dict[str, Any]:
    layers = place.folder / "layers"
    layers.mkdir()
    place.mount(layers, "tmpfs", "size=8m")
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    (layers / "lower/a").write_text("one\n")
    place.mount(place.root, "overlay", f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work")
    return await place.apply(UPDATE)


SCENES: dict[str, Callable[[Place], Awaitable[dict[str, Any]]]] = {
    "nothing": nothing,
    "full": full,
    "full state": full_state,
    "no inodes": no_inodes,
    "read-only": read_only,
    "turns read-only": turns_read_only,
    "overlay": overlay,
}


def main() -> None:
    folder = Path(sys.argv[2], f"mounted-{os.getpid()}")
    folder.mkdir()
    place = Place(folder)
    found = trio.run(SCENES[sys.argv[1]], place)
    print(json.dumps(found | place.told()))


if __name__ == "__main__":
    main()
