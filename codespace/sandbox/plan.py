"""What one run is locked into, as plain data: made from a workspace and a look at its root.

A plan says everything that the run depends on and holds no descriptor, so that it can be written to
a file, looked at, and run by a program that decides nothing.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from codespace import limits
from codespace.beneath import Hidden, Root
from codespace.contract import NetworkPolicy, Workspace
from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import submounts, system
from codespace.sandbox.inventory import git, gitaccount, gitconfig, gitrefs, twins
from codespace.sandbox.inventory.scan import GitDirectory, Inventory, is_git_name
from codespace.sandbox.system import Masks

HOME: Final = "/home/sandbox"
"""The private home: writable, empty, gone with the run."""
_UNFIT: Final = ("/proc", "/sys", "/dev")
_SHOWN: Final = 5
_BRANCHES: Final = ("refs", "packed-refs")
"""Where a repository keeps them."""

Kind = Literal["writable", "read-only", "empty", "nothing"]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount below the root: the place itself again, an empty directory, or nothing where a file is."""

    kind: Kind
    path: str
    """Absolute, the same inside and outside; no component below the root is a link."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one run; None where nothing is limited."""

    pids: int | None = limits.SANDBOX_PIDS
    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    open_files: int | None = None
    tmp_bytes: int = limits.SANDBOX_TMP_BYTES


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one run depends on."""

    root: str
    cwd: str
    """Absolute, the root or below it."""
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    """In the order in which they are made."""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    """Directories outside the root that a command may write to: the repository of a worktree, in the mode `commit`."""
    etc: Masks = field(default_factory=Masks)
    quota: Quota = field(default_factory=Quota)
    network: NetworkPolicy = "restricted"
    tty: bool = False
    identity: tuple[int, int] | None = None
    """Device and inode of the directory that the plan was made for; None where nobody looked."""
    notes: tuple[str, ...] = ()
    """What a person or a model should know of this run."""

    @property
    def read_only(self) -> tuple[str, ...]:
        """What of the workspace the command can only read, relative to the root."""
        places = (mount.path for mount in self.mounts if mount.kind == "read-only" and within(mount.path, self.root))
        return tuple(posixpath.relpath(place, self.root) for place in places)


def make(
    workspace: Workspace,
    root: Root,
    inventory: Inventory,
    *,
    command: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    etc: Masks,
    tty: bool = False,
    submodules: git.Submodules | None = None,
    links: Collection[str] = (),
) -> Plan:
    """Return the plan of one run.

    Args:
        root: The workspace's root, opened without hidden globs.
        inventory: What `scan` has just found there.
        cwd: Relative to the root, cleaned.
        env: The whole environment of the command.
        submodules: Those of `inventory`, where the caller has them.
        links: Those in its repositories, where the caller has looked; one that it gave up stands among them itself.
    Raises: Refusal SANDBOX_UNAVAILABLE where something in the root cannot be protected; it names what, and the way out.
    """
    _check_root(workspace.root)
    if inventory.links:
        raise _linked(inventory.links)
    if "." in inventory.unreadable:
        raise _closed(workspace.root)
    whole = posixpath.normpath(posixpath.join(workspace.root, cwd))
    for place in dict.fromkeys((workspace.root, whole)):
        if (mode := _shut(place)) is not None:
            raise _not_entered(workspace.root, place, mode)
    _check_number(workspace.root, inventory)
    outside = None if workspace.git == "unprotected" else git.common_directory(workspace.root)
    mounts = _mounts(workspace, root, inventory, submodules, links)
    open_to_commits, beside = _outside_mounts(workspace, outside)
    if len(mounts) > limits.SANDBOX_BINDS or _size_bytes((*mounts, *beside)) > limits.SANDBOX_BINDS_BYTES:
        raise _too_many(workspace.root, (*mounts, *beside), inventory)
    readable = [path for path in workspace.readable_paths if not within(path, workspace.root)]
    return Plan(
        root=workspace.root,
        cwd=whole,
        command=tuple(command),
        env=dict(env),
        mounts=(*mounts, *beside),
        readable=tuple(readable + ([outside] if outside and not open_to_commits else [])),
        writable=(outside,) if outside and open_to_commits else (),
        etc=etc,
        quota=quota(workspace),
        network=workspace.network,
        tty=tty,
        identity=root.identity,
        notes=_notes(workspace, inventory),
    )


def quota(workspace: Workspace) -> Quota:
    """Return the limits of the workspace's runs, ours where the operator named none."""
    chosen = workspace.limits
    return Quota(
        pids=limits.SANDBOX_PIDS if chosen.pids is None else chosen.pids,
        memory_bytes=chosen.memory_bytes,
        cpu_seconds=chosen.cpu_seconds,
        open_files=chosen.open_files,
        tmp_bytes=limits.SANDBOX_TMP_BYTES if chosen.tmp_bytes is None else chosen.tmp_bytes,
    )


