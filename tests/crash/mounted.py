"""A program of the tests for a mount namespace of its own: `-m tests.crash.mounted SCENE FOLDER`.

It tells what happened as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.runner.patch.patcher import Patcher
from codespace.testing import Bench, open_bench, processes

from . import filesystems
from .scenes import SCENES as PATCHES
from .scenes import Scene, is_whole, look
from .stage import PROGRAM, Stage

UPDATE = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** End Patch"
BOTH = UPDATE.replace("*** End Patch", "*** Update File: b\n@@\n-one\n+two\n*** End Patch")
LARGE = "*** Begin Patch\n*** Add File: large\n" + "+" + "x" * 3_000_000 + "\n*** End Patch"
SMALL = "*** Begin Patch\n*** Add File: d/small\n+x\n*** End Patch"
LARGE_FILES = "".join(f"*** Add File: large/{number}\n+{'x' * 400_000}\n" for number in range(4))
LARGER = f"*** Begin Patch\n{LARGE_FILES}*** End Patch"
OPERATION = "op-cccccccccccccccccccccccc"


DEATH_STEP = 61  # of the kill points of a helper on a filesystem of its own; all of them with EVERY_KILL_POINT=1


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

    def bind(self, what: Path, where: Path) -> None:
        """Show a directory at another place as well: a mount on the same device."""
        subprocess.run(["mount", "--bind", str(what), str(where)], check=True)

    def unmount(self, where: Path) -> None:
        subprocess.run(["umount", str(where)], check=True)

    def remount(self, how: str, where: Path | None = None) -> None:
        """Change these options alone: the account by which a tmpfs is listed is none inside a user namespace."""
        mount = ["mount", "--options-mode=ignore", "-o", f"remount,{how}"]
        subprocess.run([*mount, str(where or self.root)], check=True)

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
    use_up(folder / "filler")


def use_up(filler: Path) -> None:
    """Write to a file, and through to the disk, until no more is taken."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
                os.fsync(file.fileno())
        except OSError:
            return


async def database_on_a_full_disk(place: Place) -> dict[str, Any]:
    return behind_a_start(place, lambda: use_up(place.state / "filler"))


async def database_on_a_read_only_disk(place: Place) -> dict[str, Any]:
    return behind_a_start(place, lambda: place.remount("ro", place.state))


def behind_a_start(place: Place, turn: Callable[[], None]) -> dict[str, Any]:
    """Return what the commands of an operator say once the disk of a sound database has turned."""
    place.mount(place.state, "tmpfs", "size=4m,mode=700")
    environ = {"HOME": str(place.folder), "PATH": os.environ["PATH"], "CODESPACE_STATE_DIR": str(place.state)}

    def say(*words: str) -> str:
        argv = [sys.executable, "-m", "codespace", *words]
        done = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr

    say("serve", "--stdio")
    turn()
    told = {"serve": say("serve", "--stdio"), "list": say("operations", "list"), "doctor": say("doctor")}
    return told | {"state": str(place.state)}


async def no_inodes(place: Place) -> dict[str, Any]:
    place.mount(place.root, "tmpfs", "size=8m,nr_inodes=3")
    (place.root / "a").write_text("one\n")
    return await place.apply(SMALL)


async def no_inodes_of_the_state(place: Place) -> dict[str, Any]:
    """The journal of the patch and its manifest take the last ones, so that it cannot be marked as staged."""
    place.mount(place.state, "tmpfs", "size=8m,nr_inodes=4")
    (place.root / "a").write_text("one\n")
    return await place.apply(SMALL)


async def no_inodes_to_install(place: Place) -> dict[str, Any]:
    """One more inode: what is staged is marked, and that it is going to be installed cannot be."""
    place.mount(place.state, "tmpfs", "size=8m,nr_inodes=5")
    (place.root / "a").write_text("one\n")
    async with Patcher(str(place.state)) as patcher:
        await patcher.plan(place.workspace, OPERATION, SMALL, {})
        await patcher.stage(place.workspace, OPERATION)
        codes = []
        for verb in (patcher.install, patcher.settle):
            try:
                await verb(place.workspace, OPERATION)
            except Refusal as refusal:
                codes.append(refusal.body())
        between = place.told()["tree"]
        place.remount("nr_inodes=50", place.state)
        settled = await patcher.settle(place.workspace, OPERATION)
        await patcher.finish(place.workspace, OPERATION)
    return {"refusals": codes, "between": between, "settled": settled and settled[0]}


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


