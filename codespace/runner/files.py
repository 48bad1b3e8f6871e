"""`read`, `versions` and what holds bind: bytes of single files, through the one file primitive, off the event loop."""

from __future__ import annotations

import base64
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from typing import Final

from codespace import limits
from codespace.beneath import Root, clean, showable
from codespace.contract import Encoding, ReadResult, Workspace
from codespace.digest import ABSENT
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner.lines import Scan
from codespace.runner.roots import Roots
from codespace.runner.turns import Turns
from codespace.sandbox import plan

_BLOCK_BYTES: Final = 262_144
_MAGIC: Final = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_NO_FILE: Final = ("FILE_NOT_FOUND", "PATH_NOT_DIRECTORY", "SYMLINK_REJECTED", "SPECIAL_FILE_REJECTED")


class Files:
    """The reading verbs of the runner.

    A verb that is cancelled or over its time returns at once; its thread ends by itself and has no effect.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._turns = Turns(limits.READS_AT_ONCE)

    async def read(
        self,
        workspace: Workspace,
        path: str,
        *,
        start_line: int | None,
        line_count: int | None,
        encoding: Encoding,
        limit_bytes: int,
    ) -> ReadResult:
        """Return lines of a file and facts about the whole of it.

        Args:
            start_line, line_count: From 1; None for the first line, and for all that follow.
            encoding: `base64` gives bytes as they are; its facts about lines are None unless a range was asked for.
            limit_bytes: Most bytes of the file to return; the workspace's own limit holds too.
        Returns: `version`, `size_bytes`, `total_lines`, `line_ending` and `final_newline` are those of the whole
            file; `content` keeps its line ends. `truncated` says that the limit cut the lines asked for, behind a whole
            line where one fits. start_line and end_line are None where no such line exists.
        Raises: Refusal of `beneath.Root`; NOT_TEXT, FILE_TOO_LARGE, INVALID_ARGUMENT, TIMEOUT.
        """
        _check_range(start_line, line_count)
        limit = min(limit_bytes, workspace.limits.read_bytes)

        def work() -> ReadResult:
            scan = Scan(start_line or 1, line_count, limit)
            head = _scan(self._roots.of(workspace), path, workspace.limits.file_bytes, scan)
            ranged = start_line is not None or line_count is not None
            return _result(clean(path), scan, encoding, start_line or 1, _media_type(head), ranged=ranged)

        return await self._turns.run(workspace, work, path)

    async def versions(self, workspace: Workspace, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the version of each path now, `absent` where no regular file is.

        Raises: Refusal FILE_TOO_LARGE, FILE_OPERATION_FAILED, PATH_ESCAPE, INVALID_ARGUMENT, TIMEOUT.
        """

        def work() -> dict[str, str]:
            root = self._roots.of(workspace)
            return {path: _version(root, path, workspace.limits.file_bytes) for path in paths}

        return await self._turns.run(workspace, work, "the paths")

    async def bound(self, workspace: Workspace, path: str) -> dict[str, str]:
        """Return what a hold binds of an absolute path that a command names; nothing where nothing is in the root.

        Returns: `link:<path>` is where the links on it lead. `file:<path>`, behind them, is the version; or size,
            inode and last change of a file over the workspace's limit; or the words why it is not bound.
        Raises: Refusal TIMEOUT.
        """
        return await self._turns.run(
            workspace, lambda: _bound(self._roots.of(workspace), path, workspace.limits.file_bytes), display(path)
        )


