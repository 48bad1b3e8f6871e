"""A daemon whose patch helpers die: what a patch is told, what is recorded, and what is left of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from codespace.errors import Refusal
from codespace.testing import Bench, processes

from .scenes import Scene, Tree, is_whole, look

PROGRAM = Path(__file__).with_name("mortal_helper.py")


class Stage:
    """A daemon whose helpers die as their ticket says."""

    def __init__(self, bench: Bench, ticket: Path) -> None:
        self.bench = bench
        self.ticket = ticket
        self.journal = Path(bench.daemon.settings.state_dir, "journal")
        self._calls = 0

    async def play(self, scene: Scene, number: int, then: int = 0) -> tuple[str, dict[str, Any]]:
        """Apply the patch with a helper that dies at `number`; return what was told and what is recorded.

        Args:
            then: Where the helper dies that comes next, which settles what the first one left.
        """
        scene.build(self.bench.root)
        await self.arm(number, then)
        return await self.told("apply_patch", f"{scene.name} {number} {then}", patch=scene.patch)

    async def take_back(self, scene: Scene, number: int) -> tuple[str, dict[str, Any], tuple[Tree, Tree]]:
        """Apply the patch, and undo it with a helper that dies at `number`; return also the trees before and after."""
        scene.build(self.bench.root)
        before = look(self.bench.root)
        applied = (await self.bench.call("apply_patch", patch=scene.patch))["operation_id"]
        after = look(self.bench.root)
        await self.arm(number)
        status, recorded = await self.told("operation_undo", f"undo {number}", operation_id=applied)
        return status, recorded, (before, after)

    async def arm(self, *numbers: int) -> None:
        """Have helpers with these kill points, one after another, take the place of the one that runs."""
        self.ticket.write_text("\n".join(map(str, numbers)))
        for turn in range(len(numbers)):
            Path(f"{self.ticket}.{turn}.count").unlink(missing_ok=True)
        for pid in helpers():
            with contextlib.suppress(ProcessLookupError):  # one that has ended by itself since
                os.kill(pid, signal.SIGKILL)  # the next one takes the ticket
            with trio.fail_after(60):
                await processes.wait_gone([pid])

    async def told(self, tool: str, key: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Call a tool; return the status that was told and what is recorded."""
        self._calls += 1
        key = f"{key} {self._calls}"
        try:
            told = await self.bench.call(tool, operation_key=key, **arguments)
            status = str(told["status"])
        except Refusal as refusal:
            status = str((refusal.details or {}).get("status", refusal.code))
        return status, await self.bench.call("operation_status", operation_key=key)

    async def left(self, scene: Scene, recorded: Mapping[str, Any]) -> list[str]:
        """Wait until a patch is as recorded and nothing else of it is there; return what is left after a minute.

        Where two helpers in a row died in tidying up, the daemon tries again behind its answer.
        """
        status, journal = str(recorded["status"]), self.journal / recorded["operation_id"]
        with trio.move_on_after(60):
            while not is_whole(scene, self.bench.root, status) or not _is_over(journal, status):  # noqa: ASYNC110 - a file
                await trio.sleep(0.01)
            return []
        return sorted((*look(self.bench.root), *(str(path) for path in journal.rglob("*"))))

    def counted(self, turn: int = 0) -> dict[str, int]:
        """Return how many kill points the helper of this turn had passed at the end of each verb; none without it."""
        counted = Path(f"{self.ticket}.{turn}.count")
        lines = counted.read_text().splitlines() if counted.exists() else []
        return {verb: int(count) for verb, count in map(str.split, lines)}


def _is_over(journal: Path, status: str) -> bool:
    return (journal / "finished").exists() if status == "applied" else not journal.exists()


def helpers() -> list[int]:
    """Return the patch helpers that run, of the daemon in this process or of its worker."""
    below = processes.descendants(os.getpid())
    return [pid for pid in below if str(PROGRAM) in processes.command_line(pid).split() and processes.is_alive(pid)]
