"""What a helper of ours has given up, tried by a child, beside the same acts in one that gave up nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codespace.sandbox import landlock

PROGRAM = """
import json, os, socket, subprocess, sys
from codespace.sandbox import landlock
here, kept, act = sys.argv[1:]
directory = os.open(kept, os.O_RDONLY | os.O_DIRECTORY)
version = eval(act)
found = {}
def attempt(name, deed):
    try:
        deed()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__
server = socket.socket()
attempt("read", lambda: open(here + "/there").read())
attempt("write", lambda: open(here + "/there", "w"))
attempt("make", lambda: open(here + "/new", "w"))
attempt("remove", lambda: os.remove(here + "/gone"))
attempt("truncate", lambda: os.truncate(here + "/there", 0))
attempt("kept", lambda: open(kept + "/new", "w"))
attempt("run", lambda: subprocess.run(["/bin/true"], check=True))
attempt("bind", lambda: server.bind(("127.0.0.1", 0)))
attempt("look up", lambda: socket.getaddrinfo("localhost", 80))
privileges = [line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")][0].split()[1]
print(json.dumps([version, privileges, found]))
"""


def tried(folder: Path, act: str) -> tuple[int, str, dict[str, str]]:
    (folder / "here").mkdir()
    (folder / "kept").mkdir()
    for name in ("there", "gone"):
        (folder / "here" / name).write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "here"), str(folder / "kept"), act],
        capture_output=True,
        check=True,
        timeout=30,
    )
    version, privileges, found = json.loads(done.stdout)
    return version, privileges, found


def test_a_process_that_gave_up_nothing_may_do_all_of_it(tmp_path: Path) -> None:
    _, privileges, found = tried(tmp_path, "0")
    assert privileges == "0"
    assert set(found.values()) == {"done"}


@pytest.mark.parametrize(
    ("act", "still"),
    [
        ("landlock.restrict(connect=True)", set()),
        ("landlock.restrict(writable=[directory])", {"kept"}),
        ("landlock.restrict(execute=True)", {"run"}),
    ],
)
def test_what_was_given_up_is_gone(tmp_path: Path, act: str, still: set[str]) -> None:
    version, privileges, found = tried(tmp_path, act)
    assert privileges == "1"
    assert version == landlock.version()
    late = {name for name, since in (("truncate", 3), ("bind", 4)) if version < since}
    denied = {"write", "make", "remove", "truncate", "kept", "run", "bind"} - still - late if version else set()
    assert {name for name, outcome in found.items() if outcome == "PermissionError"} == denied
    assert {outcome for name, outcome in found.items() if name not in denied} == {"done"}
