"""The journal of one operation: a folder that outlives the helper and says what was meant.

    manifest.json   what the patch does to each path; there before anything is written below the root
    before/<n>      the bytes before, of each slot that replaces or removes a file; small ones are in the manifest,
                    which is on the disk anyway before the first rename
    rescued/<n>...  bytes that were found where planned ones should have been
    staged          everything was staged
    missed          staged files that were not in their place when they were first thrown away
    astray          staged files that were not where they were put, as their directory was moved
    installing      the first rename may have happened
    restoring       which slots were found installed when putting back began
    outcome         how putting back ended
    accepted        the operator left the files as they are, however much of the patch is in place
    finishing       the patch is verified, and what was set aside is being thrown away
    finished        nothing is set aside any more
    diff.txt        the whole diff, where the one in the manifest had to be cut
    unmade          directories that somebody else made before the patch could

The folder is locked for as long as a helper works on the operation, so that a second one never
settles what the first is still doing.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

from codespace import limits
from codespace.errors import Refusal
from helper.patch import manifest as manifests
from helper.patch.flush import Flush, write_all
from helper.patch.manifest import Manifest

_Listed = TypeVar("_Listed", int, str)
_OPERATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}\Z")  # it becomes a file name
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_STEP_SECONDS: Final = 0.01
_ATTEMPTS: Final = 1000  # at a free name for rescued bytes


class Journal:
    """The open, locked folder of one operation. `close` gives up the lock and keeps the folder."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._inline = False

    @classmethod
    def create(cls, folder: str, operation: str) -> Journal:
        """Make the folder of a new operation.

        Raises: Refusal FILE_OPERATION_FAILED where it exists already or cannot be made.
        """
        path = _place(folder, operation)
        try:
            try:
                os.mkdir(path, 0o700)
            except FileNotFoundError:
                os.makedirs(folder, 0o700, exist_ok=True)
                os.mkdir(path, 0o700)
            return cls(path, _locked(path))
        except OSError as error:
            raise _failed(error, "made") from error

    @classmethod
    def load(cls, folder: str, operation: str) -> Journal | None:
        """Open the folder of an operation that an earlier helper worked on; None where there is none.

        Raises: Refusal OUTCOME_UNKNOWN while another helper holds it.
        """
        path = _place(folder, operation)
        try:
            return cls(path, _locked(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(error, "opened") from error

    def close(self) -> None:
        """Give up the lock; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def purge(self) -> None:
        """Remove the folder and everything in it.

        The manifest first: what is cut off behind it is nothing's journal, and its marks are read no more. Without some
        of them a patch that was taken back would look like one that was installed.
        """
        with contextlib.suppress(OSError):
            os.unlink("manifest.json", dir_fd=self._descriptor)
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def write_manifest(
        self, manifest: Manifest, before: Mapping[int, bytes], diff: str = "", whole: str | None = None
    ) -> None:
        """Write the manifest, with the bytes before where they are few, and wait until it is on the disk.

        Args:
            diff: For people; kept with the manifest.
            whole: All of it, where `diff` was cut; kept in a file of its own.
        """
        packed = manifests.pack(manifest) | {"diff": diff}
        if whole is not None:
            os.close(self._write("diff.txt", whole.encode("utf-8", "surrogatepass")))
        small = _small(before)
        packed["before"] = {number: base64.b64encode(data).decode() for number, data in small.items()}
        self._inline = len(small) == len(before)
        flush = Flush()
        flush.add(self._write("manifest.json", json.dumps(packed).encode()))
        flush.wait()
        if not self._inline:
            self._keep_before({number: data for number, data in before.items() if number not in small})

    def manifest(self) -> Manifest | None:
        """Return the manifest; None where it is missing or was cut off, and so nothing was written after it.

        Raises: Refusal where it cannot be read though something was.
        """
        packed = self._load("manifest.json")
        try:
            if packed is not None:
                return manifests.unpack(packed)
            if not (self.marked("manifest.json") and (self.marked("staged") or self.marked("installing"))):
                return None
            raise ValueError("the manifest is cut off, and marks are behind it")
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged() from error

    def diff(self) -> bytes:
        """Return the whole diff as UTF-8."""
        with contextlib.suppress(FileNotFoundError):
            return self._read("diff.txt")
        return str((self._load("manifest.json") or {}).get("diff", "")).encode("utf-8", "surrogatepass")

    def befores(self) -> dict[int, bytes]:
        """Return all bytes that were kept, by slot."""
        inline = (self._load("manifest.json") or {}).get("before", {})
        kept = {int(number): base64.b64decode(data) for number, data in inline.items()}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(os.path.join(self.path, "before")):
                kept[int(name)] = self._read(f"before/{name}")
        return kept

    def before(self, number: int) -> bytes | None:
        """Return the bytes kept for slot `number`."""
        with contextlib.suppress(FileNotFoundError):
            return self._read(f"before/{number}")
        packed = self._load("manifest.json") or {}
        inline = packed.get("before", {}).get(str(number))
        return None if inline is None else base64.b64decode(inline)

    def sync_before(self) -> None:
        """Wait until every kept byte is on the disk."""
        if self._inline:
            return
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(os.path.join(self.path, "before")):
                descriptor = os.open(f"before/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._descriptor)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def rescue(self, number: int, data: bytes) -> str:
        """Keep bytes that nobody planned, flushed, and return their file's name within the folder.

        The same bytes are kept once, however often it takes to throw away what they were found in.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir("rescued", 0o700, dir_fd=self._descriptor)
        for attempt in range(_ATTEMPTS):
            name = f"rescued/{number}-{attempt}"
            flush = Flush()
            try:
                flush.add(self._write(name, data))
            except FileExistsError:
                if self._read(name) != data:
                    continue
                flush.add(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._descriptor))
            flush.wait()
            return name
        raise Refusal("FILE_OPERATION_FAILED", "No place was found for bytes that had to be rescued.")

    def rescued(self) -> tuple[str, ...]:
        """Name everything rescued so far, within the folder."""
        if not self.marked("rescued"):
            return ()
        return tuple(f"rescued/{name}" for name in sorted(os.listdir(os.path.join(self.path, "rescued"))))

    def age(self) -> float:
        """Return how long ago the manifest was written, in seconds of the wall clock; 0 where it was not yet."""
        with contextlib.suppress(FileNotFoundError):
            return time.time() - os.stat("manifest.json", dir_fd=self._descriptor).st_mtime
        return 0.0

    def mark(self, name: str, note: Any = None) -> None:
        """Leave a mark, once; `note` is its content as JSON.

        A mark without a note is one more name of the manifest: that takes no new inode, which is what
        costs in making a file.
        """
        try:
            if note is None:
                os.link("manifest.json", name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
                return
        except FileExistsError:
            return
        except OSError:
            pass  # a filesystem without hard links: a file then
        with contextlib.suppress(FileExistsError):
            os.close(self._write(name, json.dumps(note).encode()))

    def is_apart(self, devices: Collection[int]) -> bool:
        """Return whether some of `devices` is flushed without what the journal's own has to write before it."""
        return {os.fstat(self._descriptor).st_dev} != {*devices}

    def sync(self) -> None:
        """Wait until every mark is on the disk."""
        os.fsync(self._descriptor)

    def revise(self, name: str, note: Any) -> None:
        """Leave a mark with a note, in place of the one that may be there."""
        beside = f"{name}.new"
        descriptor = os.open(beside, _FLAGS & ~os.O_EXCL | os.O_TRUNC, 0o600, dir_fd=self._descriptor)
        try:
            write_all(descriptor, json.dumps(note).encode())
        finally:
            os.close(descriptor)
        os.rename(beside, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def marked(self, name: str) -> bool:
        """Return whether the mark is there."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def numbers(self, name: str) -> frozenset[int] | None:
        """Return the slots that a mark lists; None where there is no whole one. Raises: Refusal where it is damaged."""
        return self._listed(name, int)

    def paths(self, name: str) -> frozenset[str] | None:
        """Return the paths that a mark lists, as `numbers` does."""
        return self._listed(name, str)

    def outcome(self) -> tuple[str, list[str]] | None:
        """Return how the patch ended and whose paths were kept, as `numbers` does."""
        match self._load("outcome"):
            case None:
                return None
            case {"outcome": "rejected" | "failed_rolled_back" | "failed_partial" as word, "kept": [*kept]}:
                return word, [str(path) for path in kept]
        raise _damaged()

    def _listed(self, name: str, kind: type[_Listed]) -> frozenset[_Listed] | None:
        listed = self._load(name)
        if listed is None:
            return None
        if not isinstance(listed, list) or not all(isinstance(each, kind) for each in listed):
            raise _damaged()
        return frozenset(listed)

    def _keep_before(self, before: Mapping[int, bytes]) -> None:
        """Write the old bytes without waiting: until finish, which waits, the files themselves have them."""
        os.mkdir("before", 0o700, dir_fd=self._descriptor)
        flush = Flush()
        try:
            for number, data in before.items():
                flush.add(self._write(f"before/{number}", data))
            flush.start()
        finally:
            flush.drop()

    def _write(self, name: str, data: bytes) -> int:
        descriptor = os.open(name, _FLAGS, 0o600, dir_fd=self._descriptor)
        try:
            write_all(descriptor, data)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):  # half of it would pass for all, and take the room of the next try
                os.unlink(name, dir_fd=self._descriptor)
            raise
        return descriptor

    def _read(self, name: str) -> bytes:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor)
        with open(descriptor, "rb") as file:
            return file.read()

    def _load(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return None


def _small(before: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return what goes into the manifest: small files, as long as they are not too much together."""
    small: dict[int, bytes] = {}
    room = limits.JOURNAL_INLINE_BYTES
    for number, data in before.items():
        if len(data) <= limits.JOURNAL_SMALL_BYTES and len(data) <= room:
            small[number] = data
            room -= len(data)
    return small


def _place(folder: str, operation: str) -> str:
    if not _OPERATION.match(operation):
        raise Refusal("INVALID_ARGUMENT", "The operation id cannot name a journal. Nothing was done.")
    return os.path.join(folder, operation)


def _locked(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    until = time.monotonic() + limits.JOURNAL_LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise Refusal(
                    "OUTCOME_UNKNOWN", "Another helper still works on this operation. Nothing was done."
                ) from None
        except BaseException:
            os.close(descriptor)
            raise
        time.sleep(_LOCK_STEP_SECONDS)  # the kernel tells nobody with a time limit that a lock is free


def _damaged() -> Refusal:
    return Refusal(
        "FILE_OPERATION_FAILED",
        "The journal of this operation was written by another release or was damaged. Nothing was done.",
        next_step="Ask the operator to look at the journal in the state directory.",
    )


def _failed(error: OSError, verb: str) -> Refusal:
    reason = error.strerror or "unknown"
    return Refusal(
        "FILE_OPERATION_FAILED",
        f"The journal of this operation could not be {verb}: {reason}. Nothing was written.",
        next_step="Ask the operator to look at the state directory: it may be full or not writable.",
    )
