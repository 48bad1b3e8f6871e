"""Guesses from a command's own words: what they find, and that no words make them slow."""

from __future__ import annotations

import time

import pytest

from codespace import limits
from codespace.runner import hints


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"fatal: Unable to create '/w/.git/index.lock': Read-only file system", hints.GIT),
        (b"ok\nrm: cannot remove '.GIT/a.git/hooks': Device or resource busy\nmore", hints.GIT),
        (b".git is there\ntouch: /usr/x: Read-only file system", hints.READ_ONLY),
        (b"Read-only file system: .git", hints.READ_ONLY),
        (b"x.gitignore: Read-only file system", hints.READ_ONLY),
    ],
)
def test_only_a_line_that_names_a_git_directory_first_is_about_one(said: bytes, told: str) -> None:
    assert hints.look(said, network="enabled", git="read_only") == [told]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"sh: 1: cargo: not found\n", True),
        (b"./build.sh: 12: cargo: not found\r\nmake: *** [all] Error 127\n", True),
        (b"bash: line 1: cargo: command not found\n", True),
        (b"zsh:1: command not found: cargo\n", True),
        (b"/usr/bin/env: \xe2\x80\x98node\xe2\x80\x99: No such file or directory\n", True),
        (b"cat: file: No such file or directory\n", False),
        (b"error: package x: not found\n", False),
        (b"GET /x: 404 not found\n", False),
    ],
)
def test_what_shells_say_of_a_missing_program_is_told_from_other_things_that_are_not_found(
    said: bytes, told: bool
) -> None:
    assert (hints.MISSING in hints.look(said, network="enabled", git="commit")) is told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"bash: ./x: /opt/python: bad interpreter: No such file or directory\n", hints.NO_SCRIPT),
        (b"bash: line 1: ./x: cannot execute: required file not found\n", hints.NO_SCRIPT),
        (b"sh: 1: ./x: not found\n", hints.NO_SCRIPT),
        (b"codespace-gate: 1: exec: ./x: not found\n", hints.NO_SCRIPT),
        (b"setsid: failed to execute ./x: No such file or directory\r\n", hints.NO_SCRIPT),
        (b"bash: ./x: /bin/sh^M: bad interpreter: No such file or directory\n", hints.CARRIAGE_RETURN),
        (b"/usr/bin/env: \xe2\x80\x98python3\\r\xe2\x80\x99: No such file or directory\n", hints.CARRIAGE_RETURN),
        (b"env: 'sh\\r': No such file or directory\n", hints.CARRIAGE_RETURN),
    ],
)
def test_what_is_said_of_a_script_is_told_from_what_is_said_of_a_program(said: bytes, told: str) -> None:
    assert hints.look(said, network="enabled", git="commit") == [told]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"error: could not write config file /w/.git/config: Device or resource busy", hints.STAYS),
        (b"cp: cannot create '.git/worktrees/w/config.worktree': Read-only file system", hints.STAYS),
        (b"touch: '.git/config-of-mine': Read-only file system", hints.NOT_COMMITTING),
        (b"fatal: Unable to create '/w/.git/index.lock': Read-only file system", hints.NOT_COMMITTING),
    ],
)
def test_where_commands_commit_a_note_says_whether_it_is_a_repository_or_what_rules_it(said: bytes, told: str) -> None:
    assert hints.look(said, network="enabled", git="commit", read_only=("sub/.git",)) == [told]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"rm: cannot remove 'mise.toml': Device or resource busy", "mise.toml."),
        (b"mv: cannot move 'x': Device or resource busy", ".envrc, sub/mise.toml."),
        (b"rm: cannot remove 'x.mise.toml': Read-only file system", None),
    ],
)
def test_a_note_of_protected_places_names_those_that_the_output_names_or_all(said: bytes, shown: str | None) -> None:
    told = hints.look(said, network="enabled", git="read_only", read_only=(".git", ".envrc", "sub/mise.toml"))
    assert told == [hints.READ_ONLY if shown is None else f"{hints.PROTECTED}{shown}".replace(": mise", ": sub/mise")]


@pytest.mark.parametrize(
    "word",
    [
        b".git ",
        b".git",
        b".git read-only file syste ",
        b"127.0.0.1 ",
        b"localhost",
        b"connection refused ",
        b"localhost connection refuse ",
        b"\n",
        b"\n.git",
        b": 1: : not found ",
        b"\n" + b": 1: :" * 60,
        b"\nenv: " + b": No such file or director" * 14,
        b": 1: /",
        b"\n" + b": 1: a/" * 50,
        b".git/worktrees/",
        b"mise/ read-only file system\n",
    ],
)
def test_no_output_keeps_the_event_loop(word: bytes) -> None:
    tail = (word * limits.HINT_BYTES)[: limits.HINT_BYTES]

    def seconds() -> float:
        began = time.process_time()
        hints.look(tail, network="restricted", git="commit", read_only=["mise"] * limits.SANDBOX_BINDS)
        return time.process_time() - began

    assert any(seconds() < 0.1 for _ in range(5)), "others on the machine make even the processor slower, not each time"
