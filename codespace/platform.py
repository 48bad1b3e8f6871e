"""The one system that CodeSpace runs on.

Its promises rest on openat2, renameat2, flock on directories and /proc; nothing else has them all,
and a half-kept promise would be told as a kept one. So anything but Linux is refused before any
other module is imported.
"""

from __future__ import annotations

import sys


def refusal(system: str = sys.platform) -> str | None:
    """Return why this system is refused, or None on Linux."""
    if system == "linux":
        return None
    return (
        f"CodeSpace runs on Linux only; this is {system}. Nothing was started.\n"
        "Run it in a Linux machine, a virtual machine or a container (on Windows: in WSL 2), "
        "with the directories that you want to register on that machine's own disk."
    )


def most_open_files() -> int:
    """Return the most files that a process of a command may have open: half of what this program may.

    What an account has under way in sockets is counted for all its processes, and each may send more only below its
    own limit: a command with as high a one as ours could leave so many that we could send none to start another.
    Source: too_many_unix_fds in the kernel's net/unix.
    """
    import resource  # not everywhere, and other systems are to be refused in words

    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2  # of RLIM_INFINITY, which is -1, itself


def own_umask() -> int:
    """Return the program's umask without changing it, which other threads would see."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
