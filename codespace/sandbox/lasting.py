"""A look at files outside of the caller's care: taken anew now and then, and never waited for longer than a moment.

It is for what every run asks and hardly ever changes. A hung disk or network filesystem keeps the thread that looks,
and nobody else; what was seen before stands until there is an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from codespace import limits
from codespace.errors import Refusal

T = TypeVar("T")


class Look(Generic[T]):
    """One look, and what it saw last.

    Args:
        look: Called in a thread of its own, once at a time. An OSError or Refusal counts as no answer, and the next
            who asks has it looked again.
        nothing: What is known before the first answer.
    """

    def __init__(self, look: Callable[[], T], nothing: T) -> None:
        self._take = look
        self._known = nothing
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._until = 0.0
        self._asked: Hashable = None

    def recall(self, asked: Hashable = None) -> T:
        """Return what was seen at most half a minute ago, or before where a look does not come back in time.

        Args:
            asked: What the answer depends on; another than the last time has it looked at anew.
        Source: limits.SANDBOX_ETC_SECONDS, limits.SANDBOX_ACCOUNT_SECONDS.
        """
        if self._is_old(asked):
            with self._lock:
                if self._is_old(asked) and self._ended.is_set():
                    self._asked = asked
                    self._begin()
                    self._ended.wait(limits.SANDBOX_ACCOUNT_SECONDS)
        return self._known

    def _is_old(self, asked: Hashable) -> bool:
        return time.monotonic() >= self._until or asked != self._asked

    def _begin(self) -> None:
        self._ended.clear()
        try:
            threading.Thread(target=self._look, name="codespace look", daemon=True).start()
        except RuntimeError:  # no thread is left to be had: no answer either, and the next look tries it again
            self._ended.set()

    def _look(self) -> None:
        try:
            self._known = self._take()
            self._until = time.monotonic() + limits.SANDBOX_ETC_SECONDS
        except (OSError, Refusal):  # a shortage: what was seen before stands
            self._until = 0.0
        finally:
            self._ended.set()
