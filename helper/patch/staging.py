"""Stage: journal first, then the new bytes beside their targets, all flushed before the first rename."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from codespace.beneath import Root, metadata
from codespace.beneath.faults import refusal
from codespace.errors import Refusal
from helper.patch import dress
from helper.patch.flush import Flush, write_all
from helper.patch.journal import Journal
from helper.patch.manifest import PROBE, Manifest, Metadata, Slot
from helper.patch.patience import Patience, leads_elsewhere
from helper.patch.planning import Planned
from helper.patch.probe import probe_renames, remove_probes
from helper.patch.sight import Identity, discard, identity, mounts_of
from helper.patch.strays import is_gone, sweep_strays

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = 0o666  # less the umask, which the helper takes over from the daemon
_NEW_DIRECTORY: Final = 0o777
_COPIED_FILE: Final = 0o600  # until the metadata of the file it replaces is on it


def stage(
    root: Root, planned: Planned, folder: str, renaming: dict[int, bool]
) -> tuple[Journal, Manifest, dict[int, Identity]]:
    """Write journal and staged files.

    Args:
        renaming: Of each device that was written to, whether it knows the flags of rename; filled on the way.
    Returns: the open journal, the manifest with mounts and the metadata of the old files, and the identity of each
        staged file, by which install knows that what it put in place is what was staged.
    Raises: Refusal; nothing is left below the root and no journal either.
    """
    manifest = _with_metadata(root, planned.manifest)
    manifest = replace(manifest, mounts=mounts_of(root, manifest))
    journal = Journal.create(folder, manifest.operation)
    identities: dict[int, Identity] = {}
    begun: set[int] = set()
    try:
        with _refusing():
            journal.write_manifest(manifest, planned.before, planned.diff, planned.whole_diff())
            probe_renames(root, manifest, renaming)
            _write_staged(root, manifest, planned.after, identities, begun)
            journal.mark("staged")
    except BaseException:
        try:
            if _clear(root, manifest, journal, begun, identities) and not journal.rescued():
                journal.purge()
        finally:
            journal.close()  # where it is kept: for those bytes, or for `finish` to sweep once more
        raise
    return journal, manifest, identities


def _clear(root: Root, manifest: Manifest, journal: Journal, begun: Collection[int], made: Collection[int]) -> bool:
    """Remove what was staged until something stood against it; returns whether nothing is left.

    Args:
        begun: The slots that got so far.
        made: Those whose file was there; one that is no longer in its place is looked for everywhere.
    """
    patience = Patience()
    lost = {slot.number for slot in manifest.slots if slot.number in made and is_gone(root, slot, patience)}
    left = sweep(root, manifest, journal, patience, begun) | lost
    return not left or sweep_strays(root, manifest, journal, left)


def sweep(
    root: Root, manifest: Manifest, journal: Journal, patience: Patience, only: Collection[int] | None = None
) -> set[int]:
    """Remove what was staged and never installed; bytes that are not ours are rescued first.

    Args:
        only: The slots that got so far; None for all of them.
    Returns: the slots of which something may be left, and PROBE where a probe's file may be.
    """
    left: set[int] = set()
    for slot in manifest.slots:
        staged = slot.action != "remove" and (only is None or slot.number in only)
        # Where an old file is beside it still, it could not be put back; the journal has its bytes.
        ours = (slot.after, slot.before) if slot.action == "replace" else (slot.after,)
        if staged and not patience.insist(partial(discard, root, slot, ours, journal)):
            left.add(slot.number)
    for directory in reversed(manifest.directories):
        patience.insist(partial(_remove_directory, root, directory.beside))
    return left if remove_probes(root, manifest, journal, patience) else left | {PROBE}


def _remove_directory(root: Root, path: str) -> bool:
    try:
        root.remove_directory(path)
    except Refusal as refused:  # it is in place, never was made, or somebody put something into it
        if leads_elsewhere(refused):
            raise
    return True


def write_beside(root: Root, slot: Slot, data: bytes) -> tuple[int, Identity]:
    """Make the file of a slot under its staged name.

    Returns: its open descriptor, still to be flushed, and its identity.
    Raises: FileExistsError where something has that name; Refusal naming the slot's path: nothing is left unless
        it could not be removed either.
    """
    try:
        return _write_beside(root, slot, data)
    except FileExistsError:
        raise
    except OSError as error:
        raise refusal(error, slot.path, "Nothing was written.") from error


def _write_beside(root: Root, slot: Slot, data: bytes) -> tuple[int, Identity]:
    with root.parent(slot.beside) as (directory, name):
        plain = slot.source is None and slot.mode is None and slot.given is None
        mode = _NEW_FILE if plain else _COPIED_FILE
        descriptor = os.open(name, _FLAGS, mode, dir_fd=directory)
        try:
            write_all(descriptor, data)
            _dress(root, slot, descriptor)
            return descriptor, identity(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):  # the reason why it could not be written is told first
                os.unlink(name, dir_fd=directory)
            raise


def _dress(root: Root, slot: Slot, descriptor: int) -> None:
    if slot.source is not None:
        source = root.hold(slot.source)
        try:
            metadata.copy(source, descriptor)
        finally:
            os.close(source)
    if slot.given is not None:
        dress.give(slot.given, descriptor)
    if slot.mode is not None and stat.S_IMODE(os.fstat(descriptor).st_mode) != slot.mode:
        os.fchmod(descriptor, slot.mode)


def _write_staged(
    root: Root, manifest: Manifest, after: Mapping[int, bytes], identities: dict[int, Identity], begun: set[int]
) -> None:
    flush = Flush()
    try:
        for directory in manifest.directories:
            with root.parent(directory.beside) as (above, name):
                os.mkdir(name, _NEW_DIRECTORY, dir_fd=above)
                if directory.mode is not None:
                    _set_mode(above, name, directory.mode)
        for slot in manifest.slots:
            if slot.action != "remove":
                begun.add(slot.number)
                try:
                    descriptor, identities[slot.number] = write_beside(root, slot, after[slot.number])
                except FileExistsError as error:
                    begun.discard(slot.number)  # what is there is somebody else's
                    raise refusal(error, slot.path, "Nothing was written.") from error
                flush.add(descriptor)
        flush.wait()
    finally:
        flush.drop()


def _set_mode(above: int, name: str, mode: int) -> None:
    """Give a directory its mode; by its name alone chmod would follow a link that was put in its place."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{held}", mode)
    finally:
        os.close(held)


def _with_metadata(root: Root, manifest: Manifest) -> Manifest:
    slots = tuple(
        slot if slot.action == "create" else slot.with_metadata(_metadata(root, slot)) for slot in manifest.slots
    )
    return replace(manifest, slots=slots)


def _metadata(root: Root, slot: Slot) -> Metadata:
    try:
        held = root.hold(slot.path)
    except Refusal as refused:
        raise changed(slot, "absent") from refused
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise changed(slot, "other")
        return dress.carried(held)
    finally:
        os.close(held)


def changed(slot: Slot, actual: str, left: str = "Nothing was written.") -> Refusal:
    """Return the refusal for a path that is no longer what the plan saw."""
    return Refusal(
        "VERSION_CONFLICT",
        f"{slot.path} is at {actual}, the patch was made for {slot.before}. {left}",
        details={"path": slot.path, "expected": slot.before, "actual": actual},
    )


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or "unknown"
        raise Refusal(
            "FILE_OPERATION_FAILED",
            f"The new contents could not be staged: {reason}. Nothing was written.",
            details={"errno": error.errno},
        ) from error
