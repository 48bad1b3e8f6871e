"""The index of a git repository: where git expects submodules by it, and names that git itself never puts there.

git believes its index. It enters what lies at a submodule's place, and a checkout writes what an entry says to the
entry's name, also below `.git` or outside of the tree.

Source: gitformat-index(5), versions 2 to 4.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Final

from codespace import limits
from codespace.beneath import Root
from codespace.errors import Refusal
from codespace.sandbox import shortage

_GITLINK: Final = b"\x00\x00\xe0\x00"
_SPARSE: Final = b"sdir"
_DIRECTORY: Final = b"\x00\x00\x40\x00"
"""In a sparse index, which stands for all below it; git looks into its tree once something is there."""
_MODES: Final = frozenset({b"\x00\x00\x81\xa4", b"\x00\x00\x81\xed", b"\x00\x00\xa0\x00", _GITLINK, _DIRECTORY})
"""All that git writes. Of others it looks at some bits only, and takes for a submodule what is none by all of them."""
_STATUS_BYTES: Final = 40
_LONG: Final = 0xFFF  # the length of a name as long as this or longer
_MOST_NAME_BYTES: Final = 4_096
_NUMBER_BYTES: Final = 4  # more than a name's length needs; behind nine git takes a number for 0 and reads on within it
_SPLIT: Final = re.compile(rb"link(?=([\x00-\x1f].{3}))", re.DOTALL)
"""How the part begins that says which index this one was split from, and its length: git follows one that goes on
behind the end of the file. A file's name can end so too."""
_SPLITS: Final = 1_024
_BASES: Final = 4
# Most parts that may be meant, and most indexes that are read for them: git writes one.
_BLOCKS: Final = re.compile(rb"IEOT(?=(.{4})\x00\x00\x00\x01)", re.DOTALL)
"""How the part begins that says where the entries of each thread begin that reads them."""
_MOST_BLOCKS: Final = 1_024
_ASTRAY: Final = re.compile(rb"\.git[/\x00]|\.\.[/\x00]", re.IGNORECASE)
"""What is in every index of version 2 with a name that leads into a git directory, or up."""
_SLASH: Final = ord("/")
_KEPT_BYTES: Final = 4_194_304
_OF_ONE_BYTES: Final = 64
# Most that names of submodules and of what a sparse index leaves out take, and what each takes besides: some 40,000,
# the most that is known of a repository is 25,000. A command can have 4 KB of name stand in 8 bytes of an index.
_READ_AT_ONCE: Final = 1_024  # most entries between two looks at the clock


def expected(
    root: Root,
    directory: str,
    object_bytes: Callable[[], int],
    look_at_clock: Callable[[], object] = lambda: None,
    *,
    checked: bool = False,
) -> list[str] | None:
    """Return the paths of submodules in the index of the git directory `directory`, and with a slash behind them what
    may hold any; None where it is too large or not as git writes it, or where they are very many.

    Args:
        object_bytes: Says how long an object's name is, asked for where it matters: the index does not say it, and one
            can be made that has other entries for each.
        look_at_clock: Called every now and then; what it raises is raised.
        checked: None also where a name leads into a git directory or out of the tree. It takes reading each name.
    Raises: OSError, Refusal for a shortage.
    """
    index = _bytes(root, f"{directory}/index")
    if index is None:
        return None
    if not checked and not _expects(index) and _SPLIT.search(index) is None:
        return []  # nearly always: the bytes of the modes are nowhere, so nothing needs to be parsed
    size = object_bytes()
    found: list[str] = []
    for data in itertools.chain((index,), _split_from(root, directory, index, size)):
        if data is None:
            return None
        try:
            found += _submodules(data, size, look_at_clock, checked=checked)
        except (ValueError, IndexError):
            return None
    return found


def _split_from(root: Root, directory: str, index: bytes, size: int) -> Iterator[bytes | None]:
    """Yield the indexes that one was split from, one at a time; None for what cannot be looked through."""
    splits = list(itertools.islice(_SPLIT.finditer(index), _SPLITS + 1))
    starts = [found.end() + 4 for found in splits if size <= int.from_bytes(found[1], "big")]
    paths = [f"{directory}/sharedindex.{name}" for name in sorted({index[at : at + size].hex() for at in starts})]
    there = [path for path in paths if root.stamp(path) is not None]
    if len(splits) > _SPLITS or len(there) > _BASES:
        yield None
        return
    for path in there:
        yield _bytes(root, path)


def _bytes(root: Root, path: str) -> bytes | None:
    """Return the bytes of a file, none where there is no such; None where there are too many."""
    try:
        return root.read(path, limits.SANDBOX_INDEX_BYTES)[0]
    except Refusal as refused:
        if shortage.is_behind(refused):
            raise
        return None if refused.code == "FILE_TOO_LARGE" else b""


