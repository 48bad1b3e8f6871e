"""What a filesystem says about a path, waited for only so long. It judges nothing.

A hung disk or network filesystem keeps whoever looks at it in the kernel for ever, and the operator would see a start
that does not come to an end and does not say why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import outcome

from codespace import limits
from codespace.settings.fault import SettingsError, whole

T = TypeVar("T")


def ask(key: str, path: str, look: Callable[[], T]) -> T:
    """Return what `look` returns, or raise what it raises.

    Args:
        key: The setting that the path is of.
        path: What is looked at, as a message names it.
    Raises: SettingsError where there is no answer in time; the thread is left behind, and ends once there is one.
    Source: limits.ROOT_ANSWER_SECONDS.
    """
    answers = list[outcome.Outcome[T]]()
    thread = threading.Thread(target=lambda: answers.append(outcome.capture(look)), name=f"look for {key}", daemon=True)
    thread.start()
    thread.join(limits.ROOT_ANSWER_SECONDS)
    if not answers:
        raise SettingsError(
            key,
            f"{whole(path)} does not answer within {limits.ROOT_ANSWER_SECONDS:g} s (a hung disk or network).",
            "Look at the filesystem that it lies on, or take the workspace out of the file until it answers.",
        )
    return answers[0].unwrap()
