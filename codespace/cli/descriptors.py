"""Descriptors, which every file, pipe and process takes: that there are enough to begin, what is said if not, and that
those of others go no further."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import Final

from codespace import limits

_ERRORS: Final = (errno.EMFILE, errno.ENFILE)
_MORE: Final = (
    "Give it more (`ulimit -n 1024` before it, LimitNOFILE of its unit), have whoever starts it close what it does not "
    "need, or end other programs."
)


def pass_on_none() -> None:
    """Keep what whoever started us left open, beyond stdin, stdout and stderr, from every program that we start."""
    with contextlib.suppress(OSError):  # without /proc, or without a descriptor left to list them with
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # that of the listing is closed by now
                    os.set_inheritable(int(name), False)


def refusal() -> str | None:
    """Return why nothing is begun here, None where there are enough; a limit that is ours to raise is raised first.

    A command that ran out later would be in the middle of something, or would take what it cannot look at for missing.
    """
    if _are_enough():
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if _are_enough() else f"fewer than {limits.DESCRIPTORS} more files can be open here. {_MORE}"


def shortage(problem: BaseException) -> str | None:
    """Return what to say where nothing but a want of descriptors is behind an error, or a group; None of any other."""
    return f"too many files are open. {_MORE}" if _is_shortage(problem) else None


def _is_shortage(problem: BaseException | None) -> bool:
    if isinstance(problem, BaseExceptionGroup):
        return all(map(_is_shortage, problem.exceptions))
    if isinstance(problem, OSError):
        return problem.errno in _ERRORS
    if isinstance(problem, ImportError):  # of a library that could not be opened: it has no number
        return any(os.strerror(number) in str(problem) for number in _ERRORS)
    return problem is not None and _is_shortage(problem.__cause__)


def _are_enough() -> bool:
    held: list[int] = []
    try:
        while len(held) < limits.DESCRIPTORS:
            held.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in _ERRORS:
            raise
    finally:
        for descriptor in held:
            os.close(descriptor)
    return len(held) == limits.DESCRIPTORS
