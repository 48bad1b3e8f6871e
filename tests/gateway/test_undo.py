"""operation_undo in a whole daemon: exactly as before, or a refusal; held, repeated and undone like a patch."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults

PATCH = """*** Begin Patch
*** Update File: a
@@
-one
+two
*** Add File: new/deep/b
+b
*** Delete File: gone
*** Update File: from
*** Move to: to/here
@@
-one
+moved
*** End Patch
"""
FILES = {"a": "one\n", "gone": "bye\n", "from": "one\n", "kept": "kept\n"}


OWNER = 65_533 if os.geteuid() == 0 else os.geteuid()
"""Of a file that is patched: somebody else's, where the account may give files away."""


NOBODY = 0xFFFFFFFF
"""In the place of an id, in an entry of an access list that has none."""


def look(root: Path) -> dict[str, tuple[bytes, int, int, int, dict[str, bytes]]]:
    found = {}
    for path in sorted(root.rglob("*")):
        names = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        data = path.read_bytes() if path.is_file() else b""
        status = path.stat()
        found[str(path.relative_to(root))] = (data, status.st_mode, status.st_uid, status.st_gid, names)
    return found


def dress(root: Path) -> None:
    (root / "a").chmod(0o741)
    (root / "gone").chmod(0o600)
    (root / "from").chmod(0o755)
    os.setxattr(root / "gone", "user.note", b"kept")
    for name in ("gone", "from"):
        os.chown(root / name, OWNER, -1)


async def code(bench: Bench, tool: str, /, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value.code


async def test_an_undo_makes_everything_as_it_was_and_its_own_undo_takes_that_back() -> None:
    async with open_bench(files=FILES) as bench:
        dress(bench.root)
        before = look(bench.root)
        applied = await bench.call("apply_patch", patch=PATCH)
        after = look(bench.root)
        undone = await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert undone["status"] == "applied"
        assert {(change["kind"], change["path"]) for change in undone["changes"]} == {
            ("update", "a"),
            ("delete", "new/deep/b"),
            ("add", "gone"),
            ("move", "from"),
        }
        assert "+one" in undone["diff"]
        assert look(bench.root) == before
        again = await bench.call("operation_undo", operation_id=undone["operation_id"])
        assert look(bench.root) == after
        await bench.call("operation_undo", operation_id=again["operation_id"])
        assert look(bench.root) == before


async def test_an_undo_is_refused_once_a_file_is_another_and_nothing_is_written() -> None:
    for path in ("a", "new/deep/b", "to/here", "gone"):
        async with open_bench(files=FILES) as bench:
            applied = await bench.call("apply_patch", patch=PATCH)
            (bench.root / path).write_text("somebody's\n")
            found = look(bench.root)
            assert await code(bench, "operation_undo", operation_id=applied["operation_id"]) == "VERSION_CONFLICT"
            assert look(bench.root) == found


@pytest.mark.parametrize("path", ["a", "to/here"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.chmod(0o640), "has mode 0640, the operation left it with 07"),
        (
            lambda path: os.setxattr(path, "user.mine", b"1"),
            "has other attributes than the operation left it with (user.mine)",
        ),
    ],
)
async def test_an_undo_is_refused_once_a_file_carries_something_else(
    path: str, change: Callable[[Path], None], said: str
) -> None:
    async with open_bench(files=FILES) as bench:
        dress(bench.root)
        applied = await bench.call("apply_patch", patch=PATCH)
        change(bench.root / path)
        found = look(bench.root)
        with pytest.raises(Refusal, match="VERSION_CONFLICT") as refused:
            await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert refused.value.message.startswith(f"{path} {said}")
        assert look(bench.root) == found


ACCESS = struct.pack(
    "<I" + "HHI" * 5, 2, *(1, 6, NOBODY), *(2, 7, 1000), *(4, 4, NOBODY), *(16, 7, NOBODY), *(32, 4, NOBODY)
)
"""An access list: owner rw, user 1000 rwx, group r, mask rwx, others r. Source: linux/posix_acl_xattr.h, version 2."""


async def test_a_move_over_a_file_with_an_access_list_is_undone_and_that_undone_in_turn() -> None:
    """The mode of the moved file is written into the list of the other."""
    patch = (
        "*** Begin Patch\n*** Delete File: gone\n*** Update File: a\n*** Move to: gone\n@@\n-one\n+two\n*** End Patch\n"
    )
    async with open_bench(files=FILES) as bench:
        os.setxattr(bench.root / "gone", "system.posix_acl_access", ACCESS)
        (bench.root / "a").chmod(0o600)
        before = look(bench.root)
        applied = await bench.call("apply_patch", patch=patch)
        after = look(bench.root)
        undone = await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert look(bench.root) == before
        await bench.call("operation_undo", operation_id=undone["operation_id"])
        assert look(bench.root) == after


