"""What the helper gives up before it reads a patch: files elsewhere, the network, other programs, its own dump.

Landlock keeps it to the root and its journals, a filter keeps it from making sockets and starting
programs. Where the kernel lacks one, the helper works without it; what is in force is found by trying.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import unicodedata  # noqa: F401 - loaded now: behind Landlock nothing can be imported any more
from collections.abc import Sequence
from typing import Any, Final

from codespace import limits
from codespace.beneath import Root
from codespace.sandbox import callfilter, landlock
from codespace.v4a import explain  # noqa: F401 - likewise

_PR_SET_DUMPABLE: Final = 4
_LIBRARIES: Final = ("/proc/self",)  # the openat walk asks fdinfo which mount a descriptor is on
_READ: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HOLD: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def confine(root: Root, folder: str, readable: Sequence[str], file_bytes: int) -> dict[str, Any]:
    """Keep this process to `root` and the journals in `folder`, for good.

    Args:
        readable: Folders with journals of other daemons, which undo reads.
        file_bytes: Largest file that a patch may write.
    Returns: `files`: whether a write and a look elsewhere were refused by Landlock when tried just now;
        `network`: whether making a socket was; `reason`: why not, where one was not.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    _bound(file_bytes)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    reasons = []
    try:
        found = _lock(root, folder, readable)
    except OSError as error:
        found = 0
        reasons.append(f"Landlock: {error.strerror}")
    try:
        callfilter.deny_sockets_and_programs()
    except OSError as error:
        reasons.append(f"seccomp: {error.strerror}")
    files = _elsewhere_is_denied(folder)
    if not files and not reasons:
        reasons.append("this kernel has no Landlock" if not found else f"Landlock {found} does not hold")
    return {"files": files, "network": _sockets_are_denied(), "landlock": found, "reason": "; ".join(reasons) or None}


def _bound(file_bytes: int) -> None:
    for what, most in (
        (resource.RLIMIT_CORE, limits.CORE_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, limits.HELPER_DESCRIPTORS),
        (resource.RLIMIT_AS, limits.HELPER_MEMORY_BYTES),
        # Python ignores SIGXFSZ: a write over it is an error like a full disk.
        (resource.RLIMIT_FSIZE, max(file_bytes, limits.PATCH_TREE_BYTES) + limits.HELPER_LINE_BYTES),
    ):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (bound, bound))


def _lock(root: Root, folder: str, readable: Sequence[str]) -> int:
    with contextlib.ExitStack() as held:

        def hold(path: str, directory: int | None = None) -> int:
            descriptor = os.open(path, _HOLD, dir_fd=directory)
            held.callback(os.close, descriptor)
            return descriptor

        looks = [hold(path) for path in (*_LIBRARIES, *readable) if os.path.isdir(path)]
        return landlock.restrict(writable=(hold(".", root.fd), hold(folder)), readable=looks)


def _elsewhere_is_denied(folder: str) -> bool:
    """Try to write beside the journals, where the account may, and to list `/`."""
    above = os.path.dirname(folder)
    witness = os.path.join(above, f"witness-{os.getpid()}")
    if not os.access(above, os.W_OK | os.X_OK):
        return False
    try:
        os.mkdir(witness, 0o700)
    except PermissionError:
        return _look_is_denied()
    except OSError:
        return False
    os.rmdir(witness)
    return False


def _look_is_denied() -> bool:
    try:
        os.close(os.open("/", _READ))
    except PermissionError:
        return True
    return False


def _sockets_are_denied() -> bool:
    descriptor = _libc.socket(2, 1, 0)  # AF_INET, SOCK_STREAM: the module `socket` costs 4 ms to import
    if descriptor >= 0:
        os.close(descriptor)
        return False
    return ctypes.get_errno() == errno.EACCES