def within(path: str, directory: str) -> bool:
    """Return whether `path` is `directory` or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def sees(workspace: Workspace, path: str) -> bool:
    """Return whether a run of the workspace could see the real path `path`: by the places that it is given, not by
    what is masked in them."""
    places = (workspace.root, *system.PROGRAMS, *system.ALIASES, "/etc", *workspace.readable_paths)
    return any(within(path, place) for place in places)


def _mounts(
    workspace: Workspace,
    root: Root,
    inventory: Inventory,
    submodules: git.Submodules | None,
    links: Collection[str],
) -> list[Mount]:
    """Return what is mounted below the root: writable first, then read-only, masks last."""
    writable: set[str] = set()
    read_only: set[str] = set(inventory.protected)
    if workspace.git != "unprotected":
        named = _named_by_git(workspace, root, inventory) if workspace.git == "commit" else {}
        half_seen = _hiding_branches(root, inventory) if workspace.git == "commit" else frozenset()
        until = git.deadline()
        for found in inventory.git:
            # What was not looked through before a run cannot be compared with what is there after it.
            is_unseen = found.path in half_seen or (found.path in links and found.kind != "link")
            if is_unseen or not _can_be_named(workspace.root, found.path, limits.SANDBOX_GIT_PATH_BYTES):
                read_only.add(found.path)
                continue
            kept, closed = git.split(root, found, workspace.git, named, until)
            writable.update(kept)
            read_only.update(closed)
        # An empty place for a submodule: a repository put there would be entered by the host's next `git status`.
        inside = {found.path for found in inventory.git}
        expected = (submodules or git.submodules(root, inventory)).places
        read_only.update(path for path, there in expected.items() if there and f"{path}/.git" not in inside)
    read_only |= twins.names(root, inventory, git=workspace.git != "unprotected")
    special = submounts.below(workspace.root) if not workspace.allow_submounts else submounts.Found((), ())
    emptied = {*inventory.hidden_files, *inventory.sockets, *special.files}
    nameless = {path for path in emptied if not _can_be_named(workspace.root, path)}
    # What cannot be listed can be entered by who knows a name in it: what is hidden there, or a socket.
    unseen = {*inventory.unreadable, *nameless}
    masked = _outermost(_named(workspace.root, {*inventory.hidden_directories, *special.directories, *unseen}))
    emptied = {path for path in emptied if not _covered(path, masked)}
    # What is masked needs no other mount; two in one place could not be told from one that was led astray.
    read_only = _outermost(_named(workspace.root, read_only))
    read_only = {path for path in read_only if not _covered(path, masked) and path not in emptied}
    pinned = {above for path in (*read_only, *writable) for above in _above(path)} | _places(workspace, inventory)
    writable = {path for path in writable | pinned if not _covered(path, read_only) and not _covered(path, masked)}
    return [
        *_made("writable", workspace.root, writable - {"."}),
        *_made("read-only", workspace.root, read_only),
        *_made("empty", workspace.root, masked),
        *_made("nothing", workspace.root, emptied),
    ]


def _hiding_branches(root: Root, inventory: Inventory) -> frozenset[str]:
    """Return the repositories of which git would not see all branches: it removes what none of those has that it sees.

    An empty directory hides none.
    """
    branches = gitrefs.Branches(root)
    known = {found.path for found in inventory.git}
    found: set[str] = set()
    directories = frozenset(inventory.hidden_directories)
    for path in (*directories, *inventory.hidden_files):
        parts = path.split("/")
        places = {"/".join(parts[:at]) or "." for at, part in enumerate(parts) if part in _BRANCHES}
        new = (places & known) - found
        if new and not (path in directories and branches.is_empty(path)):
            found |= new
    return frozenset(found)


def _named_by_git(workspace: Workspace, root: Root, inventory: Inventory) -> gitconfig.Found:
    """Return what configuration names below the root: of that, what lies in a git directory is no command's either."""
    account = gitaccount.recall()
    named = gitconfig.paths(root, git.common_directory(workspace.root), account)
    for place, is_pushed in gitconfig.paths_of(root, inventory.git, account).items():
        named[place] = named.get(place, True) and is_pushed
    return named


