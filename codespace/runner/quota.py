"""The operator's limits on a command outside a sandbox: what carries each of them, and what came of it.

Number and memory of the whole tree are held by a cgroup where one can be used. The rest, and memory where
none can, are the kernel's limits on each process (rlimits): weaker, as a tree may have many.
"""

from __future__ import annotations

import functools
import math
import resource
import signal
from dataclasses import dataclass

from codespace import limits
from codespace.contract import Workspace
from codespace.platform import most_open_files
from codespace.sandbox import limits as cgroups
from codespace.sandbox import plan
from codespace.sandbox.limits import Cage, Mechanisms, Overruns


@dataclass(frozen=True, slots=True)
class Held:
    """One command's limits, in force until they are let go."""

    workspace: Workspace
    cage: Cage
    rlimits: tuple[tuple[int, int, int], ...]
    """Number, soft and hard limit of each."""


def look() -> Mechanisms:
    """Return what this machine lets us use, sweep what killed daemons left, and raise what we may open ourselves.

    Blocks for a millisecond.
    """
    cgroups.sweep()
    _open_files()
    found = cgroups.look()
    return Mechanisms(found.pids, found.memory, pid_max=False)  # the rest belongs to namespaces, and there are none


def hold(mechanisms: Mechanisms, workspace: Workspace) -> Held:
    """Return the limits of a command of this workspace, with a cgroup where one is needed. Raises: OSError."""
    quota = plan.quota(workspace)
    return Held(workspace, Cage(mechanisms, quota), _rlimits(workspace, in_cgroup=mechanisms.memory is not None))


def carried(mechanisms: Mechanisms, workspace: Workspace) -> dict[str, str]:
    """Return what carries each limit: `cgroup`, `rlimit` (of each process), or `none` where nothing is limited."""
    by_tree = mechanisms.carried(plan.quota(workspace))
    chosen = workspace.limits
    return {
        "pids": by_tree.pids,
        "memory": by_tree.memory,
        "cpu": by_tree.cpu,
        "open_files": "none" if chosen.open_files is None else "rlimit",
        "file_size": "none" if chosen.command_file_bytes is None else "rlimit",
    }


@functools.cache
def _open_files() -> tuple[int, int]:
    """Raise our own limit of open files as far as it goes; return the soft and the hard one of commands.

    The soft one is what ours was: programs ask for more where they can do with it, and some loop over all of it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = most_open_files()
    return soft if most == resource.RLIM_INFINITY else min(soft, most), most


def _rlimits(workspace: Workspace, *, in_cgroup: bool) -> tuple[tuple[int, int, int], ...]:
    chosen = workspace.limits
    # A core file is the memory of a program, in the workspace.
    found = [(resource.RLIMIT_CORE, limits.CORE_BYTES, limits.CORE_BYTES)]
    soft, hard = (chosen.open_files,) * 2 if chosen.open_files is not None else _open_files()
    found.append((resource.RLIMIT_NOFILE, soft, hard))
    if chosen.command_file_bytes is not None:
        found.append((resource.RLIMIT_FSIZE, chosen.command_file_bytes, chosen.command_file_bytes))
    if chosen.cpu_seconds is not None:
        seconds = max(1, math.ceil(chosen.cpu_seconds))
        found.append((resource.RLIMIT_CPU, seconds, seconds + limits.CPU_HARD_SECONDS))
    if chosen.memory_bytes is not None and not in_cgroup:
        # Of what it can write to: an address space that is only reserved (JavaScript, Go, Java) is not counted.
        found.append((resource.RLIMIT_DATA, chosen.memory_bytes, chosen.memory_bytes))
    return tuple(found)


def is_reached(held: Held, code: int | None, cpu_seconds: float, overruns: Overruns) -> bool:
    """Return whether a limit ended the command.

    Args:
        code: Its exit code, negative for a signal; None where it is not known.
        cpu_seconds: What its tree used.
    """
    chosen = held.workspace.limits
    by_cpu = chosen.cpu_seconds is not None and (
        code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_seconds >= chosen.cpu_seconds)
    )
    by_size = chosen.command_file_bytes is not None and code == -signal.SIGXFSZ
    return by_cpu or by_size or (overruns.killed > 0 and code != 0)


def notes(held: Held, code: int | None, overruns: Overruns) -> list[str]:
    """Return what to say of limits that were reached: which, and the operator's setting.

    What an rlimit did to a child is known only where the command ended with its child's code.
    """
    chosen = held.workspace.limits
    found = []
    if overruns.killed:
        found.append(
            f"The kernel killed {overruns.killed} of its processes: together they reached the memory limit of "
            f"{chosen.memory_bytes} bytes (the operator's setting limits.memory_bytes)."
        )
    if overruns.refused:
        times = "Once" if overruns.refused == 1 else f"{overruns.refused} times"
        found.append(
            f"{times} no further process or thread was started: the limit of "
            f"{plan.quota(held.workspace).pids} was reached (the operator's setting limits.pids)."
        )
    if chosen.cpu_seconds is not None:
        used = f"It used {chosen.cpu_seconds:g} s of CPU time (the operator's setting limits.cpu_seconds)."
        found += _died_of(code, signal.SIGXCPU, used)
    if chosen.command_file_bytes is not None:
        wrote = f"It wrote a file of {chosen.command_file_bytes} bytes (the operator's setting limits.file_bytes)."
        found += _died_of(code, signal.SIGXFSZ, wrote)
    return found


def _died_of(code: int | None, number: signal.Signals, of: str) -> list[str]:
    """Return what to say of a limit that ends with a signal. A shell tells so of its child, which anything may say."""
    if code == 128 + number:
        return [f"If its exit code {code} is a shell's for a child that {number.name} ended, then of that: {of}"]
    return [of] if code == -number else []
