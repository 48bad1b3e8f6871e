"""Where too few files can be open, a command begins nothing, and says what it needs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial

import pytest

from codespace import limits

from .conftest import Desk

TRIED = (5, 8, 12, 16, 40)
"""Limits on which a command came to grief in one place after the other."""
COMMANDS = (
    ["serve", "--stdio"],
    ["serve", "--http"],
    ["demo"],
    ["doctor"],
    ["init", "."],
    ["operations", "list"],
    ["sandbox", "run", ".", "--", "true"],
)


def ran(desk: Desk, words: list[str], soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "codespace", *words],
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard)),
        cwd=desk.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_command_that_may_open_too_few_files_begins_nothing_and_says_how_many_it_needs(
    desk: Desk, words: list[str]
) -> None:
    for limit in TRIED:
        told = ran(desk, words, limit, limit)
        assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
        assert told.stderr.startswith(
            f"codespace: fewer than {limits.DESCRIPTORS} more files can be open here. Give it"
        )
    assert list(desk.home.iterdir()) == list(desk.project.iterdir()) == []


def test_a_limit_that_is_its_own_to_raise_is_raised(desk: Desk) -> None:
    told = ran(desk, ["client-config", "generic"], 16, 1024)
    assert (told.returncode, told.stderr) == (0, "")


def test_descriptors_that_were_inherited_count_too(desk: Desk) -> None:
    kept = [os.open("/", os.O_PATH) for _ in range(limits.DESCRIPTORS)]
    try:
        limit = max(kept) + 8
        told = subprocess.run(
            [sys.executable, "-m", "codespace", "client-config", "generic"],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit)),
            pass_fds=kept,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        for descriptor in kept:
            os.close(descriptor)
    assert (told.returncode, told.stdout) == (2, "")
    assert "LimitNOFILE" in told.stderr


def test_what_was_left_open_over_the_limit_does_not_take_the_sandbox_away(desk: Desk) -> None:
    def leave_open() -> None:
        os.dup2(0, 300)
        os.dup2(os.open("/", os.O_PATH), 301)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    told = subprocess.run(
        [sys.executable, "-m", "codespace", "sandbox", "run", desk.project, "--", "ls", "/proc/self/fd"],
        preexec_fn=leave_open,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert not {"300", "301"} & set(told.stdout.split())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("codespace.cli.parser", ["doctor"]),
        ("codespace.cli.findings", ["doctor"]),
        ("_sqlite3", ["operations", "list"]),
        ("trio", ["serve", "--stdio"]),
        ("codespace.http.serve", ["serve", "--http"]),  # in the middle of a daemon, where it comes as a group
    ],
)
def test_files_that_run_out_in_the_middle_are_told_in_one_line(desk: Desk, module: str, words: list[str]) -> None:
    program = f"""
import resource, sys
from codespace.cli import main
def none_left(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
sys.addaudithook(none_left)
sys.exit(main({words!r}))
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # Nothing can be listed any more, so what was being tried stays for the sweep of the next one.
        env={**os.environ, "TMPDIR": str(desk.project)},
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.splitlines()[-1].startswith("codespace: too many files are open. Give it more (`ulimit -n 1024`")
    assert "Traceback" not in told.stderr
