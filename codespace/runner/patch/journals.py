"""The journals of a state directory from outside: which need tidying, which are snapshots, what they say.

The helper writes them (helper/patch/journal.py says what is in them). Here they are only looked at,
marked as accepted, and removed where nobody needs them any more. A journal that a helper has locked is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codespace import limits, pages
from codespace.contract import DiffPage
from codespace.display import display
from codespace.errors import Refusal

_NAME: Final = "journal"
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A journal that is only kept for undo and for people."""

    operation_id: str
    size_bytes: int
    finished_at: float
    """Wall clock, seconds since the epoch."""
    has_rescued: bool = False
    """Whether it holds somebody's bytes that are nowhere else."""


def folder(state_dir: str) -> str:
    """Return where the journals of a state directory are."""
    return os.path.join(state_dir, _NAME)


def leftovers(state_dir: str) -> list[str]:
    """Return the operations that did not end in order: something of theirs may lie beside their files."""
    return sorted(name for name, held in _each(state_dir) if not _marked(held, "finished"))


def snapshots(state_dir: str) -> list[Snapshot]:
    """Return the snapshots, oldest first."""
    found = []
    for name, held in _each(state_dir):
        with contextlib.suppress(FileNotFoundError):
            at = os.stat(".", dir_fd=held).st_mtime
            if _marked(held, "finished"):
                found.append(Snapshot(name, _size(held), at, _marked(held, "rescued")))
    return sorted(found, key=lambda each: each.finished_at)


def expired(state_dir: str, most_bytes: int, oldest: float) -> list[str]:
    """Return whose snapshots are from before `oldest` (wall clock), and the oldest while all are over `most_bytes`.

    What was rescued is nobody's snapshot: only a person throws it away.
    """
    kept = [each for each in snapshots(state_dir) if not each.has_rescued]
    total = sum(each.size_bytes for each in kept)
    found = []
    for each in kept:
        if each.finished_at >= oldest and total <= most_bytes:
            break
        found.append(each.operation_id)
        total -= each.size_bytes
    return found


def rescued(state_dir: str, operation_id: str) -> list[str]:
    """Return the files in which an operation's journal keeps somebody's bytes that are nowhere else."""
    where = os.path.join(folder(state_dir), os.path.basename(operation_id), "rescued")
    try:
        return [os.path.join(where, name) for name in sorted(os.listdir(where))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_left(state_dir: str, operation_id: str) -> bool:
    """Return whether something of an operation may still lie beside its files, as far as its journal says."""
    path = os.path.join(folder(state_dir), os.path.basename(operation_id))
    return os.path.isdir(path) and not os.path.lexists(os.path.join(path, "finished"))


def are_there(state_dir: str) -> bool:
    """Return whether a state directory is there that was one: an empty one is where its disk would be mounted."""
    try:
        with os.scandir(state_dir) as entries:
            return any(entries)
    except OSError:
        return False


@contextlib.contextmanager
def removing(state_dir: str, operation_id: str, *, ended: bool = False, with_rescued: bool = False) -> Iterator[bool]:
    """Hold one snapshot for a block, and remove it behind that; one that raises leaves it there.

    Args:
        ended: Whether the ledger has the operation's end, so that it may go without being finished, too.
        with_rescued: Whether somebody's bytes that are nowhere else go, too; else such a snapshot stays.
    Yields: whether it is there, finished and not in use; else nothing is removed.
    Raises: OSError where it cannot be removed whole.
    """
    path = os.path.join(folder(state_dir), os.path.basename(operation_id))
    with contextlib.ExitStack() as stack:
        try:
            held = os.open(path, _OPEN)
            stack.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            goes = (ended or _marked(held, "finished")) and (with_rescued or not rescued(state_dir, operation_id))
        except OSError:
            goes = False
        yield goes
        if goes:
            shutil.rmtree(path)


def forget(state_dir: str, operation_id: str) -> bool:
    """Remove one snapshot that has nobody's bytes which are nowhere else. Returns: whether it did."""
    try:
        with removing(state_dir, operation_id) as goes:
            return goes
    except OSError:
        return False


def accept(state_dir: str, operation_id: str) -> None:
    """Mark, flushed, that the operator left the files of an operation as they are; without a journal nothing is to do.

    Raises: Refusal FILE_OPERATION_FAILED where it cannot be marked, or a helper works on it.
    """
    path = os.path.join(folder(state_dir), os.path.basename(operation_id))
    try:
        held = os.open(path, _OPEN)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unmarked(path, error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open("accepted", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=held))
        os.fsync(held)
    except BlockingIOError as error:
        raise Refusal(
            "FILE_OPERATION_FAILED",
            "A daemon works on this patch at the moment. Nothing was done.",
            next_step="Send the same call again in a moment.",
        ) from error
    except OSError as error:
        raise _unmarked(path, error) from error
    finally:
        os.close(held)


def _unmarked(path: str, error: OSError) -> Refusal:
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"The journal of the patch ({display(path)}) cannot be marked: {os.strerror(error.errno or 0)}. "
        "Nothing was done.",
        next_step="Have this account write there, or move that directory away, and send the same call again.",
    )


def diff(state_dir: str, operation_id: str, cursor: int) -> DiffPage:
    """Return a page of an operation's whole diff.

    Raises: Refusal SNAPSHOT_EXPIRED where its journal is gone or damaged.
    """
    path = os.path.join(folder(state_dir), os.path.basename(operation_id))
    try:
        whole = _whole(path)
    except FileNotFoundError as error:
        raise Refusal("SNAPSHOT_EXPIRED", "The diff of this operation is no longer kept.") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal(
            "SNAPSHOT_EXPIRED",
            "The diff of this operation cannot be read: its journal is damaged or may not be opened.",
            next_step="Look at the journal in the state directory.",
        ) from error
    text, following = pages.cut(whole, cursor, limits.DIFF_PAGE_BYTES)
    return DiffPage(text, following, len(whole))


def _whole(path: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return _read(os.path.join(path, "diff.txt"))
    told = json.loads(_read(os.path.join(path, "manifest.json")))["diff"]
    if not isinstance(told, str):
        raise TypeError("the diff is no text")
    return told.encode("utf-8", "surrogatepass")


def _read(path: str) -> bytes:
    with open(os.open(path, _FILE), "rb") as file:
        return file.read()


def _each(state_dir: str) -> Iterator[tuple[str, int]]:
    try:
        names = os.listdir(folder(state_dir))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        try:
            held = os.open(os.path.join(folder(state_dir), name), _OPEN)
        except OSError:
            continue  # removed meanwhile, or nothing of ours
        try:
            yield name, held
        finally:
            os.close(held)


def _marked(held: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=held, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _size(held: int) -> int:
    """Return the bytes on the disk; marks are more names of the manifest and count once."""
    blocks: dict[int, int] = {}
    for _, _, names, directory in os.fwalk(".", dir_fd=held):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values())
