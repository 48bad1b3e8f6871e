"""Two ways to reach a name below a root without following a link, and the probe that chooses.

Both give an O_PATH descriptor of what is there, which may itself be a link: looking at its type is
the caller's part. Both raise OSError alike: ELOOP for a link on the way, EXDEV for a mount below
the root, ENOENT, ENOTDIR.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from codespace.beneath import kernel
from codespace.beneath.names import PATH_BYTES

Primitive = Literal["openat2", "openat"]

_HOLD: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_RESOLVE: Final = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS


@dataclass(frozen=True, slots=True)
class Anchor:
    """A root as the primitives need it."""

    descriptor: int
    device: int
    mount: int | None
    submounts: bool


def by_openat2(anchor: Anchor, path: str) -> int:
    """Let the kernel resolve the whole path under its own rules, in one step."""
    resolve = _RESOLVE if anchor.submounts else _RESOLVE | kernel.RESOLVE_NO_XDEV
    return kernel.openat2(anchor.descriptor, os.fsencode(path), _HOLD, resolve)


def by_openat(anchor: Anchor, path: str) -> int:
    """Open component by component with O_NOFOLLOW, each from the descriptor of the one before."""
    if len(os.fsencode(path)) > PATH_BYTES:  # the kernel's own limit, which single components would get around
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    held = os.open(".", _HOLD | os.O_DIRECTORY, dir_fd=anchor.descriptor)
    try:
        components = path.split("/")
        for position, component in enumerate(components):
            below = os.open(component, _HOLD, dir_fd=held)
            os.close(held)
            held = below
            _check(anchor, held, path, last=position == len(components) - 1)
    except BaseException:
        os.close(held)
        raise
    return held


def _check(anchor: Anchor, held: int, path: str, *, last: bool) -> None:
    status = os.fstat(held)
    if not anchor.submounts and (status.st_dev != anchor.device or kernel.mount_id(held) != anchor.mount):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    if last or stat.S_ISDIR(status.st_mode):
        return
    number = errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.ENOTDIR
    raise OSError(number, os.strerror(number), path)


REACH: Final[Mapping[Primitive, Callable[[Anchor, str], int]]] = {"openat2": by_openat2, "openat": by_openat}


@functools.lru_cache(maxsize=1)
def primitive_in_force() -> Primitive:
    """Return the primitive that this kernel and its filters allow, found by trying.

    Any refusal of the call itself (ENOSYS, or EPERM from a filter) means openat; running out of
    descriptors or memory passes and is raised instead of being remembered.
    """
    descriptor = os.open("/", _HOLD | os.O_DIRECTORY)
    try:
        os.close(kernel.openat2(descriptor, b".", _HOLD, _RESOLVE))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return "openat"
    finally:
        os.close(descriptor)
    return "openat2"