async def mount_away(place: Place) -> dict[str, Any]:
    """Settle a patch that was cut off before its only rename while the mount that it was made for is not as it was."""
    store, below = place.folder / "store", place.root / "m"
    store.mkdir()
    below.mkdir()
    (store / "x").write_text("only\n")
    place.bind(store, below)
    workspace = replace(place.workspace, allow_submounts=True)
    async with Patcher(str(place.state)) as patcher:
        await patcher.plan(workspace, OPERATION, "*** Begin Patch\n*** Delete File: m/x\n*** End Patch", {})
        await patcher.stage(workspace, OPERATION)
    journal = place.state / "journal" / OPERATION
    os.link(journal / "manifest.json", journal / "installing")
    found: dict[str, Any] = {}
    for name, told in (("closed", place.workspace), ("away", workspace)):
        if name == "away":
            place.unmount(below)
        async with Patcher(str(place.state)) as patcher:
            for verb in (patcher.settle, patcher.restore, patcher.finish):
                try:
                    await verb(told, OPERATION)
                except Refusal as refusal:
                    found.setdefault(name, []).append(refusal.code)
    place.bind(store, below)
    async with Patcher(str(place.state)) as patcher:
        settled = await patcher.settle(workspace, OPERATION)
        assert settled is not None
        await patcher.finish(workspace, OPERATION)
    return found | {"back": settled[0]}


async def server_gone(place: Place) -> dict[str, Any]:
    """Settle a patch of two filesystems while the server of one is gone, and when its files are back."""
    below = place.root / "m"
    below.mkdir()
    (place.root / "a").write_text("one\n")
    workspace = replace(place.workspace, allow_submounts=True)
    found: dict[str, Any] = {"away": []}
    with filesystems.sshfs(place.folder, below):
        (below / "x").write_text("one\n")
        async with Patcher(str(place.state)) as patcher:
            await patcher.plan(workspace, OPERATION, BOTH.replace("File: b", "File: m/x"), {})
            await patcher.stage(workspace, OPERATION)
            await patcher.install(workspace, OPERATION)
        (place.root / "a").write_text("theirs\n")  # so that it is taken back
        for pid in processes.children(os.getpid()):
            if processes.command_line(pid).startswith(filesystems.program("sshfs")):
                os.kill(pid, signal.SIGKILL)
        async with Patcher(str(place.state)) as patcher:
            for verb in (patcher.settle, patcher.restore):
                try:
                    await verb(workspace, OPERATION)
                except Refusal as refusal:
                    found["away"].append(refusal.message)
    place.bind(place.folder / "behind", below)
    async with Patcher(str(place.state)) as patcher:
        settled = await patcher.settle(workspace, OPERATION)
        assert settled is not None
        await patcher.finish(workspace, OPERATION)
    return found | {"back": settled[0], "kept": settled[1].kept}


async def subvolume(place: Place) -> dict[str, Any]:
    """Make a directory in a subvolume, which has a device number of its own and is no mount."""
    filesystems.btrfs(place.folder, place.root)
    filesystems.subvolume(place.root / "sub")
    return await place.apply("*** Begin Patch\n*** Add File: sub/new/file\n+x\n*** End Patch")


