"""The command line of bubblewrap for a plan. The order of its words is the order in which it acts.

Each line was paid for; the reasons stand in docs/why/sandbox.md.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Iterator
from typing import Final

from codespace import limits
from codespace.sandbox import system
from codespace.sandbox.covers import Covers
from codespace.sandbox.limits import Carried
from codespace.sandbox.plan import HOME, Mount, Plan, Quota, within

SECCOMP_FD: Final = 3
INFO_FD: Final = 4
GATE_FD: Final = 5
"""Where bubblewrap finds its descriptors. A shell knows descriptors of one digit only."""
GATE: Final = "codespace-gate"
"""The name of the gate among bubblewrap's words; a sweep knows our sandboxes by it."""
GATE_CLOSED: Final = 125
"""Exit code of a run whose gate was never opened."""

_VAR_TMP: Final = "/var/tmp"  # noqa: S108 - the sandbox's own
_LOADER: Final = (
    "LD_",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "MALLOC_",
    "BASH_ENV",
    "BASH_FUNC_",
    "ENV",
)
"""Variables that would act on bubblewrap and the gate before they act on the command."""
_SHELL: Final = ("IFS", "OPTIND", "PPID")
"""Variables of which the gate's shell has its own; it drops those that it cannot name, as `npm_config_@scope:x`."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def bubblewrap(program: str, plan: Plan, covers: Covers | None, carried: Carried) -> list[str]:
    """Return the whole command line, the gate and the command included.

    Args:
        covers: What bubblewrap covers of the machine; None where somebody else does.
        carried: What carries each limit; the gate sets those of each process.
    """
    return [program, *_options(plan, covers), "--", *gate(plan, carried)]


def environment(plan: Plan) -> dict[str, str]:
    """Return the environment of bubblewrap itself: the command's, for process 1 inside shows it.

    What acts on a program's loader, or does not pass the gate, is left out here and set inside (`_inner`).
    """
    return {name: value for name, value in plan.env.items() if not _is_late(name)}


def gate(plan: Plan, carried: Carried) -> list[str]:
    """Return what runs first inside: it says that all is set up, waits for one word, and becomes the command.

    An end of file is not the word: when the daemon dies, nothing is released. `--block-fd` would go on.
    """
    script = (
        f'echo ready >&{GATE_FD} && IFS= read -r codespace_gate <&{GATE_FD} && [ "$codespace_gate" = go ] '
        f"|| exit {GATE_CLOSED}; exec {GATE_FD}>&-; unset codespace_gate; {_ulimits(plan.quota, carried)}"
        'exec "$@"'
    )
    terminal = ["/usr/bin/setsid", "--ctty"] if plan.tty else []
    return ["/bin/sh", "-c", script, GATE, *terminal, *_inner(plan), *plan.command]


def _inner(plan: Plan) -> list[str]:
    """Return what sets the late variables, and keeps a program's name from being taken for one or for an option."""
    late = [f"{name}={value}" for name, value in plan.env.items() if _is_late(name)]
    setting = ["/usr/bin/env", "--", *late] if late else []
    program = plan.command[0]
    is_mistakable = program.startswith("-") or (bool(late) and "=" in program)
    return [*setting, *(["/usr/bin/nice", "-n", "0", "--"] if is_mistakable else [])]


def _is_late(name: str) -> bool:
    return name.startswith(_LOADER) or name in _SHELL or not _NAME.fullmatch(name)


def _ulimits(quota: Quota, carried: Carried) -> str:
    """Return the shell's words for limits of each process; they can only be lowered, and never be raised again."""
    words = []
    if quota.open_files is not None:
        words.append(f"ulimit -n {quota.open_files}")
    if quota.cpu_seconds is not None:
        # The soft one alone ends a program with SIGXCPU; of SIGKILL nobody could tell that this limit sent it.
        seconds = max(1, math.ceil(quota.cpu_seconds))
        words += [f"ulimit -St {seconds}", f"ulimit -Ht {seconds + limits.CPU_HARD_SECONDS}"]
    if quota.memory_bytes is not None and carried.memory == "rlimit":
        words.append(f"ulimit -d {max(1, quota.memory_bytes // 1024)}")
    return "".join(f"{word} || exit {GATE_CLOSED}; " for word in words)


def _options(plan: Plan, covers: Covers | None) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL", "--hostname", "sandbox")
    yield from _machine(covers)
    yield from _private(plan)
    for path in plan.readable:
        yield from ("--ro-bind", path, path)
    for path in plan.writable:
        yield from ("--bind", path, path)
    yield from ("--bind", plan.root, plan.root)
    for mount in plan.mounts:
        yield from _mount(mount)
    yield from ("--remount-ro", "/", "--chdir", plan.cwd)
    if not plan.tty:
        yield "--new-session"
    yield from ("--info-fd", str(INFO_FD), "--seccomp", str(SECCOMP_FD))


def _machine(covers: Covers | None) -> Iterator[str]:
    yield from ("--tmpfs", "/")
    for path in system.PROGRAMS:
        if os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    for path, target in system.aliases():
        yield from ("--ro-bind", path, path) if target is None else ("--symlink", target, path)
    yield from ("--ro-bind", "/etc", "/etc", "--proc", "/proc")
    if covers is not None:
        for path in covers.directories:
            yield from _mount(Mount("empty", path))
        for path in covers.files:
            yield from _mount(Mount("nothing", path))
        for path in covers.read_only:
            yield from _mount(Mount("read-only", path))


def _private(plan: Plan) -> Iterator[str]:
    size = str(plan.quota.tmp_bytes)
    yield from ("--dev", "/dev", "--size", size, "--perms", "1777", "--tmpfs", "/dev/shm")  # noqa: S108
    yield from ("--remount-ro", "/dev")
    yield from ("--size", size, "--perms", "1777", "--tmpfs", "/tmp")  # noqa: S108 - the sandbox's own
    yield from ("--dir", "/run", "--dir", "/var", *_var_tmp(plan, size))
    yield from ("--dir", posixpath.dirname(HOME), "--size", size, "--perms", "0700", "--tmpfs", HOME)


def _var_tmp(plan: Plan, size: str) -> tuple[str, ...]:
    """Make it another name of /tmp, but where something of the run lies below it: that would be mounted in /tmp."""
    if any(within(path, _VAR_TMP) for path in (plan.root, *plan.readable, *plan.writable)):
        return ("--size", size, "--perms", "1777", "--tmpfs", _VAR_TMP)
    return ("--symlink", "../tmp", _VAR_TMP)


def _mount(mount: Mount) -> Iterator[str]:
    match mount.kind:
        case "writable":
            yield from ("--bind", mount.path, mount.path)
        case "read-only":
            yield from ("--ro-bind", mount.path, mount.path)
        case "empty":
            yield from ("--perms", "0000", "--tmpfs", mount.path, "--remount-ro", mount.path)
        case "nothing":
            yield from ("--ro-bind", "/dev/null", mount.path)
