"""What this machine can really enforce: a sandbox is made with the real command line and attacked from inside.

A program that only says that it isolates is found out, for the answers are compared with what is
denied, not with an exit code. A probe that takes too long concludes nothing: under load a sandbox is
slow, and slowness must never lead to a command without one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from codespace import limits
from codespace.beneath import Root
from codespace.contract import Workspace
from codespace.display import display
from codespace.sandbox import binaries, causes, foreground, landlock, plan, probefolder, seccomp, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.inventory import scan
from codespace.sandbox.spawn import Equipment
from codespace.sandbox.system import Etc

Rung = Literal["linux-sandbox", "landlock", "none"]

_CANARY: Final = "canary"
_EXPECTED: Final = {
    "root": "yes",
    "home": "yes",
    "tmp": "yes",
    "git": "no",
    "rename": "no",
    "usr": "no",
    "etc": "no",
    "slash": "no",
    "knob": "no",
    "outside": "no",
    "hidden": "no",
    "mount": "no",
    "CapEff": "0000000000000000",
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "interfaces": "lo",
    "routes": "0",
    "few": "yes",
}
"""What the witnesses must say. Each `no` is something that was tried and failed.

Who says nothing, or `no` where it must be `yes`, was short of something (processes, room in /tmp), which passes.
"""
AREAS: Final = {
    "writes": ("what may be written can be: the root, /tmp and the home", ("root", "home", "tmp")),
    "git": ("git's own configuration is read-only, and cannot be moved away", ("git", "rename")),
    "system": ("/usr, /etc, / and the kernel's settings cannot be written", ("usr", "etc", "slash", "knob")),
    "outside": ("a file beside the root and a hidden one cannot be read", ("outside", "hidden")),
    "mounts": ("nothing can be mounted", ("mount",)),
    "privileges": ("no capability, no new privileges, system calls filtered", ("CapEff", "NoNewPrivs", "Seccomp")),
    "network": ("no interface but loopback, and no route", ("interfaces", "routes")),
    "processes": ("no process of the host's is seen", ("few",)),
}
"""What the witnesses stand for, in sentences, for people."""
_WITNESSES: Final = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
try() { name=$1; shift; if ( "$@" ) 2>/dev/null; then say "$name" yes; else say "$name" no; fi; }
put() { : >"$1"; }
get() { IFS= read -r _ <"$1"; }
try root put made
try home put "$HOME/made"
try tmp put /tmp/made
try git put .git/config
try rename mv .git other
try usr put /usr/codespace-witness
try etc put /etc/codespace-witness
try slash put /codespace-witness
try knob put /proc/sys/kernel/core_pattern
try outside get "$1"
try hidden get hidden
try mount mount -t tmpfs none /tmp
while read -r name value; do
  case $name in CapEff:|NoNewPrivs:|Seccomp:) say "${name%:}" "$value";; esac
done </proc/self/status
found=
while IFS=: read -r name value; do
  case $value in *[0-9]*) set -- $name; found="$found${found:+ }$1";; esac
done </proc/net/dev
[ "$found" ] && say interfaces "$found"
count=-1
while read -r _; do count=$((count+1)); done </proc/net/route
[ "$count" -ge 0 ] && say routes "$count"
[ $$ -lt 100 ] && say few yes || say few no
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is in force, from a probe."""

    rung: Rung
    equipment: Equipment | None = None
    causes: tuple[str, ...] = ()
    """Why a better rung is missing, each with its remedy."""
    landlock: int = 0
    """The kernel's Landlock version, 0 where there is none."""
    witnesses: dict[str, str] = field(default_factory=dict)
    """What was tried inside, and what came of it."""


class Unsure(Exception):
    """Nothing could be concluded: too slow, or short of something for the moment. Try again later."""


