"""What an errno of a file operation means to a caller."""

from __future__ import annotations

import errno
import stat
from typing import Final

from codespace.errors import Refusal

_NOTHING: Final = "Nothing was changed."


def refusal(error: OSError, path: str, left: str = _NOTHING) -> Refusal:
    """Return the refusal for `error` at `path`.

    Args:
        error: What the kernel said.
        path: Relative to the root, as the caller knows it.
        left: What is on disk now, as a sentence.
    """
    number = error.errno or 0
    details = {"path": path, "errno": errno.errorcode.get(number, str(number))}
    if number == errno.ENOENT:
        return Refusal("FILE_NOT_FOUND", f"{path} does not exist. {left}", details=details)
    if number == errno.ENOTDIR:
        return Refusal("PATH_NOT_DIRECTORY", f"A component of {path} is not a directory. {left}", details=details)
    if number == errno.ELOOP:
        return Refusal("SYMLINK_REJECTED", f"A symbolic link lies on {path}. {left}", details=details)
    if number == errno.EXDEV:
        return Refusal(
            "PATH_ESCAPE",
            f"{path} lies on another filesystem that is mounted below the workspace root. {left}",
            next_step="Leave it alone, or ask the operator for `allow_submounts`.",
            details=details,
        )
    if number == errno.EAGAIN:
        return Refusal(
            "FILE_OPERATION_FAILED",
            f"Another program has a lease on {path} and does not let go of it. {left}",
            next_step="Call again in a minute; the kernel ends the lease by then.",
            retryable=True,
            details=details,
        )
    reason = error.strerror or "unknown"
    return Refusal("FILE_OPERATION_FAILED", f"{path}: {reason} ({details['errno']}). {left}", details=details)


def not_a_file(mode: int, path: str) -> Refusal:
    """Return the refusal for something at `path` that is no regular file."""
    if stat.S_ISLNK(mode):
        return Refusal("SYMLINK_REJECTED", f"{path} is a symbolic link. {_NOTHING}", details={"path": path})
    kind = _kind(mode)
    return Refusal(
        "SPECIAL_FILE_REJECTED",
        f"{path} is a {kind}, not a regular file. {_NOTHING}",
        details={"path": path, "kind": kind},
    )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "directory",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
