"""Sandboxes that nobody owns any more: what a starter that was killed in bubblewrap's first moments can leave.

bubblewrap asks to die with its parent only some moments after it was started, and its child waits for
a word from it. If both are killed in between, the child stays, with nothing released inside. Process 1
of a living sandbox is always a child of bubblewrap; one that is not, is ours to end.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from codespace.sandbox.argv import GATE

_MARK: Final = GATE.encode()
_INIT: Final = 1  # which takes in orphans


def sweep() -> int:
    """Kill the orphans of this account; returns how many. Blocks for some milliseconds."""
    return sum(_end_orphan(int(name)) for name in os.listdir("/proc") if name.isdecimal())


def _end_orphan(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)  # before the look: it may end behind it, and its number be another process's
    except OSError:  # gone, or a kernel without: then there was no sandbox either, which needs them too
        return False
    try:
        if not _is_orphan(pid):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(process)
    return True


def _is_orphan(pid: int) -> bool:
    words = _words(pid)
    if not _is_bubblewrap(words) or _MARK not in words:
        return False
    status = _status(pid)
    if status.get("NSpid", "").split()[1:] != ["1"] or status.get("Uid", "").split()[:1] != [str(os.getuid())]:
        return False
    # Asked last: a parent that ended in between is gone from /proc, and its child is told to die by the kernel.
    return not _may_be_bubblewrap(int(status.get("PPid", "0")))


def _may_be_bubblewrap(pid: int) -> bool:
    """Return whether a process is a bubblewrap, as far as can be seen: /proc may show no process of another account's
    (hidepid), and a bubblewrap that is set-user-id root is such a one in its first moments."""
    words = _words(pid)
    return _is_bubblewrap(words) if words else pid > _INIT and _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and another account's
    return True


def _is_bubblewrap(words: list[bytes]) -> bool:
    return words[0].endswith(b"bwrap") if words else False


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            return dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    except OSError:
        return {}
