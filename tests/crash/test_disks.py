"""Disks that stand in the way, for real: full, read-only, out of inodes; in mounts that the test makes for itself.

Each test runs its part in a child with a mount namespace of its own, so that nothing is left mounted. Where
mounting is impossible (no user namespaces, no root) it is skipped with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mounted.py")


def argv(*words: str) -> list[str]:
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    return ["unshare", *namespaces, sys.executable, "-I", str(PROGRAM), *words]


@cache
def why_not() -> str | None:
    """Return why nothing can be mounted here; None where it can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tried = subprocess.run(argv("nothing", folder), capture_output=True, text=True, check=False, timeout=60)
        except OSError as error:
            return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip()[-200:]


def told(scene: str, folder: Path) -> dict[str, Any]:
    if (reason := why_not()) is not None:
        pytest.skip(f"nothing can be mounted here: {reason}")
    done = subprocess.run(argv(scene, str(folder)), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


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


def test_a_disk_without_inodes_refuses_a_patch_before_anything_is_written(tmp_path: Path) -> None:
    found = told("no inodes", tmp_path)
    assert found["status"] == "rejected"
    assert found["tree"] == {"a": "one\n"}


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


def test_a_patch_works_on_a_root_that_is_a_mount_and_over_an_overlay(tmp_path: Path) -> None:
    found = told("overlay", tmp_path)
    assert found["status"] == "applied"
    assert found["tree"] == {"a": "two\n"}