async def test_an_undo_that_was_done_already_is_told_as_done() -> None:
    async with open_bench(files=FILES) as bench:
        applied = await bench.call("apply_patch", patch=PATCH)
        await bench.call("operation_undo", operation_id=applied["operation_id"])
        with pytest.raises(Refusal, match="VERSION_CONFLICT") as refused:
            await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert "nothing to undo" in refused.value.message
        assert "as done" in str(refused.value.next_step)


async def test_a_directory_that_somebody_uses_by_now_stays() -> None:
    async with open_bench(files=FILES) as bench:
        applied = await bench.call("apply_patch", patch=PATCH)
        (bench.root / "new/theirs").write_text("theirs\n")
        await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert (bench.root / "new/theirs").read_text() == "theirs\n"
        assert not (bench.root / "new/deep").exists()
        assert not (bench.root / "to").exists()


async def test_an_undo_repeats_by_its_key_and_never_its_effect() -> None:
    async with open_bench(files=FILES) as bench:
        applied = await bench.call("apply_patch", patch=PATCH)
        first = await bench.call("operation_undo", operation_id=applied["operation_id"], operation_key="undo")
        again = await bench.call("operation_undo", operation_id=applied["operation_id"], operation_key="undo")
        assert (again["replayed"], again["operation_id"]) == (True, first["operation_id"])
        status = await bench.call("operation_status", operation_key="undo")
        assert (status["kind"], status["status"]) == ("patch", "applied")
        other = await code(bench, "operation_undo", operation_id=first["operation_id"], operation_key="undo")
        assert other == "OPERATION_KEY_CONFLICT"


async def test_only_what_was_applied_can_be_undone() -> None:
    async with open_bench(files=FILES) as bench:
        assert await code(bench, "operation_undo", operation_id="op-nothing") == "OPERATION_NOT_FOUND"
        assert (
            await code(
                bench,
                "apply_patch",
                patch=PATCH.replace("-bye", ""),
                operation_key="k",
                expected_versions={"a": "absent"},
            )
            == "VERSION_CONFLICT"
        )
        rejected = (await bench.call("operation_status", operation_key="k"))["operation_id"]
        assert await code(bench, "operation_undo", operation_id=rejected) == "INVALID_ARGUMENT"
        ran = await bench.call("exec_command", command=["true"])
        assert await code(bench, "operation_undo", operation_id=ran["operation_id"]) == "INVALID_ARGUMENT"


async def test_an_undo_is_held_where_patches_are_and_is_bound_to_what_was_shown() -> None:
    async with open_bench(files=FILES, approvals="confirm") as bench:

        async def granted(tool: str, **arguments: Any) -> str:
            with pytest.raises(Refusal) as caught:
                await bench.call(tool, **arguments)
            assert caught.value.code == "APPROVAL_REQUIRED"
            assert caught.value.approval_id is not None
            await bench.call("approval_resolve", approval_id=caught.value.approval_id, decision="grant")
            return caught.value.approval_id

        patch = await granted("apply_patch", patch=PATCH)
        done = (await bench.call("operation_resume", approval_id=patch))["apply_patch"]
        undo = await granted("operation_undo", operation_id=done["operation_id"])
        shown = (await bench.call("approval_status", approval_id=undo))["shown"]
        assert "a" in shown["files"]
        resumed = await bench.call("operation_resume", approval_id=undo)
        assert resumed["operation_undo"]["status"] == "applied"
        assert (bench.root / "a").read_text() == "one\n"


async def test_what_was_forgotten_cannot_be_undone() -> None:
    async with open_bench(files=FILES) as bench:
        applied = await bench.call("apply_patch", patch=PATCH)
        shutil.rmtree(Path(bench.daemon.settings.state_dir, "journal", applied["operation_id"]))
        assert await code(bench, "operation_undo", operation_id=applied["operation_id"]) == "SNAPSHOT_EXPIRED"


async def test_a_damaged_snapshot_is_never_written_back() -> None:
    async with open_bench(files={"a": "x" * 100_000 + "\none\n"}) as bench:
        applied = await bench.call(
            "apply_patch", patch="*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** End Patch"
        )
        journal = Path(bench.daemon.settings.state_dir, "journal", applied["operation_id"])
        (journal / "before/0").write_bytes(b"other bytes")
        assert await code(bench, "operation_undo", operation_id=applied["operation_id"]) == "SNAPSHOT_EXPIRED"


