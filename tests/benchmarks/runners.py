"""What the runner's own process costs: the same verbs in the daemon and behind the socket, in one run, in turns.

    python tests/benchmarks/runners.py [--rounds 200]

First the verbs alone, then output as a client gets it: 100 MB in pages of read_process, through the stdio door
of an installed daemon of each kind. Not a test: a shared machine is too noisy for a verdict. Goals: under 0.5 ms
more a call, at least 80 % of the output throughput.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import structlog
import trio

from codespace.contract import Runner, SpawnRequest, Workspace
from codespace.runner import inprocess, uds
from codespace.testing.site import RUNNER, Site
from codespace.testing.wire import Wire

Act = Callable[[Runner, int], Awaitable[object]]
FLOOD_BYTES = 100_000_000
READ_BYTES = 20_000_000
SPOOL_BYTES = 128 * 1_048_576
PIECE_BYTES = 500_000
# Below limits.SPOOL_FLOOD_BYTES: of a flood, only head and tail would be there to be read.
PAGED_ROUNDS = 3


def lines(size_bytes: int) -> str:
    """Return the shell command that writes so many bytes of plausible output, slowly enough that all of it is kept."""
    line = "a line of output as a build writes it, with a path/to/a/file.c:120"
    times = size_bytes // PIECE_BYTES
    return f"for i in $(seq {times}); do yes '{line}' | head -c {PIECE_BYTES}; sleep 0.01; done"


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
            assert chunk.output_lost == 0
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
            written = {name: await bench.run(runner, "sh", "-c", lines(READ_BYTES)) for name, runner in runners.items()}
            by_runner = {id(runner): written[name] for name, runner in runners.items()}
            await bench.compare(
                "20 MB of lines read in pages of 64 KiB",
                7,
                lambda runner, _: bench.pages(runner, by_runner[id(runner)]),
            )


def through_stdio(kinds: tuple[str, ...]) -> None:
    """Print how long it takes to read 100 MB of output in pages, in turns, and what share of the first is left."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        wires = {kind: stack.enter_context(Wire(installed(Path(name, kind), kind))) for kind in kinds}
        written = {kind: flood(wire) for kind, wire in wires.items()}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(PAGED_ROUNDS):
            for kind, wire in wires.items():
                began = time.perf_counter()
                pages = read_all(wire, written[kind])
                times[kind].append(time.perf_counter() - began)
        here, there = (min(each) for each in times.values())
        print(
            f"{'100 MB read in pages through stdio':42}{here * 1000:10.0f}{there * 1000:10.0f}"
            f"{(there - here) * 1000 / pages:+10.3f} ms a page{here / there:8.0%}"
        )


def installed(folder: Path, kind: str) -> Site:
    folder.mkdir()
    site = Site(folder, process_spool_bytes=SPOOL_BYTES)
    site.extra_environ[RUNNER] = kind
    site.add_workspace("main")
    return site


def flood(wire: Wire) -> str:
    """Have a command write 100 MB; return its process_id once it has ended."""
    answer = wire.call("exec_command", command=["sh", "-c", lines(FLOOD_BYTES)], wait_seconds=50)
    ran = answer["structuredContent"]
    assert (ran["exit_code"], ran["output_total"]) == (0, FLOOD_BYTES), ran
    return str(ran["process_id"])


def read_all(wire: Wire, process_id: str) -> int:
    """Read the whole output; return in how many pages."""
    cursor, pages, eof = 0, 0, False
    while not eof:
        page = wire.call("read_process", process_id=process_id, cursor=cursor)["structuredContent"]
        assert page["output_lost"] == 0
        cursor, eof, pages = page["cursor"], page["eof"], pages + 1
    assert cursor == FLOOD_BYTES
    return pages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    trio.run(main, parser.parse_args().rounds)
    through_stdio(("in-process", "uds"))
