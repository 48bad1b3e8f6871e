"""Whether the filesystem below a patch can exchange names and refuse to replace, found by trying."""

from __future__ import annotations

import contextlib
import os

from codespace.beneath import Root
from codespace.errors import Refusal
from helper.patch.manifest import Manifest, staged_name


def check_renames(root: Root, manifest: Manifest, known: set[int]) -> None:
    """Try both flags once for each filesystem that the patch writes to; `known` remembers the good ones.

    The names are the operation's own, so `remove_probes` finds them after a crash.

    Raises: Refusal FILE_OPERATION_FAILED; nothing is left.
    """
    for directory in _directories(manifest):
        status = root.look(directory or ".")
        if status is not None and status.st_dev not in known:
            _try(root, manifest, directory)
            known.add(status.st_dev)


def remove_probes(root: Root, manifest: Manifest) -> None:
    """Remove what a probe that was cut off left; it is empty, or it is not ours."""
    for directory in _directories(manifest):
        for path in _names(manifest, directory):
            with contextlib.suppress(Refusal):
                status = root.look(path)
                if status is not None and status.st_size == 0:
                    root.remove(path)


def _directories(manifest: Manifest) -> set[str]:
    return {slot.beside.rpartition("/")[0] for slot in manifest.slots}


def _names(manifest: Manifest, directory: str) -> list[str]:
    names = (staged_name(manifest.operation, f"p{number}") for number in range(3))
    return [f"{directory}/{name}" if directory else name for name in names]


def _try(root: Root, manifest: Manifest, directory: str) -> None:
    first, second, third = _names(manifest, directory)
    try:
        for path in (first, second):
            with root.parent(path) as (above, name):
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=above))
        root.exchange(first, second)
        root.move(first, third)
    except (Refusal, OSError) as error:
        code = error.details.get("errno") if isinstance(error, Refusal) and error.details else None
        reason = code or (error.strerror if isinstance(error, OSError) else "unknown")
        raise Refusal(
            "FILE_OPERATION_FAILED",
            f"The filesystem cannot stage a patch in {directory or 'the workspace root'} ({reason}): it has to be "
            "writable and to know RENAME_EXCHANGE and RENAME_NOREPLACE. Nothing was written.",
            next_step="Use a workspace on a common local filesystem (ext4, xfs, btrfs, tmpfs).",
        ) from error
    finally:
        remove_probes(root, manifest)
