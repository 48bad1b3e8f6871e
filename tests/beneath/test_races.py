"""Another process swaps what lies on the path while a reader runs; and mounts below the root."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from codespace.beneath import Root
from codespace.errors import Refusal

_SWAP = """
import sys
from codespace.beneath import RENAME_EXCHANGE, renameat2
import os, select
directory = os.open(sys.argv[1], os.O_PATH)
print("swapping", flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(200):
        renameat2(directory, sys.argv[2], directory, sys.argv[3], RENAME_EXCHANGE)
"""


def _outcomes(root: Root, path: str, directory: Path, first: str, second: str) -> dict[str, int]:
    """Read `path` while its parts are swapped; return how often each content or code came."""
    argv = [sys.executable, "-c", _SWAP, str(directory), first, second]
    seen: dict[str, int] = {}
    deadline = time.monotonic() + 60
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        reads = 0
        while time.monotonic() < deadline and (reads < 3_000 or min(seen.values()) < 20 or len(seen) < 2):
            reads += 1
            try:
                outcome = root.read(path, 100)[0].decode()
            except Refusal as refused:
                outcome = refused.code
            seen[outcome] = seen.get(outcome, 0) + 1
        swapper.communicate(b"end")
    return seen


def test_a_directory_swapped_for_a_link_never_leads_out(root: Root, tree: Path, outside: Path) -> None:
    (tree / "a" / "bad").symlink_to(outside)
    seen = _outcomes(root, "a/b/file", tree / "a", "b", "bad")
    assert set(seen) == {"content\n", "SYMLINK_REJECTED"}  # both: the swaps and the reads did overlap


def test_a_file_swapped_for_a_link_never_leads_out(root: Root, tree: Path, outside: Path) -> None:
    (tree / "a" / "b" / "bad").symlink_to(outside / "file")
    seen = _outcomes(root, "a/b/file", tree / "a" / "b", "file", "bad")
    assert set(seen) == {"content\n", "SYMLINK_REJECTED"}


def test_a_file_swapped_for_a_fifo_never_hangs_the_reader(root: Root, tree: Path) -> None:
    subprocess.run(["/usr/bin/mkfifo", str(tree / "a" / "b" / "bad")], check=True)
    seen = _outcomes(root, "a/b/file", tree / "a" / "b", "file", "bad")
    assert set(seen) == {"content\n", "SPECIAL_FILE_REJECTED"}


_MOUNTED = """
import json, os, subprocess, sys
from codespace.beneath import Root
from codespace.errors import Refusal
tree, outside, primitive = sys.argv[1:]
os.makedirs(tree + "/tmpfs"); os.makedirs(tree + "/bound"); open(tree + "/one", "w").close()
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tree + "/tmpfs"], check=True)
subprocess.run(["mount", "--bind", outside, tree + "/bound"], check=True)
subprocess.run(["mount", "--bind", outside + "/file", tree + "/one"], check=True)
open(tree + "/tmpfs/file", "w").write("mounted")
said = {}
for allowed in (False, True):
    with Root.open(tree, allow_submounts=allowed, primitive=primitive) as root:
        for path in ("tmpfs/file", "bound/file", "one", "a/b/file"):
            try:
                said[f"{path} {allowed}"] = root.read(path, 100)[0].decode()
            except Refusal as refused:
                said[f"{path} {allowed}"] = refused.code
        said[f"walk {allowed}"] = [entry.path for entry in root.walk() if entry.path.count("/")]
print(json.dumps(said))
"""


def test_a_mount_below_the_root_is_refused_unless_allowed(tree: Path, outside: Path, primitive: str) -> None:
    """In a user and mount namespace of its own: a tmpfs, a bound directory and a bound file of the same device."""
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _MOUNTED]
    done = subprocess.run([*argv, str(tree), str(outside), primitive], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [said[f"{path} False"] for path in ("tmpfs/file", "bound/file", "one")] == ["PATH_ESCAPE"] * 3
    assert [said[f"{path} True"] for path in ("tmpfs/file", "bound/file", "one")] == ["mounted", "SECRET", "SECRET"]
    assert said["a/b/file False"] == said["a/b/file True"] == "content\n"
    assert said["walk False"] == ["a/b", "a/b/file"]
    assert sorted(said["walk True"]) == ["a/b", "a/b/file", "bound/file", "tmpfs/file"]