def _named(root: str, paths: Iterable[str]) -> set[str]:
    """Return `paths`; of one that is too long for a mount, the deepest directory above it that is not."""
    found: set[str] = set()
    for path in paths:
        while path != "." and not _can_be_named(root, path):
            path = posixpath.dirname(path) or "."
        found.add(path)
    return found


def _can_be_named(root: str, path: str, spare_bytes: int = 0) -> bool:
    return len(os.fsencode(posixpath.join(root, path))) + spare_bytes <= limits.SANDBOX_PATH_BYTES


def _places(workspace: Workspace, inventory: Inventory) -> set[str]:
    """Return the directories without whose names something would be hidden no longer: moved away, a run later it is
    there under another. A glob of one name hides wherever it is."""
    named = Hidden([glob for glob in workspace.hidden_paths if "/" not in glob.removeprefix("**/").rstrip("/")])
    hidden = (*inventory.hidden_directories, *inventory.hidden_files)
    return {above for path in hidden if not named.covers(path) for above in _above(path)}


def _made(kind: Kind, root: str, paths: Iterable[str]) -> list[Mount]:
    ordered = sorted(paths, key=lambda path: (path.count("/"), path))
    return [Mount(kind, root if path == "." else posixpath.join(root, path)) for path in ordered]


def _outermost(paths: set[str]) -> set[str]:
    """Return `paths` without those that lie below another."""
    return {path for path in paths if not _lies_below(path, paths) and not (path != "." and "." in paths)}


def _covered(path: str, by: set[str]) -> bool:
    return path in by or "." in by or _lies_below(path, by)


def _lies_below(path: str, places: set[str]) -> bool:
    """Return whether one of `places` is above `path`; by what is less, as a path can have two thousand names."""
    if len(places) < path.count("/"):
        return any(path.startswith(f"{place}/") for place in places)
    return any(above in places for above in _above(path))


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _outside_mounts(workspace: Workspace, outside: str | None) -> tuple[bool, list[Mount]]:
    """Return whether commands may commit into a worktree's repository, and what of it is mounted then."""
    if outside is None or workspace.git != "commit":
        return False, []
    itself = GitDirectory(".", "directory" if is_git_name(posixpath.basename(outside)) else "bare")
    with Root.open(outside) as repository:
        named = gitconfig.paths_of(repository, [itself], gitaccount.recall())
        others = twins.names(repository, Inventory(git=(itself,)), git=True)
        writable, read_only = git.committing(repository, ".", workspace.root, named, git.deadline())
    if not writable:
        return False, []
    closed = _outermost({*read_only, *others})
    return True, [*_made("writable", outside, set(writable) - {"."}), *_made("read-only", outside, closed)]


def _check_root(root: str) -> None:
    if any(within(root, path) for path in _UNFIT) or not posixpath.isabs(root) or "\0" in root:
        raise Refusal(
            "SANDBOX_UNAVAILABLE",
            f"The workspace lies in a place of the kernel's own ({display(root, limit=200)}). Nothing was started.",
            next_step="Ask the operator to register a directory on a disk.",
        )


def _check_number(root: str, inventory: Inventory) -> None:
    """Refuse what is more than can be mounted in any case, before much is done with each of it.

    What is masked takes a mount each, and each directory above what is protected does.
    """
    for masked in (inventory.sockets, inventory.hidden_files, inventory.hidden_directories, inventory.unreadable):
        if len(masked) > limits.SANDBOX_BINDS:
            raise _too_many(root, _made("nothing", root, masked), inventory)
    for path in (*inventory.protected, *(found.path for found in inventory.git)):
        if path.count("/") > limits.SANDBOX_BINDS:
            raise _too_many(root, _made("writable", root, _above(path)), inventory)


