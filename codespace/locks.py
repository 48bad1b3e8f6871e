"""Whether a file's lock is held: by a process that lives, since the kernel drops it with the last one."""

from __future__ import annotations

import fcntl
import os


def is_held(path: str) -> bool:
    """Return whether some process holds the lock of the file at `path`. Blocking, for a moment.

    Raises: OSError where the file cannot be looked at; whether it is held is not known then.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
