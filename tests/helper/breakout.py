"""A program of the tests: confines itself as the patch helper does, tries to break out, and tells what went."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from codespace.beneath import Root
from helper.patch.confine import confine


def attempts(root: Path, journal: Path, outside: Path) -> dict[str, Callable[[], object]]:
    """Return what is tried, by name; the first four must go."""
    return {
        "write in the root": lambda: (root / "new").write_text("x"),
        "move across the root": lambda: (root / "new").rename(root / "deep/new"),
        "write in the journal": lambda: (journal / "new").write_text("x"),
        "read in the root": lambda: (root / "deep/new").read_text(),
        "write outside": lambda: (outside / "new").write_text("x"),
        "truncate outside": lambda: os.truncate(outside / "file", 0),
        "remove outside": lambda: (outside / "file").unlink(),
        "move out": lambda: (root / "deep/new").rename(outside / "new"),
        "link in": lambda: os.link(outside / "file", root / "linked"),
        "read outside": lambda: (outside / "file").read_text(),
        "list outside": lambda: os.listdir(outside),
        "TCP": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "Unix": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "pair": socket.socketpair,
        "program": lambda: os.execv("/bin/true", ["true"]),
    }


def main() -> None:
    root, journal, outside, user = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    with Root.open(str(root)) as opened:
        told = confine(opened, str(journal), (), 1_000_000)
        went = {}
        for name, attempt in attempts(root, journal, outside).items():
            try:
                attempt()
                went[name] = "went"
            except OSError as error:
                went[name] = type(error).__name__
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    print(json.dumps({"told": told, "went": went, "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"]}))


if __name__ == "__main__":
    main()
