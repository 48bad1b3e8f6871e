"""What of a process's output lies on disk, and reading it: by its own daemon, or by any other.

A spool is a folder of numbered segments. Where a middle was lost, numbers are missing: each row of
consecutive numbers is one run of output without a hole.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from codespace.contract import Encoding, Stream
from codespace.runner.output.pieces import Piece, cut, limit_of, span
from codespace.runner.output.segment import INDEX, Offsets, opened

SUFFIX: Final = ".spool"


@dataclass(frozen=True, slots=True)
class Part:
    """One segment."""

    path: str
    starts: Offsets


@dataclass(frozen=True, slots=True)
class Run:
    """Segments that follow each other without a hole."""

    parts: tuple[Part, ...]
    ends: Offsets


@dataclass(frozen=True, slots=True)
class Kept:
    """All runs, at one moment."""

    runs: tuple[Run, ...] = ()

    def ranges(self, index: int) -> list[tuple[int, int]]:
        """Return the offsets of one stream that are there, as ascending (first, behind the last)."""
        found = ((run.parts[0].starts[index], run.ends[index]) for run in self.runs)
        return [(start, stop) for start, stop in found if stop > start]

    def totals(self) -> dict[str, int]:
        """Return how far each stream goes, by its name."""
        return {name: self.runs[-1].ends[at] if self.runs else 0 for name, at in INDEX.items()}

    def read(self, index: int, offset: int, limit_bytes: int) -> bytes:
        """Return up to `limit_bytes` from `offset` on; fewer where a run ends, none where a segment is gone."""
        for run in self.runs:
            if run.parts[0].starts[index] <= offset < run.ends[index]:
                return _read(run.parts, index, offset, min(limit_bytes, run.ends[index] - offset))
        return b""


def _read(parts: Sequence[Part], index: int, offset: int, limit_bytes: int) -> bytes:
    found = b""
    first = bisect_right(parts, offset, key=lambda part: part.starts[index]) - 1
    for part in parts[max(0, first) :]:
        if len(found) >= limit_bytes:
            break
        try:
            with opened(part.path) as segment:
                block = segment.read(index, offset + len(found), limit_bytes - len(found))
        except (OSError, ValueError):
            break  # it was given up meanwhile
        found += block
    return found


def read(
    folder: str, *, cursor: int, stream: Stream, limit_bytes: int, encoding: Encoding, ended: bool
) -> tuple[Piece, dict[str, int]]:
    """Return output of any daemon's process from byte `cursor` on, and how much there is of each stream.

    Args:
        ended: Nothing will be written any more.
    """
    kept, index = look(folder), INDEX[stream]
    totals = kept.totals()
    wanted = max(0, cursor)
    where = span([*kept.ranges(index), (totals[stream], totals[stream])], wanted)
    block = kept.read(index, where.start, min(where.stop - where.start, limit_of(limit_bytes, encoding)))
    return cut(block, where, wanted, encoding=encoding, closed=ended), totals


def segment_path(folder: str, number: int) -> str:
    """Return where segment `number` of a spool lies."""
    return os.path.join(folder, f"{number:08d}{SUFFIX}")


def look(folder: str) -> Kept:
    """Return what a spool holds now, whoever writes it; nothing where there is none."""
    try:
        numbers = sorted(
            int(name.removesuffix(SUFFIX)) for name in os.listdir(folder) if name.removesuffix(SUFFIX).isdecimal()
        )
    except OSError:
        return Kept()
    runs: list[list[tuple[int, Part]]] = []
    for number in numbers:
        part = _part(segment_path(folder, number))
        if part is None:
            continue  # given up meanwhile, or begun on a full disk
        if not runs or runs[-1][-1][0] != number - 1:
            runs.append([])
        runs[-1].append((number, part))
    return Kept(tuple(_run([part for _, part in each]) for each in runs))


def _part(path: str) -> Part | None:
    try:
        with opened(path) as segment:
            return Part(path, segment.starts)
    except (OSError, ValueError):
        return None


def _run(parts: list[Part]) -> Run:
    try:
        with opened(parts[-1].path) as segment:
            return Run(tuple(parts), segment.ends())
    except (OSError, ValueError):
        return Run(tuple(parts), parts[-1].starts)
