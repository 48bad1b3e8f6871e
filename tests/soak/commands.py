"""A soak of a few minutes: memory, descriptors and latency of one daemon under many commands, sample by sample.

    python tests/soak/commands.py [--runner uds] [--processes 1000] [--workspaces 50] [--minutes 2]

First commands one after another in one workspace, then one at a time in each of many workspaces at once.
Memory and descriptors are the daemon's and, where the runner has a process of its own, that one's too. Not a test: a
shared machine is too noisy for a verdict on latency. What must be flat is printed last, and the exit code tells of
leaks: descriptors, processes, or memory that goes on growing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespace.testing import processes
from codespace.testing.site import RUNNER, Site
from codespace.testing.wire import Wire

SAMPLES = 10
GROWTH_BYTES = 24 * 1_048_576
# Between the middle and the end of a part. Memory that is kept by design (rings of ended processes, SQLite's and
# the allocator's caches) is filled by then.


@dataclass(frozen=True)
class Sample:
    """What the daemon and its runner hold at one moment."""

    done: int
    resident_bytes: int
    descriptors: int
    children: int
    median: float
    worst: float

    def show(self) -> str:
        return (
            f"{self.done:8d} {self.resident_bytes / 1_048_576:9.1f} {self.descriptors:6d} {self.children:6d} "
            f"{self.median:10.1f} {self.worst:10.1f}"
        )


def sample(wire: Wire, done: int, times: list[float]) -> Sample:
    below = processes.descendants(wire.process.pid)
    ours = [wire.process.pid, *(pid for pid in below if "helper.worker" in processes.command_line(pid))]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in ours)
    return Sample(
        done,
        pages * os.sysconf("SC_PAGE_SIZE"),
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in ours),
        len(below),
        statistics.median(times) * 1000,
        max(times) * 1000,
    )


def one_after_another(wire: Wire, count: int) -> list[Sample]:
    samples, times = [], []
    for number in range(1, count + 1):
        began = time.perf_counter()
        check(wire.call("exec_command", workspace_id="w0", command=["sh", "-c", "seq 100"]))
        times.append(time.perf_counter() - began)
        if number % max(1, count // SAMPLES) == 0:
            samples.append(sample(wire, number, times))
            print(samples[-1].show(), flush=True)
            times = []
    return samples


def all_at_once(wire: Wire, workspaces: int, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    began, done = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        times = round_of_all(wire, workspaces)
        done += workspaces
        if passed >= len(samples) * seconds / SAMPLES:
            samples.append(sample(wire, done, times))
            print(samples[-1].show(), flush=True)
    return samples


def round_of_all(wire: Wire, workspaces: int) -> list[float]:
    """Start one command in each workspace, and return how long each answer took."""
    began = {}
    for number in range(workspaces):
        arguments = {"workspace_id": f"w{number}", "command": ["sh", "-c", "seq 20000; sleep 0.2"], "wait_seconds": 50}
        began[wire.post("tools/call", {"name": "exec_command", "arguments": arguments})] = time.perf_counter()
    times = []
    while began:
        message = wire.receive()
        if message.get("id") in began:
            check(message["result"])
            times.append(time.perf_counter() - began.pop(message["id"]))
    return times


def check(result: dict[str, Any]) -> None:
    if result.get("isError") or result["structuredContent"]["exit_code"] != 0:
        sys.exit(f"a command went wrong: {result['content'][0]['text'][:500]}")


def is_flat(samples: list[Sample]) -> bool:
    """Return whether the second half of a part added nothing that stays."""
    middle, last = samples[len(samples) // 2], samples[-1]
    return (
        last.resident_bytes - middle.resident_bytes < GROWTH_BYTES
        and last.descriptors - middle.descriptors <= 2
        and last.children - middle.children <= 1
    )


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1000, help="commands one after another (default 1000)")
    parser.add_argument("--workspaces", type=int, default=50, help="workspaces at once (default 50)")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the second part (default 2)")
    parser.add_argument("--runner", choices=("in-process", "uds"), default="in-process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="codespace-soak-") as folder:
        site = Site(Path(folder))
        site.extra_environ[RUNNER] = options.runner
        for number in range(options.workspaces):
            site.add_workspace(f"w{number}")
        with Wire(site) as wire:
            head = f"{'done':>8} {'MiB':>9} {'fds':>6} {'procs':>6} {'median ms':>10} {'worst ms':>10}"
            print(f"one after another\n{head}")
            parts = [one_after_another(wire, options.processes)]
            print(f"in {options.workspaces} workspaces at once\n{head}")
            parts.append(all_at_once(wire, options.workspaces, options.minutes * 60))
        spools = sum(path.stat().st_size for path in (site.state / "spool").rglob("*.spool"))
        print(f"output on disk: {spools / 1_048_576:.1f} MiB")
    flat = [is_flat(part) for part in parts]
    print(f"flat: one after another {flat[0]}, at once {flat[1]}")
    sys.exit(not all(flat))


if __name__ == "__main__":
    main()