def look(bwrap_path: str | None, etc: Etc) -> Standing:
    """Return what is in force. Blocks for tens of milliseconds, at most limits.SANDBOX_START_SECONDS for each program.

    Args:
        bwrap_path: The operator's choice; None for ours or the system's, whichever is newer.
    Raises: Unsure.
    """
    version = landlock.version()
    lower: Rung = "landlock" if version else "none"
    try:
        seccomp.program()
        found = binaries.bubblewraps(bwrap_path)
    except seccomp.Missing as missing:
        return Standing(lower, None, (str(missing),), version)
    except OSError as problem:  # of either: a shortage, which passes
        raise Unsure(str(problem)) from problem
    if not found:
        return Standing(
            lower, None, (causes.NO_BUBBLEWRAP if bwrap_path is None else causes.unusable(bwrap_path),), version
        )
    told: list[str] = []
    unsure: list[str] = []
    for candidate in found:
        equipment = Equipment(candidate.path, mechanisms.look())
        try:
            witnesses = _attack(equipment, etc)
        except Unsure as problem:
            unsure.append(f"{candidate.path}: {problem}")
            continue
        wrong = failed(witnesses)
        if not wrong:
            return Standing("linux-sandbox", equipment, (), version, witnesses)
        told.append(_cause(candidate.path, witnesses, wrong))
    if unsure:
        raise Unsure("; ".join(unsure))
    return Standing(lower, None, tuple(told), version)


def failed(witnesses: Mapping[str, str]) -> list[str]:
    """Return the witnesses that did not say what they must."""
    return [name for name, expected in _EXPECTED.items() if witnesses.get(name) != expected]


def _cause(path: str, witnesses: dict[str, str], wrong: list[str]) -> str:
    if "failed" in witnesses:
        return f"{path}: {witnesses['failed']}"
    return f"{path} does not isolate (witnesses: {', '.join(wrong)}); remove it, or correct bwrap_path"


def _attack(equipment: Equipment, etc: Etc) -> dict[str, str]:
    """Return what the witnesses say; `failed` with the cause where it is known why there is no sandbox.

    Raises: Unsure, also where nothing that they say is against the sandbox.
    """
    output, complaint = os.memfd_create("codespace-probe"), os.memfd_create("codespace-probe")
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with probefolder.open_folder() as folder:
            made = _plan(os.path.realpath(folder), etc)
            outcome = foreground.run(
                equipment, made, stdin=null, stdout=output, stderr=complaint, seconds=limits.SANDBOX_START_SECONDS
            )
        if outcome.cut:
            raise Unsure(f"the witnesses took over {limits.SANDBOX_START_SECONDS:g} s")
        witnesses = dict(line.split("=", 1) for line in _text(output).splitlines() if "=" in line)
        wrong = failed(witnesses)
        if wrong and not any(witnesses.get(name) not in (None, "no") for name in wrong):
            raise Unsure(f"what its witnesses must be able to do they could not do ({', '.join(wrong)})")
        return witnesses
    except spawn.NotStarted as problem:
        if problem.code == 0:
            return {}  # it ended well and has made nothing: whatever it is, it is no bubblewrap
        cause = causes.explain(equipment.bubblewrap, _text(complaint))
        if cause is None:
            said = display(_text(complaint).strip(), limit=limits.SANDBOX_COMPLAINT_BYTES) or problem.cause
            raise Unsure(f"{problem.stage}: {said}") from None
        return {"failed": cause}
    except OSError as error:
        raise Unsure(error.strerror or str(error)) from error
    finally:
        for descriptor in (output, complaint, null):
            os.close(descriptor)


def _plan(folder: str, etc: Etc) -> plan.Plan:
    root = os.path.join(folder, "root")
    os.makedirs(os.path.join(root, ".git"))
    for name in (_CANARY, "root/.git/config", "root/hidden"):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write("secret\n")
    workspace = Workspace(id="probe", root=root, profile="workspace-write", hidden_paths=("hidden",))
    with Root.open(root) as opened:
        return plan.make(
            workspace,
            opened,
            scan.scan(opened, hidden=workspace.hidden_paths, protected=()),
            command=["/bin/sh", "-c", _WITNESSES, "witnesses", os.path.join(folder, _CANARY)],
            cwd=".",
            env={"PATH": "/usr/bin:/bin", "HOME": plan.HOME, "LANG": "C"},
            etc=etc.masks(),
        )


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 4 * limits.SANDBOX_COMPLAINT_BYTES).decode(errors="replace")
