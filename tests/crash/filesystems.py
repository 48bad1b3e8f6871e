"""Filesystems that a test mounts for itself, in its own mount namespace, and what only their programs can make of them.

Two know no flags of rename: an NTFS image, and what an SFTP server serves, where a link has an inode number of its
own. One, btrfs, has a quota.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SFTP_SERVER = "/usr/lib/openssh/sftp-server"
MOUNT_SECONDS = 60.0
QUOTA = "1M"


class Unmountable(Exception):
    """This machine cannot mount such a filesystem, whoever asks."""


@contextmanager
def ntfs(folder: Path, where: Path) -> Iterator[None]:
    """Serve an NTFS image at `where`: hard links, modes and attributes as anywhere, no flags of rename."""
    image = _image(folder, 16)
    _run("mkntfs", "--quick", "--force", "--quiet", str(image))
    with _served(where, "ntfs-3g", "-o", "permissions,no_detach", str(image), str(where)):
        yield


@contextmanager
def sshfs(folder: Path, where: Path, *options: str) -> Iterator[None]:
    """Serve a folder by SFTP at `where`: no flags of rename, no attributes, a link is another inode."""
    behind = folder / "behind"
    behind.mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([program(SFTP_SERVER)], stdin=theirs, stdout=theirs, stderr=2):
        theirs.close()
        words = ("-f", "-o", ",".join(("passive", *options)), f":{behind}", str(where))
        with _served(where, "sshfs", *words, stdin=ours, stdout=ours):
            ours.close()
            yield


def btrfs(folder: Path, where: Path) -> None:
    """Mount a new btrfs at `where` that holds QUOTA bytes."""
    image = _image(folder, 128)
    _run("mkfs.btrfs", "--quiet", "--metadata", "single", str(image))
    _require_device("/dev/loop-control")
    try:
        _run("mount", "-o", "loop", str(image), str(where))
    except OSError as error:
        if "unknown filesystem type" in str(error):
            raise Unmountable(str(error)) from error
        raise
    _run("btrfs", "quota", "enable", str(where))
    _run("btrfs", "qgroup", "limit", QUOTA, str(where))


def subvolume(where: Path) -> None:
    """Make a subvolume of a btrfs."""
    _run("btrfs", "subvolume", "create", str(where))


def program(name: str) -> str:
    """Return the path of an installed program."""
    found = shutil.which(name)
    assert found, f"{name} is not installed; .ci/run installs it"
    return found


def _require_device(path: str) -> None:
    """Raise Unmountable where there is no such device, or it is closed to this account."""
    if not os.access(path, os.R_OK | os.W_OK):
        raise Unmountable(f"{path} cannot be opened")


def _image(folder: Path, size_mib: int) -> Path:
    image = folder / "image"
    image.touch()
    os.truncate(image, size_mib * 1_048_576)
    return image


def _run(name: str, *words: str) -> None:
    done = subprocess.run([program(name), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{name}: {done.stderr.strip()}")


@contextmanager
def _served(where: Path, name: str, *words: str, **streams: Any) -> Iterator[None]:
    """Run the program of a filesystem in the foreground for as long as it is mounted."""
    _require_device("/dev/fuse")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen([program(name), *words], **(quiet | streams)) as serving:
        try:
            _wait_mounted(where, serving)
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(where)], check=False)
            serving.wait(MOUNT_SECONDS)


def _wait_mounted(where: Path, serving: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + MOUNT_SECONDS
    while not os.path.ismount(where):
        if serving.poll() is not None or time.monotonic() > until:
            raise OSError(f"{serving.args!r} mounted nothing")
        time.sleep(0.01)
