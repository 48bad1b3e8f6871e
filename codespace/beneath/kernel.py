"""The system calls that `os` lacks: openat2, renameat2 and fstatfs; the mount that a descriptor is on, and its flags.

They raise OSError like `os` does; what an errno means to a caller is decided in `faults`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
import time
from typing import Final

from codespace import limits

RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2

_OPENAT2: Final = 437  # the same number on every architecture
_RENAMEAT2: Final = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347, "armv7l": 382}
_RETRIES: Final = 64  # of EINTR and EAGAIN, which openat2 gives while something is renamed below it
_LEASE_STEP_SECONDS: Final = 0.005  # between two tries at a file that a program has a lease on

_GET_FLAGS: Final = 0x8008_6601 if ctypes.sizeof(ctypes.c_long) == 8 else 0x8004_6601
_ENCRYPTED: Final = 0x800
_STATFS_BYTES: Final = 256  # more than any architecture's struct statfs, which begins with the kind

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_BYTES: Final = ctypes.sizeof(_How)


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """Open `path` below `directory` with the kernel's own resolution rules.

    Returns: a new close-on-exec descriptor.
    Raises: OSError; ELOOP for a link, EXDEV for a way out or a mount, ENOSYS where there is no openat2.
    Source: openat2(2).
    """
    how = _How(flags | os.O_CLOEXEC, 0, resolve)
    for _ in range(_RETRIES):
        descriptor: int = _syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_long(directory),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(_HOW_BYTES),
        )
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in (errno.EINTR, errno.EAGAIN):
            break
    raise OSError(number, os.strerror(number), os.fsdecode(path))


def open_held(held: int) -> int:
    """Open for reading the regular file that an O_PATH descriptor holds: that very inode, whatever its name is now.

    Returns: a new close-on-exec descriptor.
    Raises: OSError; EAGAIN where a program has a lease on the file and does not let go of it within
        limits.LEASE_SECONDS. To wait in the kernel would take as long as that program likes, 45 s at most.
    Source: F_SETLEASE in fcntl(2).
    """
    until = time.monotonic() + limits.LEASE_SECONDS
    while True:
        try:
            return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_LEASE_STEP_SECONDS)  # the kernel tells its holder only


def renameat2(source_directory: int, source: str, target_directory: int, target: str, flags: int) -> None:
    """Rename with RENAME_NOREPLACE or RENAME_EXCHANGE: atomic, and never over something unseen.

    Raises: OSError; EEXIST where NOREPLACE finds something, EINVAL where the filesystem knows no flags.
    Source: renameat2(2).
    """
    number = _RENAMEAT2.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "renameat2 is not known on this architecture", source)
    outcome: int = _syscall(
        ctypes.c_long(number),
        ctypes.c_long(source_directory),
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_long(target_directory),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_ulong(flags),
    )
    if outcome != 0:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure), source, None, target)


def filesystem(descriptor: int) -> int:
    """Return the magic number of the filesystem's kind; 0 where the kernel does not say.

    Source: fstatfs(2).
    """
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(descriptor), buffer) != 0:
        return 0
    return int(ctypes.c_long.from_buffer(buffer).value)


def is_encrypted(descriptor: int) -> bool:
    """Return whether the names in a directory depend on a key that comes and goes; also where that cannot be said.

    Source: FS_IOC_GETFLAGS in ioctl_iflags(2), fscrypt in the kernel's documentation.
    """
    flags = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    except OSError as error:
        return error.errno != errno.ENOTTY  # a filesystem without flags encrypts nothing
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _ENCRYPTED)


def mount_id(descriptor: int) -> int | None:
    """Return the id of the mount that `descriptor` is on; None where /proc cannot say.

    A bind mount has the device number of what it shows, so st_dev alone does not tell.
    """
    try:
        information = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(information, 4096)
    finally:
        os.close(information)
    for line in text.splitlines():
        if line.startswith(b"mnt_id:"):
            return int(line.split()[1])
    return None
