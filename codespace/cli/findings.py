"""What `doctor` looks at: each check says what is in force and, where something is missing, the exact fix.

A check looks; it starts no daemon, and writes nothing but short-lived files in the state directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shlex
import stat
import sys
from collections.abc import Iterator
from typing import Final

from codespace.cli import configured
from codespace.cli.finding import Finding
from codespace.contract import Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.settings import MEMORY_DATABASE, Settings, SettingsError, notices

_FOLDERS: Final = ("instances", "journal", "homes", "spool")
_FOLDER_OF_WORKERS: Final = "runner"
_PREFIX: Final = "doctor-"
_WRITTEN_BYTES: Final = 262_144  # a new database and its log take half of that


def everything(settings: Settings) -> Iterator[Finding]:
    """Yield all findings, in the order in which a person mends things."""
    yield from machine()
    yield from configuration(settings)
    yield from state(settings)
    yield from database(settings)
    yield from files(settings)
    yield from search(settings)
    yield from isolation(settings)


def machine() -> Iterator[Finding]:
    yield Finding(
        "pass", "system", f"Linux {platform.release()} on {platform.machine()}, Python {platform.python_version()}"
    )
    if os.geteuid() == 0:
        yield Finding(
            "limit",
            "account",
            "this is root: a command outside the sandbox can do anything on this machine",
            "Run CodeSpace as an ordinary user, best one of its own.",
        )


def configuration(settings: Settings) -> Iterator[Finding]:
    yield Finding("pass", "configuration", settings.config_path or "none: no file was found")
    for notice in notices(settings):
        if settings.workspaces or "No workspace" in notice:
            yield Finding("limit", "configuration", notice)
    for workspace in settings.workspaces.values():
        yield _root(workspace)


def _root(workspace: Workspace) -> Finding:
    subject = f"workspace {workspace.id}"
    wanted = os.R_OK | os.X_OK | (os.W_OK if workspace.profile == "workspace-write" else 0)
    if not os.access(workspace.root, wanted):
        need = "read and written" if wanted & os.W_OK else "read"
        return Finding("fail", subject, f"{workspace.root} cannot be {need} by this account", "Change its permissions.")
    return Finding("pass", subject, f"{workspace.root}, {workspace.profile}, approvals {workspace.approvals}")


def state(settings: Settings) -> Iterator[Finding]:
    subject, mode = "state directory", stat.S_IMODE(os.stat(settings.state_dir).st_mode)
    if mode & 0o077:
        yield Finding(
            "limit",
            subject,
            f"{settings.state_dir} can be read by others (mode {mode:04o})",
            f"chmod 700 {shlex.quote(settings.state_dir)}",
        )
    trouble = _write_trouble(settings.state_dir)
    is_read_only = trouble is not None and trouble.errno == errno.EROFS  # then nothing in it is in the way of anything
    blocked = [] if is_read_only else _in_the_way(settings)
    for path in blocked:
        yield Finding(
            "fail",
            subject,
            f"{path} is no directory that this account can write: patches or commands fail, or no daemon starts",
            f"Stop every daemon, and move it away; or, where another account made it: chown -R {os.geteuid()} "
            f"{shlex.quote(path)}",
        )
    if trouble is not None:
        yield Finding(
            "fail",
            subject,
            f"{settings.state_dir} takes no new file ({trouble.strerror}): no daemon starts there",
            "Have its disk mounted so that it can be written, or set CODESPACE_STATE_DIR to another directory."
            if is_read_only
            else "Make room on its disk, or let this account write there.",
        )
    elif not mode & 0o077 and not blocked:
        yield Finding("pass", subject, f"{settings.state_dir}, mode {mode:04o}")


def _in_the_way(settings: Settings) -> list[str]:
    """Return what stands where a daemon keeps a folder of its own: one that `sudo` made once, a file, a dead link."""
    blocked = [path for name in _FOLDERS if not _can_be(path := os.path.join(settings.state_dir, name))]
    if settings.runner == "uds":
        place = os.path.join(settings.runner_dir or settings.state_dir, _FOLDER_OF_WORKERS)
        if os.path.islink(place) or not _can_be(place):  # who can change a link chooses where its sockets are
            blocked.append(place)
    return blocked


def _can_be(folder: str) -> bool:
    """Return whether a daemon can have this folder, as far as what lies there says."""
    return not os.path.lexists(folder) or (os.path.isdir(folder) and os.access(folder, os.R_OK | os.W_OK | os.X_OK))


def _write_trouble(directory: str) -> OSError | None:
    from codespace.sandbox.probefolder import open_folder

    try:
        with open_folder(_PREFIX, directory) as folder, open(os.path.join(folder, "file"), "wb") as file:
            file.write(bytes(_WRITTEN_BYTES))
            file.flush()
            os.fsync(file.fileno())  # where some filesystems first look for room
    except OSError as error:
        return error
    return None


def database(settings: Settings) -> Iterator[Finding]:
    if settings.database == MEMORY_DATABASE:
        yield Finding("limit", "database", "in memory: nothing is remembered", "Unset CODESPACE_OPERATIONS_DB.")
    elif not configured.is_begun(settings.database):
        yield Finding("pass", "database", f"{settings.database} is made at the first start")
    else:
        yield _health(settings.database)


def _health(path: str) -> Finding:
    from codespace.cli import audit
    from codespace.gateway.database import is_damage

    fix = "Stop every daemon, keep a copy, and restore the file from a backup or move it away."
    if (why := _unreadable(path)) is not None:
        found = f"{display(path)} cannot be looked at: {why}"
        return Finding("fail", "database", found, "Correct CODESPACE_OPERATIONS_DB, or let this account read the file.")
    try:
        problem = audit.problem(path)
    except Refusal as error:
        return Finding("fail", "database", error.message, fix if is_damage(error) else error.next_step)
    if problem is not None:
        return Finding("fail", "database", problem, fix)
    return Finding("pass", "database", f"{path} is sound, and so is its audit chain")


def _unreadable(path: str) -> str | None:
    """Return why a file cannot be read. It is not opened: closing one of SQLite's drops the locks of its process."""
    try:
        os.stat(path)
    except OSError as error:
        return error.strerror
    return None if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def files(settings: Settings) -> Iterator[Finding]:
    from codespace import beneath

    primitive = beneath.primitive_in_force()
    if primitive == "openat2":
        yield Finding("pass", "file primitive", "openat2: the kernel keeps every path below its root")
    else:
        yield Finding(
            "limit",
            "file primitive",
            "openat, component by component: as strict, but slower",
            "Use Linux 5.6 or newer, or a container whose seccomp profile allows openat2.",
        )
    with contextlib.suppress(OSError):  # there is no place to try them, as was said already
        yield _rename_flags(settings.state_dir)
    device = os.stat(settings.state_dir).st_dev
    for workspace in settings.workspaces.values():
        if os.stat(workspace.root).st_dev != device:
            yield Finding(
                "limit",
                f"workspace {workspace.id}",
                "is on another file system than the state directory; its rename flags are seen at the first patch",
            )