async def overlay(place: Place) -> dict[str, Any]:
    layers = place.folder / "layers"
    layers.mkdir()
    place.mount(layers, "tmpfs", "size=8m")
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    (layers / "lower/a").write_text("one\n")
    place.mount(place.root, "overlay", f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work")
    return await place.apply(UPDATE)


async def ntfs(place: Place) -> dict[str, Any]:
    with filesystems.ntfs(place.folder, place.root):
        return await every_patch(place)


async def sshfs(place: Place) -> dict[str, Any]:
    with filesystems.sshfs(place.folder, place.root):
        return await every_patch(place)


async def sshfs_without_links(place: Place) -> dict[str, Any]:
    with filesystems.sshfs(place.folder, place.root, "disable_hardlink"):
        return await every_patch(place)


async def every_patch(place: Place) -> dict[str, Any]:
    """Apply and undo each patch through a whole daemon, then with helpers that die."""
    here = {"root": place.root}
    async with open_bench(workspace=here, sandbox=False) as bench:
        found: dict[str, Any] = {scene.name: await there_and_back(bench, scene) for scene in PATCHES}
        info = await bench.call("workspace_info")
    Patcher.__init__.__kwdefaults__["argv"] = (sys.executable, "-I", str(PROGRAM), str(place.folder / "tickets"))
    async with open_bench(workspace=here, sandbox=False, environ={"CODESPACE_RUNNER": "in-process"}) as bench:
        stage = Stage(bench, place.folder / "tickets")
        deaths = {scene.name: await dying(stage, scene) for scene in PATCHES[:4]}
    return {"patches": found, "caveats": info["execution"]["caveats"], "deaths": deaths}


async def there_and_back(bench: Bench, scene: Scene) -> list[Any]:
    """Apply a patch and undo it; return both statuses, and whether the tree was whole after each."""
    scene.build(bench.root)
    before = look(bench.root)
    applied = await bench.call("apply_patch", patch=scene.patch)
    whole = is_whole(scene, bench.root, "applied")
    undone = await bench.call("operation_undo", operation_id=applied["operation_id"])
    return [applied["status"], whole, undone["status"], look(bench.root) == before]


async def dying(stage: Stage, scene: Scene) -> dict[str, list[str]]:
    """Have the helper die here and there in a patch; return how it ended each time, and what was left of it."""
    await stage.play(scene, 0)
    counted = stage.counted()
    ends: dict[str, list[str]] = {}
    step = 1 if os.environ.get("EVERY_KILL_POINT") else DEATH_STEP
    for number in range(counted["plan"] + 1, max(counted.values()) + 1, step):
        status, recorded = await stage.play(scene, number)
        ends[f"{number}: {status}"] = await stage.left(scene, recorded)
    return ends


async def quota(place: Place) -> dict[str, Any]:
    filesystems.btrfs(place.folder, place.root)
    (place.root / "a").write_text("one\n")
    found = await place.apply(LARGER) | place.told()
    os.sync()  # what was removed counts until then
    return {"refused": found, "later": (await place.apply(UPDATE))["status"]}


async def quota_behind_staging(place: Place) -> dict[str, Any]:
    """Have somebody else use up the quota between the staged files and the renames, which need some of it too."""
    filesystems.btrfs(place.folder, place.root)
    for name in ("a", "b"):
        (place.root / name).write_text("one\n")
    async with Patcher(str(place.state)) as patcher:
        await patcher.plan(place.workspace, OPERATION, BOTH, {})
        await patcher.stage(place.workspace, OPERATION)
        filler = place.root / "filler"
        use_up(filler)
        installed = await patcher.install(place.workspace, OPERATION)
        restored = await patcher.restore(place.workspace, OPERATION)
        filler.unlink()
        finished = await patcher.finish(place.workspace, OPERATION)
    return {"refusal": installed.refusal, "restored": restored.clean, "finished": finished.clean}


async def quota_of_the_state(place: Place) -> dict[str, Any]:
    filesystems.btrfs(place.folder, place.state)
    (place.root / "a").write_text("one\n")
    return {"refused": await place.apply(LARGER)}


SCENES: dict[str, Callable[[Place], Awaitable[dict[str, Any]]]] = {
    "nothing": nothing,
    "full": full,
    "full state": full_state,
    "database on a full disk": database_on_a_full_disk,
    "database on a read-only disk": database_on_a_read_only_disk,
    "no inodes": no_inodes,
    "no inodes of the state": no_inodes_of_the_state,
    "no inodes to install": no_inodes_to_install,
    "read-only": read_only,
    "turns read-only": turns_read_only,
    "mount away": mount_away,
    "server gone": server_gone,
    "subvolume": subvolume,
    "overlay": overlay,
    "ntfs": ntfs,
    "sshfs": sshfs,
    "sshfs without links": sshfs_without_links,
    "quota": quota,
    "quota behind staging": quota_behind_staging,
    "quota of the state": quota_of_the_state,
}


def main() -> None:
    folder = Path(sys.argv[2], f"mounted-{os.getpid()}")
    folder.mkdir()
    place = Place(folder)
    try:
        found = trio.run(SCENES[sys.argv[1]], place) | place.told()
    except filesystems.Unmountable as reason:
        found = {"unmountable": str(reason)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
