"""Guesses from a command's own words: what they find, and that no words make them slow."""

from __future__ import annotations

import time

import pytest

from codespace import limits
from codespace.contract import NetworkPolicy
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
    "said",
    [
        b"E   ModuleNotFoundError: No module named 'nope'",
        b"E   FileNotFoundError: [Errno 2] No such file or directory: 'missing.txt'",
        b"E   importlib.metadata.PackageNotFoundError: No package metadata was found for zz",
        b"FAILED tests/test_x.py::test_localhost - ConnectionRefusedError: [Errno 111] Connection refused",
        b"FAILED tests/test_x.py::1 - AssertionError: failed to connect",
        b"jinja2.exceptions.TemplateNotFound: a.html",
        b"Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'nope' imported from /w/[eval1]",
        b"Error: Cannot find module './nope'\nRequire stack:\n- /w/[eval]\n  code: 'MODULE_NOT_FOUND',",
        b"    throw new ResourceNotFoundException('x')\n          ^\nResourceNotFoundException: x",
        b"error[E0583]: file not found for module `nope`\n --> src/main.rs:1:22",
        b"error[E0432]: unresolved import `std::dns`\n  |          ^^^ could not find `dns` in `std`",
        b"assertion `left == right` failed: name resolution of modules\n  left: 1\n right: 2",
        b"    dns_error\ntest result: FAILED. 0 passed; 1 failed; unable to connect to fe80::1",
        b"go: go.mod file not found in current directory or any parent directory; see 'go help modules'",
        b"main.go:4:2: package nope/nope is not in std (/usr/lib/go/src/nope/nope)",
        b"./main.go:7:2: undefined: userNotFound",
        b"ERROR: Could not find a version that satisfies the requirement nope (from versions: none)",
        b"ERROR: No matching distribution found for nope",
        b"config.toml: required file not found",
        b"mount: /mnt: unknown filesystem type 'erofs'.",
        b"touch: cannot touch '.git-blame': Device or resource busy",
    ],
)
def test_what_tools_say_of_other_failures_is_taken_for_none_of_the_sandboxs(said: bytes) -> None:
    """Each was said by pytest, node, cargo, go, pip or the like."""
    assert hints.look(said, network="restricted", git="read_only") == []
    assert hints.look(said, network="enabled", git="read_only") == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"npm error code ENOTFOUND", (hints.RESTRICTED, None)),
        (b"Error: getaddrinfo EAI_AGAIN registry.npmjs.org", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
        (b"socket.gaierror: [Errno -2] Name or service not known", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
        (b"[Errno -3] Temporary failure in name resolution')': /simple/x/", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
        (b"curl: (6) Could not resolve host: example.org", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
        (b"ssh: Could not resolve hostname example.org: x", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
        (b"curl: (5) Could not resolve proxy: p.example.org", (hints.RESTRICTED, None)),
        (b"socket.gaierror: [Errno -5] No address associated with hostname", (hints.RESTRICTED, None)),
        (b"[Errno -2] Name does not resolve", (hints.RESTRICTED, None)),
        (b"dns error: failed to lookup address information: x", (hints.RESTRICTED, None)),
        (b'ConnectError("dns error", Custom { kind: Uncategorized })', (hints.RESTRICTED, None)),
        (b"dial udp 9.9.9.9:53: connect: network is unreachable", (hints.RESTRICTED, hints.BESIDE_THE_PROXY)),
    ],
)
def test_what_tools_say_without_a_network_is_told(said: bytes, told: tuple[str, str | None]) -> None:
    restricted, enabled = told
    assert hints.look(said, network="restricted", git="read_only") == [restricted]
    assert hints.look(said, network="enabled", git="read_only") == ([] if enabled is None else [enabled])


@pytest.mark.parametrize(
    ("said", "network", "told"),
    [
        (b"", "restricted", hints.PERHAPS_RESTRICTED),
        (b"", "enabled", hints.PERHAPS_BESIDE),
        (b"Network is unreachable", "restricted", hints.RESTRICTED),
        (b"Network is unreachable", "enabled", hints.BESIDE_THE_PROXY),
    ],
)
def test_what_only_the_kernel_has_seen_is_told_in_weaker_words(said: bytes, network: NetworkPolicy, told: str) -> None:
    assert hints.look(said, network=network, git="read_only", tried_network=True) == [told]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"chmod: changing permissions of 'n': Operation not permitted", hints.MODES),
        (b"cp: preserving permissions for 'copy': Operation not permitted", hints.MODES),
        (b"tar: src: Cannot change mode to rwxrwsr-x: Operation not permitted", hints.MODES),
        (b"tar: t: Cannot change ownership to uid 1000, gid 1000: Invalid argument", hints.MODES),
        (b"chmod: changing permissions of 'n': Read-only file system", hints.READ_ONLY),
        (b"strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted", hints.TRACED),
        (b"unshare: unshare failed: Operation not permitted", hints.TRACED),
        (b"bwrap: Creating new namespace failed: Operation not permitted", hints.TRACED),
        (b"error: namespace is not permitted\nrm: x: Operation not permitted", None),
        (b"dd: error writing '/tmp/x': No space left on device", hints.FULL),
        (b"OSError: [Errno 28] No space left on device: '/home/sandbox/.cache/x'", hints.FULL),
        (b"dd: error writing 'target/tmp/x': No space left on device", None),
        (b"dd: error writing '/tmpfs/x': No space left on device", None),
    ],
)
def test_what_no_command_may_here_is_told_from_what_fails_for_another_reason(said: bytes, told: str | None) -> None:
    assert hints.look(said, network="enabled", git="commit") == ([] if told is None else [told])


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
        b"changing mode ",
        b"ptrace",
        b"operation not permitte ",
        b"/tmp ",
        b"::1 ",
        b"::1 could not connec ",
        b"\n" + b": 1" * 120 + b" not found",
    ],
)
def test_no_output_keeps_the_event_loop(word: bytes) -> None:
    tail = (word * limits.HINT_BYTES)[: limits.HINT_BYTES]

    def seconds() -> float:
        hints._look.cache_clear()
        began = time.process_time()
        hints.look(tail, network="restricted", git="commit", read_only=["mise"] * limits.SANDBOX_BINDS)
        return time.process_time() - began

    assert any(seconds() < 0.03 for _ in range(5)), (
        "others on the machine make even the processor slower, not each time"
    )


def test_a_list_of_ended_commands_asks_for_their_hints_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tails = [b"%d localhost: connection refused" % number for number in range(limits.RETAINED_PROCESSES)]
    first = [hints.look(tail, network="enabled", git="commit") for tail in tails]
    assert first[0] == [hints.LOOPBACK]
    first[0].append("the caller's own")
    monkeypatch.setattr(hints, "_says_no_server", lambda said: pytest.fail("looked through again"))
    assert [hints.look(tail, network="enabled", git="commit") for tail in tails] == [[hints.LOOPBACK]] * len(tails)