def _linked(links: Sequence[str]) -> Refusal:
    shown = ", ".join(display(path, limit=200) for path in links[:_SHOWN])
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"{shown}: a symbolic link stands where git or an editor looks for what to run, and a link cannot be "
        "protected. Nothing was started.",
        next_step="Ask the operator to look at it and to remove it, or to replace it by what it leads to "
        "(or to take its name off `protected_paths`, or the way through it out of git's configuration).",
        details={"links": [display(path, limit=200) for path in links[:_SHOWN]], "count": len(links)},
    )


def _closed(root: str) -> Refusal:
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        "The workspace's root cannot be listed by the daemon's account, so what is to be hidden or protected there "
        "cannot be found. Nothing was started.",
        next_step=f"Ask the operator to make it readable (`chmod u+rx {display(root, limit=200)}`).",
    )


def _shut(directory: str) -> int | None:
    """Return the mode of a directory of this account's that the account itself may not enter; root can, but no command
    of its does, which has no capability."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    return mode if status.st_uid == os.geteuid() and not mode & stat.S_IXUSR else None


def _not_entered(root: str, place: str, mode: int) -> Refusal:
    is_root = place == root
    shown = "The workspace's root" if is_root else f"`cwd` ({display(posixpath.relpath(place, root), limit=200)})"
    opening = f"chmod u+rwx {display(place, limit=200)}"
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"{shown} has the mode {mode:04o}, with which no command can begin there. Nothing was started.",
        next_step=f"Ask the operator to open it (`{opening}`)." if is_root else f"Run `{opening}` with another `cwd`.",
    )


def _size_bytes(mounts: Iterable[Mount]) -> int:
    return sum(len(os.fsencode(mount.path)) for mount in mounts)


def _too_many(root: str, mounts: Sequence[Mount], inventory: Inventory) -> Refusal:
    size_bytes = _size_bytes(mounts)
    shown = [display(posixpath.relpath(mount.path, root), limit=200) for mount in mounts[:_SHOWN]]
    counts = {
        "git directories": len(inventory.git),
        "sockets, FIFOs or devices": len(inventory.sockets),
        "hidden": len(inventory.hidden_directories) + len(inventory.hidden_files),
        "protected": len(inventory.protected),
        "closed to the daemon": len(inventory.unreadable),
    }
    kinds = ", ".join([*(f"{count} {kind}" for kind, count in counts.items() if count), "directories above them"])
    return Refusal(
        "SANDBOX_UNAVAILABLE",
        f"At least {len(mounts)} places below the root, with paths of {size_bytes:,} bytes, would have to be protected "
        f"one by one ({kinds}; the first: {', '.join(shown)}); at most {limits.SANDBOX_BINDS} places and "
        f"{limits.SANDBOX_BINDS_BYTES:,} bytes can be. Nothing was started.",
        next_step="Ask the operator to remove what is not wanted (to list git directories: "
        "`find . -mindepth 2 -name .git -prune`; sockets, FIFOs and devices: `find . ! -type f ! -type d ! -type l`), "
        "or to register a smaller directory. Patches and reads go on working.",
        details={
            "mounts": len(mounts),
            "bytes": size_bytes,
            "git_directories": len(inventory.git),
            "special_files": len(inventory.sockets),
            "limit": limits.SANDBOX_BINDS,
            "limit_bytes": limits.SANDBOX_BINDS_BYTES,
        },
    )


def _notes(workspace: Workspace, inventory: Inventory) -> tuple[str, ...]:
    notes: list[str] = []
    if closed := inventory.unreadable:
        shown = ", ".join(display(path, limit=200) for path in closed[:_SHOWN])
        notes.append(
            f"The daemon's account cannot list {shown}{', ...' if len(closed) > _SHOWN else ''}: what lies there "
            "cannot be hidden or protected by its name, so the command sees nothing of it. To have it back, the "
            "operator makes it readable (`chmod u+rx`)."
        )
    if os.geteuid() == 0 and os.path.exists(workspace.root):
        owner = os.stat(workspace.root).st_uid
        if owner != 0:
            notes.append(
                f"The daemon runs as root and the workspace belongs to account {owner}: inside the sandbox root has no "
                "special rights, so the command can only read those files. The operator should run CodeSpace as that "
                "account."
            )
    return tuple(notes)
