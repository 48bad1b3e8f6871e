"""Median milliseconds through the stdio door, and the floors of this machine beside them, in one run.

    python tests/benchmarks/run.py [--rounds 50] [--json]

Not a test: a shared machine is too noisy for a verdict. The client is the lean one (JSON lines, no
SDK), so that its own cost does not hide the daemon's. `goal` is what is to be beaten on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codespace.contract import Workspace
from codespace.sandbox import binaries, foreground
from codespace.sandbox.box import HOME, Sandbox
from codespace.testing.installed import script
from codespace.testing.site import Site, put_files
from codespace.testing.wire import Wire

FILES = 5000
STARTS = 5
FLOODS = 7
FLOOD = ("head", "-c", "100000000", "/dev/zero")
LINES_OF_100 = "".join(f"line {number}: the quick brown fox jumps over the lazy dog\n" for number in range(100))
MEGABYTE = "".join(f"{number:07d} {'x' * 54}\n" for number in range(16_650))
# 1.05 MB of distinct lines.
_found: list[str] = []


@dataclass(frozen=True)
class Row:
    """One line of the table; milliseconds."""

    what: str
    median: float
    p90: float
    rounds: int
    goal: float | None = None


def measure(
    what: str,
    rounds: int,
    act: Callable[[int], object],
    goal: float | None = None,
    after: Callable[[], object] = lambda: None,
) -> Row:
    """Time `act(round)` after two rounds of warming up; `after` tidies up outside of the time."""
    times = []
    for number in range(-2, rounds):
        began = time.perf_counter()
        act(number)
        if number >= 0:
            times.append((time.perf_counter() - began) * 1000)
        after()
    return Row(what, statistics.median(times), sorted(times)[int(len(times) * 0.9)], rounds, goal)


def succeed(wire: Wire, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool in the one workspace; a refusal ends the benchmark."""
    result = wire.call(tool, **arguments)
    if result.get("isError"):
        sys.exit(f"{tool} was refused: {result['content'][0]['text']}")
    return dict(result["structuredContent"])


def flip(path: str, old: str, new: str) -> str:
    """Return a patch of one hunk that changes one line."""
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


def through_stdio(site: Site, rounds: int) -> list[Row]:
    """Measure the daemon."""
    rows = [measure("start to tools/list", STARTS, lambda _: start_to_list(site))]
    with Wire(site) as wire:
        rows += [
            measure("ping", rounds, lambda _: wire.request("ping")),
            measure("read of 100 lines", rounds, lambda _: succeed(wire, "read", path="small.txt"), 0.9),
            measure("read of 1 MB", rounds, lambda _: succeed(wire, "read", path="big.txt")),
            measure("find in 5,000 files", rounds, lambda _: succeed(wire, "find", glob="**/file-1*.txt"), 130),
            measure("search in 5,000 files", rounds, lambda _: succeed(wire, "search", pattern="needle [0-9]+"), 24),
            measure("patch of 1 hunk", rounds, patching(wire, "small.txt", LINES_OF_100.splitlines()[50]), 2.4),
            measure("patch of 1 hunk in 1 MB", rounds, patching(wire, "big.txt", MEGABYTE.splitlines()[8000])),
            measure("exec of /bin/true in the sandbox", rounds, lambda _: run_true(wire), 20),
            measure("exec of echo in the sandbox", rounds, lambda _: run(wire, "echo", "hello"), 20),
            measure("exec, to its first byte", rounds, lambda _: to_first_byte(wire), after=lambda: end_all(wire)),
            measure("exec of 100 MB to its end", FLOODS, lambda _: run(wire, *FLOOD)),
            keystrokes(wire, rounds),
        ]
    return rows


def patching(wire: Wire, path: str, line: str) -> Callable[[int], object]:
    """Return an act that changes a line, and changes it back the next time."""
    forth, back = flip(path, line, line + " changed"), flip(path, line + " changed", line)
    return lambda number: succeed(wire, "apply_patch", patch=back if number % 2 else forth)


def run_true(wire: Wire) -> None:
    ran = succeed(wire, "exec_command", command=["/bin/true"])
    if ran["exit_code"] != 0:
        sys.exit(f"/bin/true ended as {ran}")


def run(wire: Wire, *command: str) -> None:
    succeed(wire, "exec_command", command=list(command), wait_seconds=50)


def to_first_byte(wire: Wire) -> None:
    started = succeed(wire, "exec_command", command=["sh", "-c", "echo x; read line"], open_stdin=True, wait_seconds=0)
    chunk = started
    while not chunk["chunk"]:
        chunk = succeed(wire, "read_process", process_id=started["process_id"], wait_seconds=10)


def end_all(wire: Wire) -> None:
    for process in succeed(wire, "list_processes")["processes"]:
        if process["state"] == "running":
            succeed(wire, "terminate_process", process_id=process["process_id"], grace_seconds=0)


def keystrokes(wire: Wire, rounds: int) -> Row:
    """Measure from a key to its echo, which is two calls: one types, one reads."""
    started = succeed(wire, "exec_command", command=["cat"], tty=True, wait_seconds=0)
    where = {"process_id": started["process_id"]}
    cursor = 0

    def press(number: int) -> None:
        nonlocal cursor
        succeed(wire, "write_stdin", **where, data="x")
        cursor = succeed(wire, "read_process", **where, cursor=cursor, wait_seconds=10)["cursor"]

    row = measure("keystroke to its echo in a terminal", rounds, press, 2)
    end_all(wire)
    return row


