"""Whether the filesystem below a patch can exchange names and refuse to replace, found by trying."""

from __future__ import annotations

import contextlib
import os
import secrets

from codespace.beneath import STAGED_PREFIX, Root
from codespace.errors import Refusal
from helper.patch.manifest import Manifest


def check_renames(root: Root, manifest: Manifest, known: set[int]) -> None:
    """Try both flags once for each filesystem that the patch writes to; `known` remembers the good ones.

    Raises: Refusal FILE_OPERATION_FAILED; nothing is left.
    """
    for directory in {slot.beside.rpartition("/")[0] for slot in manifest.slots}:
        status = root.look(directory or ".")
        if status is not None and status.st_dev not in known:
            _try(root, directory)
            known.add(status.st_dev)


def _try(root: Root, directory: str) -> None:
    base = f"{directory}/{STAGED_PREFIX}" if directory else STAGED_PREFIX
    first, second, third = (f"{base}{secrets.token_hex(8)}.staged" for _ in range(3))
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
        for path in (first, second, third):
            with contextlib.suppress(Refusal):
                root.remove(path)
