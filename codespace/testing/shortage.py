"""A process that has no more descriptors than it is left: what EMFILE comes to, provoked by the kernel itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave this process `left` new descriptors for the block; other threads take from them too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    above = max(map(int, os.listdir("/proc/self/fd"))) + 1
    held = []
    while (filler := os.dup(0)) < above:
        held.append(filler)
    os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)
