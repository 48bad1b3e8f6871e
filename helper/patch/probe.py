"""Whether the filesystem below a patch can exchange names and refuse to replace, found by trying."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Final

from codespace.beneath import Root, kernel
from codespace.beneath.faults import refusal
from helper.patch.journal import Journal
from helper.patch.manifest import PROBE, Manifest, staged_name
from helper.patch.patience import Patience
from helper.patch.sight import throw_away

_UNKNOWN_FLAGS: Final = frozenset(errno.errorcode[number] for number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))


def probe_renames(root: Root, manifest: Manifest, known: dict[int, bool]) -> None:
    """Try both flags once for each filesystem that the patch writes to, and note in `known` whether it has them.

    The names are the operation's own, so `remove_probes` finds them after a crash.

    Raises: Refusal FILE_OPERATION_FAILED where not even a file can be made; nothing is left.
    """
    for directory in sorted(_directories(manifest)):
        status = root.look(directory or ".")
        if status is not None and status.st_dev not in known:
            known[status.st_dev] = _try(root, manifest, directory)


def remove_probes(root: Root, manifest: Manifest, journal: Journal, patience: Patience) -> bool:
    """Remove what a probe that was cut off left. It is empty; other bytes are somebody's, and are rescued first.

    Returns: whether nothing is left.
    """
    paths = [path for directory in sorted(_directories(manifest)) for path in _names(manifest, directory)]
    removed = [patience.insist(partial(throw_away, root, PROBE, path, (), journal)) for path in paths]
    return all(removed)


def _directories(manifest: Manifest) -> set[str]:
    return {slot.beside.rpartition("/")[0] for slot in manifest.slots}


def _names(manifest: Manifest, directory: str) -> list[str]:
    names = (staged_name(manifest.operation, f"p{number}") for number in range(3))
    return [f"{directory}/{name}" if directory else name for name in names]


def _try(root: Root, manifest: Manifest, directory: str) -> bool:
    """Try in one held directory, so that one that is moved or swapped meanwhile does not keep what was made in it."""
    paths = _names(manifest, directory)
    where = directory or "the workspace root"
    has_flags = True
    with root.parent(paths[0]) as (held, _):
        first, second, third = (path.rpartition("/")[2] for path in paths)
        try:
            for name in (first, second):
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=held))
            kernel.renameat2(held, first, held, second, kernel.RENAME_EXCHANGE)
            kernel.renameat2(held, first, held, third, kernel.RENAME_NOREPLACE)
        except OSError as error:
            if errno.errorcode.get(error.errno or 0) not in _UNKNOWN_FLAGS:
                raise refusal(error, where, "Nothing was written.") from error
            has_flags = False
        finally:
            left = [why for name in (first, second, third) if (why := _remove(held, name)) is not None]
    if left:  # such as a directory that is outside the root for a moment, where the helper may remove nothing
        raise refusal(left[0], where, "Nothing was written.") from left[0]
    return has_flags


def _remove(held: int, name: str) -> OSError | None:
    """Remove what the probe made: an empty file; what is not empty is somebody else's. Returns: why it is left."""
    try:
        if os.stat(name, dir_fd=held, follow_symlinks=False).st_size:
            return FileExistsError(errno.EEXIST, "a file that tries the filesystem was replaced by another program")
        os.unlink(name, dir_fd=held)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error
    return None