def networked(folder: Path, rounds: int) -> list[Row]:
    """Measure a command that has a door to the network, which is opened for it and closed behind it."""
    site = Site(folder)
    site.add_workspace("main", network="enabled", allowed_domains=["example.org"])
    with Wire(site) as wire:
        return [measure("exec of /bin/true with a network's door", rounds, lambda _: run_true(wire))]


def unsandboxed(folder: Path, rounds: int) -> list[Row]:
    """Measure a command where no sandbox is to be had."""
    site = Site(folder, bwrap_path="/bin/false")
    site.add_workspace("main")
    with Wire(site) as wire:
        if succeed(wire, "exec_command", command=["/bin/true"])["sandbox"] != "none":
            sys.exit("there is a sandbox where there should be none")
        return [measure("exec of /bin/true without a sandbox", rounds, lambda _: run_true(wire), 12)]


def start_to_list(site: Site) -> None:
    with Wire(site) as wire:
        wire.request("tools/list")


def floors(site: Site, rounds: int) -> list[Row]:
    """Measure what the machine itself takes for the same things."""
    root = site.root()
    return [
        measure("bare: python -c pass", STARTS, lambda _: subprocess.run([sys.executable, "-c", "pass"], check=True)),
        measure("bare: python -c 'import mcp.server'", STARTS, lambda _: import_sdk()),
        measure("bare: read of 100 lines", rounds, lambda _: (root / "small.txt").read_text()),
        measure("bare: read of 1 MB", rounds, lambda _: (root / "big.txt").read_text()),
        measure("bare: ripgrep in 5,000 files", rounds, lambda _: ripgrep(root)),
        measure("bare: os.walk of 5,000 files", rounds, lambda _: sum(1 for _ in os.walk(root))),
        measure("bare: write, fsync and rename of 6 KB", rounds, lambda _: rewrite(root / "small.txt")),
        measure("bare: write, fsync and rename of 1 MB", rounds, lambda _: rewrite(root / "big.txt")),
        measure("bare: subprocess /bin/true", rounds, lambda _: subprocess.run(["/bin/true"], check=True)),
        measure("bare: bubblewrap /bin/true", rounds, lambda _: subprocess.run(bubblewrap(), check=True)),
        measure("bare: the same sandbox, no daemon", rounds, same_sandbox(root)),
        measure(
            "bare: subprocess echo", rounds, lambda _: subprocess.run(["echo", "x"], check=True, capture_output=True)
        ),
        measure("bare: 100 MB read from a pipe", FLOODS, lambda _: read_flood(*FLOOD)),
        measure("bare: 100 MB through cat", FLOODS, lambda _: read_flood("sh", "-c", f"{' '.join(FLOOD)} | cat")),
    ]


def bubblewrap() -> list[str]:
    """Return the least that makes all namespaces and runs a program of the system."""
    program = Sandbox().standing().equipment if not _found else None
    if program is not None:
        _found.append(program.bubblewrap)
    if not _found:
        sys.exit("there is no sandbox here")
    return [_found[0], "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--", "/bin/true"]


def same_sandbox(root: Path) -> Callable[[int], object]:
    """Return what runs /bin/true as commands run, with all that is mounted and looked at, from this process."""
    workspace = Workspace("main", str(root), profile="workspace-write")
    env = {"PATH": "/usr/bin:/bin", "HOME": HOME}
    prepared = Sandbox().prepare(workspace, command=["/bin/true"], cwd=".", env=env, protected=())
    return lambda _: foreground.run(prepared.equipment, prepared.plan)


def ripgrep(root: Path) -> None:
    program = binaries.ripgreps(None)[0].path
    subprocess.run([program, "--hidden", "needle [0-9]+", "./"], cwd=root, check=True, stdout=subprocess.DEVNULL)


def read_flood(*command: str) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        while os.read(program.stdout.fileno(), 65_536):
            pass


def import_sdk() -> None:
    subprocess.run([sys.executable, "-c", "import mcp.server"], check=True)


def rewrite(path: Path) -> None:
    data = path.read_bytes()
    beside = path.with_name("beside")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def build(folder: Path) -> Site:
    """Make the workspace that everything is measured in."""
    site = Site(folder)
    files = {
        f"d{number % 50:02d}/file-{number}.txt": f"text {number}\n" * 40
        + (f"needle {number}\n" if number % 97 == 0 else "")
        for number in range(FILES)
    }
    root = site.add_workspace("main", files=files)
    put_files(root, {"small.txt": LINES_OF_100, "big.txt": MEGABYTE})
    return site


def print_table(rows: list[Row]) -> None:
    print(f"{'':38} {'median ms':>10} {'p90 ms':>10} {'rounds':>7} {'goal ms':>8}")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:g}"
        print(f"{row.what:38} {row.median:10.2f} {row.p90:10.2f} {row.rounds:7d} {goal:>8}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each measurement (default 50)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="codespace-benchmark-") as folder:
        site = build(Path(folder))
        rows = through_stdio(site, options.rounds) + floors(site, options.rounds)
    for more in (unsandboxed, networked):
        with tempfile.TemporaryDirectory(prefix="codespace-benchmark-") as folder:
            rows += more(Path(folder), options.rounds)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(f"{script()}, Python {sys.version.split()[0]}, {os.cpu_count()} cores\n")
        print_table(rows)


if __name__ == "__main__":
    main()
