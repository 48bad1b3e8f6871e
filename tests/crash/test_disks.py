"""Disks that stand in the way, for real: full, over a quota, read-only, out of inodes, without the flags of rename.

Each test runs its part in a child with a mount namespace of its own, so that nothing is left mounted. Where
mounting is impossible (no user namespaces, no root) it is skipped with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts an image, or what a program serves")
CHECKOUT = Path(__file__).parents[2]


def argv(*words: str) -> list[str]:
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    return ["unshare", *namespaces, sys.executable, "-m", "tests.crash.mounted", *words]


@cache
def why_not() -> str | None:
    """Return why nothing can be mounted here; None where it can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run(
                argv("nothing", folder), capture_output=True, text=True, check=False, timeout=120, cwd=CHECKOUT
            )
        except OSError as error:
            return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip()[-200:]


def told(scene: str, folder: Path) -> dict[str, Any]:
    if (reason := why_not()) is not None:
        pytest.skip(f"nothing can be mounted here: {reason}")
    done = subprocess.run(
        argv(scene, str(folder)), capture_output=True, text=True, check=False, timeout=250, cwd=CHECKOUT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(json.loads(done.stdout.splitlines()[-1]))  # behind what a daemon has logged
    if "unmountable" in found:
        pytest.skip(f"no such filesystem can be mounted here: {found['unmountable']}")
    return found


def test_a_disk_that_is_full_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("full", tmp_path)
    assert found["status"] == "rejected"
    assert "No space left" in found["message"]
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


def test_a_state_directory_that_is_full_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("full state", tmp_path)
    assert found["status"] == "rejected"
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


@pytest.mark.parametrize(
    ("scene", "said", "remedy"),
    [
        ("database on a full disk", "No space left on device.", "Make room on its disk"),
        ("database on a read-only disk", "Read-only file system.", "Have its disk mounted so that it can be written"),
    ],
)
def test_a_sound_database_on_such_a_disk_is_told_as_that_and_not_as_one_to_be_restored(
    tmp_path: Path, scene: str, said: str, remedy: str
) -> None:
    found = told(scene, tmp_path)
    for command in ("serve", "list"):
        assert f"{said} {found['state']}/operations.sqlite was not opened." in found[command], found[command]
        assert remedy in found[command]
    assert "restore the file from a backup" not in found["doctor"]
    assert "move it away" not in found["doctor"]


def test_a_disk_without_inodes_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("no inodes", tmp_path)
    assert found["status"] == "rejected"
    assert found["tree"] == {"a": "one\n"}


def test_a_state_directory_whose_inodes_end_with_the_manifest_keeps_nothing_staged(tmp_path: Path) -> None:
    found = told("no inodes of the state", tmp_path)
    assert found["status"] == "rejected"
    assert "No space left" in found["message"]
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


def test_a_state_directory_whose_inodes_end_before_the_renames_says_so_and_settles_once_there_is_room(
    tmp_path: Path,
) -> None:
    found = told("no inodes to install", tmp_path)
    assert [each["code"] for each in found["refusals"]] == ["FILE_OPERATION_FAILED"] * 2
    assert all(each["details"]["errno"] == "ENOSPC" for each in found["refusals"])
    assert found["between"]["a"] == "one\n"
    assert found["settled"] == "rejected"
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


def test_a_read_only_disk_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("read-only", tmp_path)
    assert found["status"] == "rejected"
    assert "Read-only" in found["message"]
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


def test_a_disk_that_turns_read_only_behind_the_renames_leaves_it_unknown_until_it_is_writable_again(
    tmp_path: Path,
) -> None:
    found = told("turns read-only", tmp_path)
    assert found["while read-only"] == "FILE_OPERATION_FAILED"
    assert found["afterwards"] == "failed_rolled_back"
    assert found["tree"] == {"a": "one\n", "b": "one\n"}


def test_a_patch_below_a_mount_that_is_not_there_is_unknown_until_it_is_back(tmp_path: Path) -> None:
    found = told("mount away", tmp_path)
    assert found["closed"] == ["FILE_OPERATION_FAILED"] * 3
    assert found["away"] == ["FILE_OPERATION_FAILED"] * 3
    assert found["back"] == "failed_rolled_back"
    assert found["tree"] == {"m/x": "only\n"}
    assert found["journals"] == []


@needs_root
def test_a_patch_below_a_mount_whose_server_is_gone_is_unknown_until_its_files_are_back(tmp_path: Path) -> None:
    found = told("server gone", tmp_path)
    assert ["ENOTCONN" in message for message in found["away"]] == [True, True]
    assert (found["back"], found["kept"]) == ("failed_partial", ["a"])
    assert found["tree"] == {"a": "theirs\n", "m/x": "one\n"}


@needs_root
def test_a_directory_that_is_made_in_a_subvolume_is_on_the_filesystem_of_its_root(tmp_path: Path) -> None:
    found = told("subvolume", tmp_path)
    assert (found["status"], found["tree"], found["journals"]) == (
        "applied",
        {"sub/new/file": "x\n"},
        ["op-cccccccccccccccccccccccc"],
    )


@needs_root
def test_a_quota_that_is_hit_in_the_middle_of_a_patch_refuses_it_and_leaves_nothing(tmp_path: Path) -> None:
    found = told("quota", tmp_path)
    assert found["refused"]["status"] == "rejected"
    file, _, reason = found["refused"]["message"].partition(": ")
    assert reason == "Disk quota exceeded (EDQUOT). Nothing was written."
    assert file in ("large/1", "large/2"), "some files were staged before"
    assert (found["refused"]["tree"], found["refused"]["journals"]) == ({"a": "one\n"}, [])
    assert (found["later"], found["tree"]) == ("applied", {"a": "two\n"})


@needs_root
def test_a_quota_that_others_use_up_before_the_renames_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    found = told("quota behind staging", tmp_path)
    assert found["refusal"]["details"]["errno"] == "EDQUOT"
    assert found["restored"]
    assert found["finished"]
    assert found["tree"] == {"a": "one\n", "b": "one\n"}
    assert found["journals"] == []


@needs_root
def test_a_quota_of_the_state_directory_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("quota of the state", tmp_path)
    assert found["refused"]["status"] == "rejected"
    assert "Disk quota exceeded" in found["refused"]["message"]
    assert found["tree"] == {"a": "one\n"}
    assert found["journals"] == []


@needs_root
@pytest.mark.parametrize("filesystem", ["ntfs", "sshfs", "sshfs without links"])
def test_a_filesystem_without_the_flags_of_rename_is_named_and_every_patch_of_it_is_whole(
    filesystem: str, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    found = told(filesystem, tmp_path)
    assert list(found["patches"].values()) == [["applied", True, "applied", True]] * 5
    assert [caveat for caveat in found["caveats"] if "RENAME_EXCHANGE" in caveat]
    deaths = [death for scene in found["deaths"].values() for death in scene.items()]
    assert [death for death in deaths if death[1]] == []
    assert {how.partition(": ")[2] for how, _ in deaths} == {"applied", "rejected", "failed_rolled_back"}
    tell(f"{filesystem}: {len(deaths)} kill points of the helper tried")


def test_a_patch_works_on_a_root_that_is_a_mount_and_over_an_overlay(tmp_path: Path) -> None:
    found = told("overlay", tmp_path)
    assert found["status"] == "applied"
    assert found["tree"] == {"a": "two\n"}
