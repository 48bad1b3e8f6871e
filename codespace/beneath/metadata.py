"""Owner, mode and extended attributes carried from one file to another, or a refusal.

Both files are held by O_PATH and named through /proc/self/fd, so that neither has to be readable.
"""

from __future__ import annotations

import errno
import os
import stat


def copy(source: int, target: int) -> None:
    """Give the file held by `target` the owner, mode and extended attributes of the one held by `source`.

    The outcome is looked at: a filesystem that swallows a change without a word is an error too.

    Raises: OSError; EPERM where the account may not, EOPNOTSUPP where the filesystem cannot.
    """
    status = os.fstat(source)
    named = f"/proc/self/fd/{target}"
    now = os.fstat(target)
    if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
        os.chown(named, status.st_uid, status.st_gid)
    _copy_attributes(f"/proc/self/fd/{source}", named)
    os.chmod(named, stat.S_IMODE(status.st_mode))  # last: changing an owner clears the setuid bit
    now = os.fstat(target)
    if (now.st_uid, now.st_gid, now.st_mode) != (status.st_uid, status.st_gid, status.st_mode):
        raise OSError(errno.EOPNOTSUPP, "the filesystem did not keep the owner or mode")


def _copy_attributes(source: str, target: str) -> None:
    wanted = _attributes(source)
    present = _attributes(target)
    for name in present.keys() - wanted.keys():
        os.removexattr(target, name)  # such as an access list that the directory hands down
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(target, name, value)


def _attributes(path: str) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
