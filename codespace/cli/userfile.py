"""One file of the user, replaced whole or not at all, with a copy of what was there before.

Used for CodeSpace's own configuration and for the configuration of MCP clients; never for a file of
a workspace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from typing import Final

from codespace import limits

BACKUP_SUFFIX: Final = ".before-codespace"
PRIVATE: Final = 0o600
_GROUP: Final = 0o070


def read(path: str) -> str | None:
    """Return the file's text, None if there is none.

    Raises: OSError, also where it is no regular file, which could hold us up or never come to an end, is too large
        to be one that a person keeps, or is no text.
    """
    try:
        with open(path, "rb", opener=at_once) as file:
            _require_regular(path, os.fstat(file.fileno()))
            content = file.read(limits.USER_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > limits.USER_FILE_BYTES:
        raise OSError(errno.EFBIG, f"It is over {limits.USER_FILE_BYTES} bytes", path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"It is not UTF-8 (byte {error.start}); save it as that", path) from None


def at_once(path: str, flags: int) -> int:
    """Open a file as `open` would, but without waiting: under its name may be a pipe that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def replace(path: str, text: str, *, private: bool) -> str | None:
    """Write `text` to `path`, flushed before it takes the name.

    A link is followed: people keep such files in a repository of their own and link to them. The file and the copy
    keep the owner of what was there.

    Args:
        private: Give the file 0600 whatever it had, because a secret is in it now.
    Returns: The path of the copy of what was there before; None if nothing was.
    Raises: OSError, UnicodeEncodeError, with the old file in place and no copy of it.
    """
    data = text.encode("utf-8")
    real = os.path.realpath(path)
    os.makedirs(os.path.dirname(real), mode=0o700, exist_ok=True)
    mode = PRIVATE
    copied = found = None
    if os.path.lexists(real):
        with open(real, "rb", opener=at_once) as old:
            found = os.fstat(old.fileno())  # not by its name: the copy is given to the owner of what is read here
            _require_regular(real, found)
            mode = PRIVATE if private else stat.S_IMODE(found.st_mode)
            copied = _unused(real + BACKUP_SUFFIX)
            _place(copied, old.read(), PRIVATE, found)
    try:
        _place(real, data, mode, found)
    except BaseException:
        if copied is not None:
            with contextlib.suppress(OSError):
                os.unlink(copied)
        raise
    return copied


def _require_regular(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file", path)


def _unused(path: str) -> str:
    candidate, number = path, 1
    while os.path.lexists(candidate):  # an older copy may be the one that is wanted back
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def _place(path: str, data: bytes, mode: int, before: os.stat_result | None) -> None:
    folder = os.path.dirname(path)
    try:
        descriptor, staged = tempfile.mkstemp(prefix=".codespace-", dir=folder)  # 0600 from the start
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                is_kept = before is None or _keep_owner(file.fileno(), before)
                os.fchmod(file.fileno(), mode if is_kept else mode & ~_GROUP)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
            raise
    except OSError as error:
        error.filename, error.filename2 = folder, None  # of a write it has none, and else one that nobody gave
        raise


def _keep_owner(descriptor: int, before: os.stat_result) -> bool:
    """Return whether the group could be kept too: one that we are not in cannot be given. Raises: OSError."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) == (before.st_uid, before.st_gid):
        return True
    try:
        os.fchown(descriptor, before.st_uid, before.st_gid)
    except OSError as error:
        if made.st_uid == before.st_uid:
            return False
        raise OSError(
            error.errno,
            f"The file that is there belongs to user {before.st_uid}, and this account cannot keep it theirs; do this "
            "as that user, or change its owner first",
        ) from None
    return True
