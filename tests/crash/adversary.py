"""A hostile neighbour in a process of its own: `adversary.py KIND ROOT OUTSIDE LEDGER`, until its stdin closes.

In a tight loop it replaces something that a patch works on. Every file that it puts somewhere has a line
`adv N` of its own; LEDGER gets each N that came back out of an exchange, so that a lost one can be told.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

from codespace.beneath import RENAME_EXCHANGE, renameat2


class Adversary:
    """Its hands: one spare name outside the root, on the same filesystem."""

    def __init__(self, kind: str, root: Path, outside: Path, ledger: Path) -> None:
        self.act = {"target": self.target, "parent": self.parent, "staged": self.staged, "root": self.swap_root}[kind]
        self.root = root
        self.outside = outside
        self.ledger = ledger.open("a", buffering=1)
        self.spare = root.parent / "spare"
        self.number = 0
        self.rounds = 0

    def target(self) -> None:
        """Replace the file that is patched, and note what came out."""
        self._exchange(self.root / "a")

    def staged(self) -> None:
        """Replace whatever the transaction has put beside its files."""
        for name in os.listdir(self.root):
            if name.startswith(".codespace-"):
                self._exchange(self.root / name)

    def parent(self) -> None:
        """Put a link to the outside in place of the directory that is patched, and take it away again."""
        link = self.root.parent / "link"
        with contextlib.suppress(FileExistsError):
            link.symlink_to(self.outside)
        _swap(self.root / "d", link)
        _swap(self.root / "d", link)

    def swap_root(self) -> None:
        """Put another directory in place of the root, and take it away again."""
        _swap(self.root, self.outside)
        _swap(self.root, self.outside)

    def _exchange(self, path: Path) -> None:
        if not self.spare.exists():
            self.number += 1
            self.spare.write_text(f"one\nadv {self.number}\n")
        with contextlib.suppress(FileNotFoundError):
            _swap(self.spare, path)
            self.ledger.write(self.spare.read_text())
            self.spare.unlink()

    def run(self) -> None:
        """Go on until stdin closes; then say how often it went."""
        while not select.select([0], [], [], 0)[0]:
            self.act()
            self.rounds += 1
        print(self.rounds, flush=True)


def _swap(first: Path, second: Path) -> None:
    here = os.open("/", os.O_PATH)
    try:
        renameat2(here, str(first), here, str(second), RENAME_EXCHANGE)
    finally:
        os.close(here)


if __name__ == "__main__":
    Adversary(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])).run()