def _rename_flags(directory: str) -> Finding:
    missing = _missing_renames(directory)
    if missing is None:
        return Finding(
            "pass", "rename flags", "RENAME_EXCHANGE and RENAME_NOREPLACE work (state directory's file system)"
        )
    return Finding(
        "limit",
        "rename flags",
        f"not on the state directory's file system ({missing}); the fallback is used where a root lacks them too",
        "Put roots on ext4, xfs, btrfs or tmpfs.",
    )


def _missing_renames(directory: str) -> str | None:
    """Try both flags on two files of our own; return what failed."""
    from codespace import beneath
    from codespace.sandbox.probefolder import open_folder

    with open_folder(_PREFIX, directory) as folder:
        names = [os.path.join(folder, name) for name in ("one", "two")]
        for name in names:
            with open(name, "wb"):
                pass
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            beneath.renameat2(descriptor, "one", descriptor, "two", beneath.RENAME_EXCHANGE)
            beneath.renameat2(descriptor, "one", descriptor, "three", beneath.RENAME_NOREPLACE)
        except OSError as error:
            return error.strerror or "unknown"
        finally:
            os.close(descriptor)
    return None


def search(settings: Settings) -> Iterator[Finding]:
    from codespace.cli import programs

    yield from programs.findings(settings)


def isolation(settings: Settings) -> Iterator[Finding]:
    from codespace.cli import linked, witnesses
    from codespace.sandbox.box import Sandbox

    sandbox = Sandbox(settings.bwrap_path)
    yield from witnesses.findings(settings, sandbox)
    yield from linked.findings(settings, sandbox)
    yield from generated_token(settings)
    if sys.stderr is None:
        yield Finding("limit", "log", "there is no stderr; logs go nowhere")


def generated_token(settings: Settings) -> Iterator[Finding]:
    from codespace.http import token

    if settings.http_token is None:
        try:
            token.load(settings.http_token_file)
        except FileNotFoundError:
            pass
        except SettingsError as error:
            yield Finding("fail", "token", f"{error.key}: {error.problem}", error.fix)