def _scan(root: Root, path: str, file_bytes: int, scan: Scan) -> bytes:
    """Feed the file to `scan` and return its first bytes."""
    descriptor = root.open_file(path)
    head = b""
    try:
        _check_size(path, os.fstat(descriptor).st_size, file_bytes)
        while block := os.read(descriptor, _BLOCK_BYTES):
            head = head or block[:16]
            scan.feed(block)
            _check_size(path, scan.size, file_bytes)
    except OSError as error:
        raise Refusal("FILE_OPERATION_FAILED", f"{path} could not be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    scan.finish()
    return head


def _check_size(path: str, size: int, file_bytes: int) -> None:
    if size > file_bytes:
        raise Refusal(
            "FILE_TOO_LARGE",
            f"{path} has at least {size:,} bytes, over the workspace's limit of {file_bytes:,}. Nothing was read.",
            next_step="Use search for what you need, or ask the operator to raise limits.file_bytes.",
            details={"path": path, "size_bytes": size, "limit_bytes": file_bytes},
        )


def _check_range(start_line: int | None, line_count: int | None) -> None:
    for name, value in (("start_line", start_line), ("line_count", line_count)):
        if value is not None and value < 1:
            raise Refusal("INVALID_ARGUMENT", f"{name} is {value}; lines count from 1. Nothing was read.")


def _result(path: str, scan: Scan, encoding: Encoding, first: int, media: str | None, *, ranged: bool) -> ReadResult:
    if encoding == "base64":
        data = scan.raw()
        content = base64.b64encode(data).decode("ascii")
        media = None if ranged or scan.cut else media  # a part of an image is no image
    elif scan.is_text:
        data = scan.wanted()
        content = data.decode("utf-8")
        media = None
    else:
        details = {"path": path, "size_bytes": scan.size, "version": scan.version, "media_type": media}
        raise Refusal("NOT_TEXT", f"{path} is not UTF-8 text. Nothing was read.", details=details)
    lines = data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    told = encoding == "text" or ranged
    return ReadResult(
        path=path,
        content=content,
        encoding=encoding,
        version=scan.version,
        size_bytes=scan.size,
        total_lines=scan.total_lines if told else None,
        start_line=first if told and lines else None,
        end_line=first + lines - 1 if told and lines else None,
        line_ending=scan.line_ending if told else None,
        final_newline=scan.final_newline if told else None,
        truncated=scan.cut,
        media_type=media,
    )


def _media_type(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _MAGIC if head.startswith(magic)), None)


def _version(root: Root, path: str, file_bytes: int) -> str:
    try:
        return root.version(path, file_bytes)
    except Refusal as refused:
        if refused.code in _NO_FILE:
            return ABSENT
        raise


def _bound(root: Root, path: str, file_bytes: int) -> dict[str, str]:
    """Follow the links of a path as a program would, and bind what is there for who follows none."""
    said, real = posixpath.normpath(path), os.path.realpath(path)
    is_said_inside, is_inside = plan.within(said, root.path), plan.within(real, root.path)
    if is_said_inside and root.is_hidden(posixpath.relpath(said, root.path)):
        return {}
    link = f"link:{path.removeprefix(root.path.rstrip('/') + '/')}"
    if not is_inside:
        return {link: f"{_text(root, said)}outside of the workspace and not bound"} if is_said_inside else {}
    place = posixpath.relpath(real, root.path)
    found = _found(root, place, file_bytes) if os.path.lexists(real) else None
    if found is None:
        return {}
    leads = {} if said == real else {link: f"-> {_sayable(place)}"}
    return leads | {f"file:{_sayable(place)}": found}


def _text(root: Root, link: str) -> str:
    """Return what a link that lies in the root says; of what is behind it, which the host alone sees, nothing."""
    place = posixpath.join(os.path.realpath(posixpath.dirname(link)), posixpath.basename(link))
    if not plan.within(place, root.path) or root.is_hidden(posixpath.relpath(place, root.path)):
        return ""
    try:
        return f"-> {_sayable(os.readlink(place))}, "
    except OSError:
        return ""


def _found(root: Root, place: str, file_bytes: int) -> str | None:
    if not showable(place):
        return None if root.is_hidden(place) else "not bound: its name has control characters or is not Unicode text"
    try:
        status = root.look(place)
        if status is None:  # hidden
            return None
        if not stat.S_ISREG(status.st_mode):
            return f"{'a directory' if stat.S_ISDIR(status.st_mode) else 'no regular file'}, not bound"
        if status.st_size > file_bytes:  # nobody can set the time of the last change
            return f"not hashed: {status.st_size} bytes, inode {status.st_ino}, changed at {status.st_ctime_ns} ns"
        return root.version(place, file_bytes)
    except Refusal as refused:
        return f"not bound: {refused.code}"


def _sayable(path: str) -> str:
    return path if showable(path) else display(path)
