"""What a file carries beside its bytes: looked at for the journal, compared by an undo, and given again."""

from __future__ import annotations

import base64
import os
import stat

from helper.patch.manifest import Metadata


def carried(held: int) -> Metadata:
    """Return what the file that is held carries; without attributes where its filesystem tells none.

    Raises: OSError.
    """
    status = os.fstat(held)
    return Metadata(stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid), _told(held))


def give(metadata: Metadata, descriptor: int) -> None:
    """Have a file carry `metadata` and nothing else. Raises: OSError, with some of it given."""
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != metadata.owner:
        os.fchown(descriptor, *metadata.owner)
    wanted = {name: base64.b64decode(value) for name, value in metadata.attributes.items()}
    for name in set(_told(descriptor)) - wanted.keys():
        os.removexattr(descriptor, name)
    for name, value in wanted.items():
        os.setxattr(descriptor, name, value)
    os.fchmod(descriptor, metadata.mode)  # last: changing an owner clears the setuid bit


def _told(held: int) -> dict[str, str]:
    path = f"/proc/self/fd/{held}"
    try:
        return {name: base64.b64encode(os.getxattr(path, name)).decode() for name in os.listxattr(path)}
    except OSError:
        return {}  # staging copies them itself and refuses where it cannot; this is the record only