async def test_another_daemon_with_another_state_directory_undoes_it_too() -> None:
    async with open_bench(files=FILES) as bench:
        before = look(bench.root)
        applied = await bench.call("apply_patch", patch=PATCH)
        database = bench.daemon.settings.database
        async with open_bench(environ={"CODESPACE_OPERATIONS_DB": database}) as second:
            second.site.add_workspace("main", root=bench.root)
            await second.restart()
            undone = await second.call("operation_undo", operation_id=applied["operation_id"])
            assert undone["status"] == "applied"
            assert look(bench.root) == before


@pytest.mark.parametrize("verb", ["plan", "stage"])
async def test_a_look_at_an_undo_of_another_daemons_patch_leaves_what_is_planned_or_staged_its_helper(
    verb: str,
) -> None:
    faults = Faults()
    async with open_bench(files=FILES) as bench:
        before = look(bench.root)
        undo = {"operation_id": (await bench.call("apply_patch", patch=PATCH))["operation_id"]}
        environ = {"CODESPACE_OPERATIONS_DB": bench.daemon.settings.database}
        async with open_bench(environ=environ, options={"tools": ["approvals"]}, runner=faults.open_runner) as second:
            second.site.add_workspace("main", root=bench.root)
            await second.restart()
            holds = []

            async def hold() -> None:
                holds.append(await second.call("approval_create", tool="operation_undo", arguments=undo))

            faults.order("after", verb, hold)
            add = await second.call("apply_patch", patch="*** Begin Patch\n*** Add File: next\n+x\n*** End Patch")
            assert add["status"] == "applied"
            approval_id = holds[0]["approval_id"]
            await second.call("approval_resolve", approval_id=approval_id, decision="grant")
            undone = await second.call("operation_resume", approval_id=approval_id)
            assert undone["operation_undo"]["status"] == "applied"
            (bench.root / "next").unlink()
            assert look(bench.root) == before


async def test_an_undo_changes_no_protected_path_though_the_patch_was_allowed_to() -> None:
    patch = "*** Begin Patch\n*** Update File: .mcp.json\n@@\n-{}\n+[]\n*** End Patch"
    async with open_bench(files={".mcp.json": "{}\n"}, workspace={"protected_paths": []}) as bench:
        applied = await bench.call("apply_patch", patch=patch)
        del bench.site.workspaces["main"]["protected_paths"]  # the built-in list again
        bench.site.write()
        await bench.restart()
        assert await code(bench, "operation_undo", operation_id=applied["operation_id"]) == "PROTECTED_PATH"
        assert (bench.root / ".mcp.json").read_text() == "[]\n"


@pytest.mark.parametrize("hidden", [".*", "**/.*", "*.staged"])
async def test_a_patch_and_its_undo_work_where_the_names_that_they_stage_under_look_hidden(hidden: str) -> None:
    async with open_bench(files=FILES, workspace={"hidden_paths": [hidden]}) as bench:
        before = look(bench.root)
        told = await bench.call("apply_patch", patch=PATCH)
        assert told["status"] == "applied"
        assert not list(bench.root.rglob(".codespace*"))
        undone = await bench.call("operation_undo", operation_id=told["operation_id"])
        assert undone["status"] == "applied"
        assert look(bench.root) == before


SWAP = """*** Begin Patch
*** Update File: a
*** Move to: t
@@
 one
*** Update File: b
*** Move to: a
@@
 one
*** Update File: t
*** Move to: b
@@
 one
*** End Patch
"""
MAKE = "*** Begin Patch\n*** Add File: d/e/x\n+x\n*** Delete File: d/e/x\n*** End Patch"


@pytest.mark.parametrize("patch", [SWAP, MAKE], ids=["modes", "directories"])
async def test_a_patch_that_changed_no_bytes_is_undone_and_the_undo_too_and_no_more_than_once(patch: str) -> None:
    async with open_bench(files={"a": "one\n", "b": "one\n"}) as bench:
        (bench.root / "a").chmod(0o755)
        before = look(bench.root)
        applied = await bench.call("apply_patch", patch=patch)
        after = look(bench.root)
        assert after != before
        undone = await bench.call("operation_undo", operation_id=applied["operation_id"])
        assert look(bench.root) == before
        with pytest.raises(Refusal, match="as it was before that operation already"):
            await bench.call("operation_undo", operation_id=applied["operation_id"])
        again = await bench.call("operation_undo", operation_id=undone["operation_id"])
        assert look(bench.root) == after
        with pytest.raises(Refusal, match="as it was before that operation already"):
            await bench.call("operation_undo", operation_id=undone["operation_id"])
        await bench.call("operation_undo", operation_id=again["operation_id"])
        assert look(bench.root) == before
