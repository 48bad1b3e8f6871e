"""Median milliseconds of patches through the stdio door, beside a bare script that writes and flushes the same bytes.

    python tests/benchmarks/patches.py [--rounds 30] [--json]

One run, taken in turns, so that a busy machine slows both alike. The bare script does what is the least
for bytes that outlive a loss of power: write beside, flush (all files together where there are many),
rename. It plans nothing, looks at nothing again, and can neither put back nor undo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from run import LINES_OF_100, MEGABYTE, Row, flip, print_table, succeed

from codespace.testing.site import Site, put_files
from codespace.testing.wire import Wire
from helper.patch.flush import Flush

COUNT = 200


class Turns:
    """Acts that are measured one after another in each round."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._acts: list[tuple[str, Callable[[int], object], float | None]] = []

    def add(self, what: str, act: Callable[[int], object], goal: float | None = None) -> None:
        self._acts.append((what, act, goal))

    def measure(self) -> list[Row]:
        times: dict[str, list[float]] = {what: [] for what, _, _ in self._acts}
        for number in range(-2, self._rounds):
            for what, act, _ in self._acts:
                began = time.perf_counter()
                act(number)
                if number >= 0:
                    times[what].append((time.perf_counter() - began) * 1000)
        return [_row(what, times[what], goal) for what, _, goal in self._acts]


def _row(what: str, times: list[float], goal: float | None) -> Row:
    return Row(what, statistics.median(times), sorted(times)[int(len(times) * 0.9)], len(times), goal)


def many(old: str, new: str) -> str:
    body = (f"*** Update File: many/f{number:03}\n@@\n-{old} {number}\n+{new} {number}\n" for number in range(COUNT))
    return f"*** Begin Patch\n{''.join(body)}*** End Patch\n"


def rewrite(root: Path, files: dict[str, bytes]) -> None:
    """Write files beside their places, flush them together, and rename them into place."""
    flush = Flush()
    for name, data in files.items():
        descriptor = os.open(root / f"{name}.beside", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, data)
        flush.add(descriptor)
    flush.wait()
    for name in files:
        os.rename(root / f"{name}.beside", root / name)


def turns(site: Site, wire: Wire, rounds: int) -> Turns:
    root = site.root()
    bare = site.folder / "bare"
    (bare / "many").mkdir(parents=True)
    line, big_line = LINES_OF_100.splitlines()[50], MEGABYTE.splitlines()[8000]
    found = Turns(rounds)

    def flipping(path: str, text: str) -> Callable[[int], object]:
        forth, back = flip(path, text, f"{text} changed"), flip(path, f"{text} changed", text)
        return lambda number: succeed(wire, "apply_patch", patch=back if number % 2 else forth)

    def add(number: int) -> None:
        body = "".join(f"+{text}\n" for text in MEGABYTE.splitlines())
        succeed(wire, "apply_patch", patch=f"*** Begin Patch\n*** Add File: add{number}\n{body}*** End Patch")
        (root / f"add{number}").unlink()

    def undo(number: int) -> None:
        last.append(succeed(wire, "operation_undo", operation_id=last[-1])["operation_id"])

    last = [succeed(wire, "apply_patch", patch=flip("undone.txt", line, f"{line} changed"))["operation_id"]]
    small, big = LINES_OF_100.encode(), MEGABYTE.encode()
    texts = {f"many/f{number:03}": f"new {number}\n".encode() for number in range(COUNT)}
    found.add("patch of 1 hunk", flipping("small.txt", line), 2.4)
    found.add("  undo of it", undo)
    found.add("  bare: 6 KB", lambda _: rewrite(bare, {"small.txt": small}))
    found.add("patch of 1 hunk in 1 MB", flipping("big.txt", big_line))
    found.add("  bare: 1 MB", lambda _: rewrite(bare, {"big.txt": big}))
    found.add("patch that adds 1 MB", add, 13)
    found.add("  bare: 1 MB more", lambda number: rewrite(bare, {f"add{number}": big}))
    found.add(
        f"patch of {COUNT} files",
        lambda number: succeed(wire, "apply_patch", patch=many("new", "old") if number % 2 else many("old", "new")),
        65,
    )
    found.add(f"  bare: {COUNT} files", lambda _: rewrite(bare, texts))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each measurement (default 30)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="codespace-benchmark-") as folder:
        site = Site(Path(folder))
        root = site.add_workspace("main")
        put_files(root, {"small.txt": LINES_OF_100, "undone.txt": LINES_OF_100, "big.txt": MEGABYTE})
        put_files(root, {f"many/f{number:03}": f"old {number}\n" for number in range(COUNT)})
        with Wire(site) as wire:
            rows = turns(site, wire, options.rounds).measure()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