def _expects(data: bytes) -> bool:
    return _GITLINK in data or _SPARSE in data


def _submodules(data: bytes, size: int, look_at_clock: Callable[[], object], *, checked: bool) -> list[str]:
    """Return what `expected` does of one file. Raises: ValueError, IndexError where it is not as git writes it: of
    lengths that are not so git believes other names than are told here."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        return []
    if not _expects(data) and (
        not checked or (version == 2 and _ASTRAY.search(data) is None and _is_plain(data, count, size))
    ):
        return []
    found: list[str] = []
    starts = _starts_of_blocks(data, count)
    position, name, kept, room = 12, b"", 0, _KEPT_BYTES
    for number in range(count):
        if number % _READ_AT_ONCE == 0:
            look_at_clock()
        begins = position in starts
        if starts.pop(position, number) != number:
            raise ValueError("who begins to read here finds another entry")
        mode = data[position + 24 : position + 28]
        if checked and mode not in _MODES:
            raise ValueError("git writes no such mode")
        start = position + _STATUS_BYTES + size
        length = int.from_bytes(data[start : start + 2], "big") & _LONG
        start += 4 if data[start] & 0x40 else 2
        if version == 4:
            stripped, start = _varint(data, start)
            end = data.index(b"\0", start)
            kept = len(name) - stripped
            if kept < 0:
                raise ValueError("no name before is so long")
            if begins and kept:
                raise ValueError("who begins to read here finds another name")
            name = name[:kept] + data[start:end]
            position = end + 1
        else:
            end = data.index(b"\0", start)
            name = data[start:end]
            position += (end - position + 8) // 8 * 8
        if length != min(len(name), _LONG) or len(name) > _MOST_NAME_BYTES:
            raise ValueError("the length of a name is not what it is said to be")
        if checked and _leads_astray(name, kept):  # a submodule's too: the file there is removed, a repository entered
            raise ValueError("a name leads to where no checkout may write")
        if mode in (_GITLINK, _DIRECTORY):
            if not name:
                raise ValueError("it takes the place of an entry in the index that this one was split from")
            room -= len(name) + _OF_ONE_BYTES
            if room < 0:
                raise ValueError("these are too many to be kept")
            found.append(os.fsdecode(name).rstrip("/") + ("/" if mode == _DIRECTORY else ""))
    if starts:
        raise ValueError("who begins to read at one of these finds other entries")
    return found


def _starts_of_blocks(data: bytes, count: int) -> dict[int, int]:
    """Return where git may begin to read, with threads, and the number of the entry that has to be there.

    Raises: ValueError where it would read others than in one go.
    """
    starts: dict[int, int] = {}
    for told_of, found in enumerate(_BLOCKS.finditer(data)):
        if told_of == _BASES:
            raise ValueError("there is no end of blocks")
        at, blocks = found.end() + 8, (int.from_bytes(found[1], "big") - 4) // 8
        told = data[at : at + 8 * blocks] if 0 < blocks <= _MOST_BLOCKS else b""
        number = 0
        for offset, entries in struct.iter_unpack(">II", told[: len(told) // 8 * 8]):
            if starts.setdefault(offset, number) != number:
                raise ValueError("two entries begin at one place")
            number += entries
        if number != count or len(starts) > _MOST_BLOCKS:
            raise ValueError("the blocks have not as many entries as the index")
    return starts


def _is_plain(data: bytes, count: int, size: int) -> bool:
    """Return whether all names are as long as they are said to be, and none begins at the root of all: in a third of
    the time that reading them takes. Raises: IndexError, ValueError."""
    position, header, starts = 12, _STATUS_BYTES + size + 2, _starts_of_blocks(data, count)
    for number in range(count):
        if (starts and starts.pop(position, number) != number) or data[position + 24 : position + 28] not in _MODES:
            return False
        start = position + header
        high, low = data[start - 2], data[start - 1]
        length = (high & 0xF) << 8 | low
        if high & 0x40 or length == _LONG or data[start + length] or data[start] == _SLASH:
            return False
        position += (header + length + 8) & ~7
    return not starts


def _leads_astray(name: bytes, kept: int) -> bool:
    """Return whether a name does that begins as one that does not, for `kept` bytes: only what is behind is looked at,
    or a command could have much looked at for few bytes of an index."""
    parts = name[name.rfind(b"/", 0, kept) + 1 :].split(b"/")
    return name.startswith(b"/") or any(part == b".." or part.lower() == b".git" for part in parts)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value, last = data[position] & 0x7F, position + _NUMBER_BYTES - 1
    while data[position] & 0x80:
        if position == last:
            raise ValueError("git may read another number")
        position += 1
        value = ((value + 1) << 7) | (data[position] & 0x7F)
    return value, position + 1
