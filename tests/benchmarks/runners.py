"""What the runner's own process costs: the same verbs in the daemon and behind the socket, in one run, in turns.

    python tests/benchmarks/runners.py [--rounds 200]

Not a test: a shared machine is too noisy for a verdict. Goals: under 0.5 ms more a call, at least 80 % of the
output throughput.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
import trio

from codespace.contract import Runner, SpawnRequest, Workspace
from codespace.runner import inprocess, uds

Act = Callable[[Runner, int], Awaitable[object]]
FLOOD_BYTES = 100_000_000
READ_BYTES = 20_000_000
LINES = f"yes 'a line of output as a build writes it, with a path/to/a/file.c:120' | head -c {READ_BYTES}"


class Bench:
    """Both runners on one workspace."""

    def __init__(self, folder: Path, runners: dict[str, Runner]) -> None:
        (folder / "root").mkdir()
        (folder / "root" / "small.txt").write_text("a line of text\n" * 100)
        self.workspace = Workspace("main", str(folder / "root"), profile="workspace-write")
        self.runners = runners
        self._ids = 0

    def request(self, *argv: str) -> SpawnRequest:
        self._ids += 1
        return SpawnRequest(f"proc-{self._ids}", argv, ".", {}, 60)

    async def compare(self, what: str, rounds: int, act: Act) -> None:
        """Print the medians of `act`, in milliseconds, in turns so that the machine's mood hits both."""
        times: dict[str, list[float]] = {name: [] for name in self.runners}
        for number in range(-2, rounds):
            for name, runner in self.runners.items():
                began = time.perf_counter()
                await act(runner, number)
                if number >= 0:
                    times[name].append((time.perf_counter() - began) * 1000)
        here, there = (statistics.median(each) for each in times.values())
        print(f"{what:42}{here:10.3f}{there:10.3f}{there - here:+10.3f} ms{here / there:8.0%}")

    async def read(self, runner: Runner, _: int) -> object:
        return await runner.read(
            self.workspace, "small.txt", start_line=None, line_count=None, encoding="text", limit_bytes=1_000_000
        )

    async def run(self, runner: Runner, *argv: str) -> str:
        request = self.request(*argv)
        await runner.spawn(self.workspace, request)
        await runner.wait_exit(request.process_id)
        return request.process_id

    async def pages(self, runner: Runner, process_id: str) -> None:
        cursor, eof = 0, False
        while not eof:
            chunk = await runner.output(
                process_id, cursor=cursor, stream="combined", limit_bytes=65_536, encoding="text"
            )
            cursor, eof = chunk.cursor, chunk.eof


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            runners: dict[str, Runner] = {}
            for kind, opened in (("in-process", inprocess.open_runner), ("uds", uds.open_runner)):
                state = folder / kind
                state.mkdir(mode=0o700)
                began = time.perf_counter()
                runners[kind] = await stack.enter_async_context(
                    opened(
                        state_dir=str(state),
                        rg_path=None,
                        bwrap_path=None,
                        retention_seconds=600,
                        wall_clock=time.time,
                    )
                )
                print(f"start {kind}: {(time.perf_counter() - began) * 1000:.0f} ms")
            bench = Bench(folder, runners)
            print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n{'':42}{'in-process':>10}{'uds':>10}")
            await bench.compare("read of 100 lines", rounds, bench.read)
            await bench.compare("versions", rounds, lambda runner, _: runner.versions(bench.workspace, ["small.txt"]))
            await bench.compare("describe", rounds, lambda runner, _: runner.describe(bench.workspace))
            await bench.compare("exec of true to its end", rounds // 4, lambda runner, _: bench.run(runner, "true"))
            flood = ("head", "-c", str(FLOOD_BYTES), "/dev/zero")
            await bench.compare("100 MB written by a command", 7, lambda runner, _: bench.run(runner, *flood))
            written = {name: await bench.run(runner, "sh", "-c", LINES) for name, runner in runners.items()}
            by_runner = {id(runner): written[name] for name, runner in runners.items()}
            await bench.compare(
                "20 MB of lines read in pages of 64 KiB",
                7,
                lambda runner, _: bench.pages(runner, by_runner[id(runner)]),
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    trio.run(main, parser.parse_args().rounds)
