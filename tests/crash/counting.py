"""Kill points: a profile hook sees every call that may become a system call, counts it, and kills at the chosen one.

Nothing of the product knows of it: the hook is set by a program of the tests, so that it costs nothing
elsewhere and no setting can turn it on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

_MODULES = frozenset({"posix", "fcntl"})
_METHODS = frozenset({"write", "readline", "execute", "executemany", "commit"})
_PURE = frozenset({"fspath", "getpid", "getppid", "register_at_fork"})


class Kill:
    """Counts kill points from `begin` on; at number `at` it calls `act`, which does not return."""

    def __init__(self, at: int | None, act: Callable[[], object], around: Collection[CodeType] = ()) -> None:
        self.count = 0
        self._at = at
        self._act = act
        self._around = frozenset(around)

    def begin(self) -> None:
        """Count in this thread and in every one that starts from now on."""
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)

    def end(self) -> None:
        """Count no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            if not _reaches_the_kernel(called):
                return
        elif event == "c_return" or event == "c_exception" or frame.f_code not in self._around:
            return
        self.count += 1
        if self.count == self._at:
            self._act()


def _reaches_the_kernel(called: Any) -> bool:
    name = getattr(called, "__name__", "")
    if getattr(called, "__module__", None) in _MODULES:
        return name not in _PURE
    return name in _METHODS


def still_moving() -> None:
    """Say to the guard against hangs that one of many long parts of a test is done."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)


def kill(*pids: int) -> None:
    """End processes at once, this one last if it is among them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a helper that ended by itself since it was listed
            os.kill(pid, signal.SIGKILL)
