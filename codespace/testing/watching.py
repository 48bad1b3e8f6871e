"""Waiting until a name appears in a directory, by inotify: how a test knows that a patch is half way."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_IN_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_EVENT = struct.Struct("iIII")


class Watch:
    """Names as they appear in one directory; made by `watching`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def wait_name(self, wanted: Callable[[str], bool]) -> str:
        """Return the first new name for which `wanted` says so; bring your own deadline.

        Cancel: names that were passed over are gone; later ones are kept by the kernel.
        """
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            for name in _names(os.read(self._descriptor, 65_536)):
                if wanted(name):
                    return name


@contextmanager
def watching(folder: Path) -> Iterator[Watch]:
    """Watch a directory from now on, its subdirectories not."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(_IN_CLOEXEC_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_CREATE | _IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        yield Watch(descriptor)
    finally:
        os.close(descriptor)


def _names(data: bytes) -> Iterator[str]:
    while data:
        *_, length = _EVENT.unpack_from(data)
        yield os.fsdecode(data[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
        data = data[_EVENT.size + length :]
