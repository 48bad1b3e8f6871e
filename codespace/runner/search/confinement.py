"""What ripgrep is locked into: a sandbox that holds the root and ripgrep alone, or nothing to open.

With bubblewrap the root is bound read-only through its open descriptor, and there is nothing else:
what ripgrep opens by name there leads nowhere out of the root, and what it says is looked at again.
Without it ripgrep gets descriptors that `beneath` opened, and no name to open. Either way no race
and no fault of ripgrep's leads it out of the root; bubblewrap also stops a fault in ripgrep itself.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from codespace import limits
from codespace.errors import Refusal
from codespace.runner.search import child
from codespace.runner.search.stopping import Stop
from codespace.sandbox import binaries, causes, probefolder

WORK: Final = "/work"
_RIPGREP: Final = "/rg"
_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_WITNESS: Final = "witness"


@dataclass(frozen=True, slots=True)
class Confinement:
    """What is in force for find and search, from a probe."""

    kind: Literal["bubblewrap", "beneath"]
    ripgrep: str
    bubblewrap: str | None = None
    reason: str | None = None
    """Why it is not bubblewrap."""

    def argv(self, root_fd: int, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs ripgrep with `arguments`, in the sandbox where there is one.

        The directory behind `root_fd` is `WORK` inside, and the working directory.
        """
        if self.bubblewrap is None:
            return [self.ripgrep, *arguments]
        return [*_sandbox(self.bubblewrap, self.ripgrep, root_fd), _RIPGREP, *arguments]


class Prober:
    """Finds out once what is in force, by doing it with a witness file, and remembers what is lasting.

    Args:
        rg_path, bwrap_path: The operator's choice; None for ours or the system's, whichever is newer.
        allow_bubblewrap: False to do without, whatever there is.
    """

    def __init__(self, rg_path: str | None, bwrap_path: str | None, *, allow_bubblewrap: bool = True) -> None:
        self._rg_path = rg_path
        self._bwrap_path = bwrap_path
        self._allow_bubblewrap = allow_bubblewrap
        self._lock = threading.Lock()
        self._known: Confinement | None = None
        self._until = 0.0

    def confinement(self) -> Confinement:
        """Return what is in force. Blocks: for a thread.

        Raises: Refusal FILE_OPERATION_FAILED where there is no ripgrep, or none answers now.
        """
        with self._lock:
            if self._known is None or time.monotonic() > self._until:
                self._known, lasting = self._probe()
                self._until = math.inf if lasting else time.monotonic() + limits.SANDBOX_RETRY_SECONDS
            return self._known

    def _probe(self) -> tuple[Confinement, bool]:
        try:
            ripgreps = binaries.ripgreps(self._rg_path)
        except binaries.Unanswered as problem:
            raise Refusal(
                "FILE_OPERATION_FAILED",
                f"No ripgrep can be run now: {problem}. Nothing was searched.",
                next_step="Call again when the machine is less busy.",
                retryable=True,
            ) from problem
        if not ripgreps:
            what = "No ripgrep" if self._rg_path is None else "The program that rg_path names is no ripgrep that"
            remedy = "reinstall CodeSpace with its dependencies, or to set" if self._rg_path is None else "correct"
            raise Refusal(
                "FILE_OPERATION_FAILED",
                f"{what} can be run, so nothing can be found or searched.",
                next_step=f"Ask the operator to {remedy} rg_path.",
            )
        ripgrep = ripgreps[0].path
        if not self._allow_bubblewrap:
            return Confinement("beneath", ripgrep, reason="bubblewrap is switched off"), True
        reasons: list[str] = []
        lasting = True
        try:
            bubblewraps = binaries.bubblewraps(self._bwrap_path)
        except binaries.Unanswered as problem:
            return Confinement("beneath", ripgrep, reason=str(problem)), False
        for bubblewrap in bubblewraps:
            cause, permanent = _try(bubblewrap.path, ripgrep)
            if cause is None:
                return Confinement("bubblewrap", ripgrep, bubblewrap.path), True
            lasting = lasting and permanent
            reasons.append(f"{bubblewrap.path}: {cause}")
        if not reasons:
            reasons.append(causes.NO_BUBBLEWRAP if self._bwrap_path is None else causes.unusable(self._bwrap_path))
        return Confinement("beneath", ripgrep, reason="; ".join(reasons)), lasting


def _try(bubblewrap: str, ripgrep: str) -> tuple[str | None, bool]:
    """Look for a witness file through the sandbox; return what went wrong, and whether that is lasting."""
    output = bytearray()

    def take(block: bytes) -> bool:
        output.extend(block)
        return len(output) < 4096

    stop = Stop()
    try:
        with probefolder.open_folder() as folder:
            directory = os.path.join(folder, "root")
            os.mkdir(directory)
            with open(os.path.join(directory, _WITNESS), "wb"):
                pass
            root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Both /rg and /work exist nowhere but inside: a bubblewrap that isolates nothing finds neither.
                argv = [*_sandbox(bubblewrap, ripgrep, root), _RIPGREP, "--files", "--no-config", "--no-ignore", WORK]
                deadline = time.monotonic() + limits.SANDBOX_PROBE_SECONDS
                ending = child.run(argv, fds=(root,), take=take, stop=stop, deadline=deadline)
            finally:
                os.close(root)
    except OSError as error:
        return f"cannot be started ({error.strerror})", False
    finally:
        stop.close()
    if ending.cut is not None:
        return f"did not answer in {limits.SANDBOX_PROBE_SECONDS:g} s", False
    if bytes(output) == f"{WORK}/{_WITNESS}\n".encode():
        return None, True
    told = ending.complaint.decode(errors="replace").strip()
    transient = any(sign in told for sign in ("temporarily", "Too many open files", "Cannot allocate memory"))
    return told or "gave no answer", not transient


def _sandbox(bubblewrap: str, ripgrep: str, root_fd: int) -> list[str]:
    isolation = ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    argv = [bubblewrap, *isolation, "--clearenv", "--ro-bind", ripgrep, _RIPGREP]
    if _is_dynamic(ripgrep):
        for directory in _LIBRARIES:
            argv += ("--ro-bind-try", directory, directory)
    return [*argv, "--ro-bind-fd", str(root_fd), WORK, "--remount-ro", "/", "--chdir", WORK, "--"]


def _is_dynamic(program: str) -> bool:
    """Return whether a program needs the system's libraries; ours does not."""
    with open(program, "rb") as opened:
        head = opened.read(8192)
    return b"/ld-linux" in head or b"/ld-musl" in head
