"""The most processes of a sandbox of a plain account, where neither a cgroup nor a pid_max of its own can be used.

RLIMIT_NPROC is said to count all processes of an account. Since Linux 5.14 it counts those of a user namespace,
and a sandbox is one: what runs outside, and in other sandboxes, is not counted. The kernel excepts its root, and so
there is none for a daemon that runs as root.

Source: is_rlimit_overlimit in the kernel's ucount.c, copy_process in fork.c.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from codespace.sandbox import pidmax

KERNEL: Final = (5, 14)
"""From here on the processes of a user namespace are counted by themselves; before, a limit would be the account's."""
_UNKNOWN: Final = 5  # EIO


def is_per_namespace() -> bool:
    """Return whether this kernel counts the processes of this account's user namespaces, each for itself."""
    return os.geteuid() != 0 and pidmax.kernel() >= KERNEL


def limit(pid: int, most: int) -> None:
    """Set the most processes and threads that process `pid`, and all that it starts, share with its user namespace.

    Raises: OSError; also where the process is in our own namespace, whose processes are the account's.
    """
    if os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
        raise OSError(_UNKNOWN, "the process is in no user namespace of its own")
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (lowest, lowest))
