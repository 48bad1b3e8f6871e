"""What a result says of a command that failed by its sandbox, so that an agent learns why."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from codespace.errors import Refusal
from codespace.runner import hints
from codespace.sandbox.inventory import planted
from codespace.testing import Bench, open_bench

SECONDS = 60.0
OWN_GIT = ("git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with trio.fail_after(SECONDS):
        async with open_bench() as bench:
            await trio.run_process(["git", "init", "-q", str(bench.root)])
            (bench.root / "file").write_text("text\n")
            yield bench


async def run(bench: Bench, *command: str) -> dict[str, Any]:
    return await bench.call("exec_command", command=list(command), wait_seconds=30)


async def test_git_that_cannot_write_is_explained(bench: Bench) -> None:
    ran = await run(bench, "git", "-c", "safe.directory=*", "add", "file")
    assert ran["exit_code"] != 0
    assert hints.GIT in ran["notes"], ran


async def test_git_that_only_looks_needs_no_note(bench: Bench) -> None:
    ran = await run(bench, "git", "-c", "safe.directory=*", "status", "--short")
    assert (ran["exit_code"], ran["chunk"], ran["notes"]) == (0, "?? file\n", [])


async def test_a_command_that_wanted_the_network_is_told_that_there_is_none(bench: Bench) -> None:
    wanting = 'use IO::Socket::INET; IO::Socket::INET->new("1.1.1.1:80") or die "$!\\n"'
    ran = await run(bench, "perl", "-e", wanting)
    assert ran["exit_code"] != 0
    assert hints.RESTRICTED in ran["notes"], ran


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("curl: (7) Failed to connect to 127.0.0.1 port 8124 after 0 ms: Couldn't connect to server", True),
        ("Error: connect ECONNREFUSED ::1:5432", True),
        ("Connecting to localhost (localhost)|127.0.0.1|:80... failed: Connection refused.", True),
        ("curl: (7) Failed to connect to 127.0.0.1 port 3128 after 0 ms: Couldn't connect to server", False),
        ("Failed to connect to 10.127.0.0 port 80\nServing on 127.0.0.1:8000", False),
        ("Serving on 127.0.0.1:8000", False),
    ],
)
async def test_a_server_of_another_command_that_was_not_reached_is_explained(
    bench: Bench, said: str, told: bool
) -> None:
    ran = await run(bench, "sh", "-c", 'echo "$0" >&2; exit 1', said)
    assert (hints.LOOPBACK in ran["notes"]) is told


async def test_a_command_that_hangs_for_the_network_is_told_while_it_runs(bench: Bench) -> None:
    hanging = "echo 'retrying: Temporary failure in name resolution' >&2; exec sleep 1000"
    ran = await bench.call("exec_command", command=["sh", "-c", hanging], wait_seconds=0)
    while not ran["output_total"]:
        ran = await bench.call("read_process", process_id=ran["process_id"], wait_seconds=20)
    assert hints.RESTRICTED in ran["notes"]
    await bench.call("terminate_process", process_id=ran["process_id"], grace_seconds=0)


TRIES = {
    "an address": 'IO::Socket::INET->new("10.1.2.3:80");',
    "a datagram": 'IO::Socket::INET->new(Proto => "udp", PeerAddr => "10.1.2.3:53");',
    "a resolver on loopback": 'IO::Socket::INET->new(Proto => "udp", PeerAddr => "127.0.0.53:53")->send("x");',
}
TRIES_OF_SIX = {
    "an address of six": 'IO::Socket::IP->new(PeerHost => "2001:db8::1", PeerPort => 80);',
    "a resolver on loopback of six": """
        IO::Socket::IP->new(Type => SOCK_DGRAM, PeerHost => "::1", PeerPort => 53)->send("x");
    """,
}
"""Where this machine speaks it at all."""


@pytest.mark.parametrize("tried", TRIES | TRIES_OF_SIX if socket.has_dualstack_ipv6() else TRIES)
async def test_a_command_that_waits_for_the_network_without_a_word_is_told_while_it_runs(
    bench: Bench, tried: str
) -> None:
    waiting = f"use IO::Socket::INET; use IO::Socket::IP; {(TRIES | TRIES_OF_SIX)[tried]} sleep 1000"
    ran = await bench.call("exec_command", command=["perl", "-e", waiting], wait_seconds=0)
    while hints.PERHAPS_RESTRICTED not in ran["notes"]:
        ran = await bench.call("read_process", process_id=ran["process_id"], wait_seconds=0.1)
    await bench.call("terminate_process", process_id=ran["process_id"], grace_seconds=0)


@pytest.mark.parametrize("kind", ["in-process", "uds"])
async def test_a_command_that_waits_for_the_network_without_a_word_is_told_to_who_asks_only_for_its_status(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODESPACE_RUNNER", kind)
    waiting = f"use IO::Socket::INET; {TRIES['an address']} sleep 1000"
    with trio.fail_after(SECONDS):
        async with open_bench() as bench:
            told = await bench.call("exec_command", command=["perl", "-e", waiting], wait_seconds=0)
            while hints.PERHAPS_RESTRICTED not in told["notes"]:
                told = await bench.call("process_status", process_id=told["process_id"])


async def test_a_command_that_waited_for_the_network_until_its_time_was_over_is_told(bench: Bench) -> None:
    waiting = f"use IO::Socket::INET; {TRIES['an address']} $| = 1; print 'working'; sleep 1000"
    ran = await bench.call("exec_command", command=["perl", "-e", waiting], wait_seconds=30, timeout_seconds=1)
    assert ran["termination"] == "timeout"
    assert hints.PERHAPS_RESTRICTED in ran["notes"]


@pytest.mark.parametrize(
    "program",
    [
        f"use IO::Socket::INET; {TRIES['an address']} exit 0",
        f"use IO::Socket::INET; {TRIES['an address']} print 'ModuleNotFoundError'; exit 1",
        'use IO::Socket::INET; IO::Socket::INET->new("127.0.0.1:9"); exit 1',
    ],
    ids=["did without", "failed for another reason", "asked loopback"],
)
async def test_a_command_that_only_asked_the_network_for_news_is_told_nothing_of_it(bench: Bench, program: str) -> None:
    assert (await run(bench, "perl", "-e", program))["notes"] == []


@pytest.mark.parametrize("words", ["diff", "add -A", "commit -qam second", "stash"])
async def test_a_committed_file_that_is_hidden_is_told_to_be_what_git_fails_on(words: str) -> None:
    async with open_bench(workspace={"git": "commit", "hidden_paths": ["**/*.pem"]}) as bench:
        own = [*OWN_GIT, "-C", str(bench.root)]
        (bench.root / "a.pem").write_text("key\n")
        (bench.root / "file").write_text("text\n")
        for first in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            await trio.run_process([*own, *first])
        (bench.root / "file").write_text("changed\n")
        ran = await run(bench, *OWN_GIT, *words.split())
        assert (ran["exit_code"] != 0, ran["notes"]) == (True, [hints.HIDDEN]), ran
        ran = await run(bench, *OWN_GIT, "diff", "--", ".", ":!a.pem")
        assert (ran["exit_code"], ran["notes"]) == (0, []), ran
        await trio.run_process([*own, "update-index", "--skip-worktree", "a.pem"])
        ran = await run(bench, *OWN_GIT, "add", "-A")
        assert (ran["exit_code"], ran["notes"]) == (0, []), ran


async def test_a_commit_of_nobody_is_told_how_git_is_told_who_commits() -> None:
    async with open_bench(workspace={"git": "commit"}) as bench:
        await trio.run_process(["git", "init", "-q", str(bench.root)])
        commit = ["git", "-c", "safe.directory=*", "commit", "-q", "--allow-empty", "-m", "first"]
        ran = await run(bench, *commit)
        assert (ran["exit_code"] != 0, ran["notes"]) == (True, [hints.IDENTITY]), ran
        named = dict.fromkeys(re.findall(r"GIT_\w+", hints.IDENTITY), "x")
        ran = await bench.call("exec_command", command=commit, env=named, wait_seconds=30)
        assert (ran["exit_code"], ran["notes"]) == (0, []), ran


async def test_a_repository_that_stays_read_only_where_commands_may_commit_is_explained() -> None:
    with trio.fail_after(SECONDS):
        async with open_bench(workspace={"git": "commit"}) as bench:
            await trio.run_process(["git", "init", "-q", str(bench.root)])
            (bench.root / "file").write_text("text\n")
            (bench.root / ".git/info/link").symlink_to("/dev/null")
            ran = await run(bench, "git", "-c", "safe.directory=*", "add", "file")
            assert ran["exit_code"] != 0
            assert hints.NOT_COMMITTING in ran["notes"], ran


@pytest.mark.parametrize(
    "command",
    [
        (*OWN_GIT, "remote", "add", "origin", "https://example.org"),
        (*OWN_GIT, "branch", "-m", "new"),
        ("sh", "-c", "echo x > .git/hooks/pre-commit"),
        ("mv", ".git", "away"),
    ],
    ids=["configuration", "a branch of it", "a hook", "all of it"],
)
async def test_where_commands_commit_what_stays_read_only_is_not_told_as_a_repository_that_does(
    command: tuple[str, ...],
) -> None:
    with trio.fail_after(SECONDS):
        async with open_bench(workspace={"git": "commit"}) as bench:
            await trio.run_process(["git", "init", "-q", str(bench.root)])
            committed = await run(bench, *OWN_GIT, "commit", "-q", "--allow-empty", "-m", "first")
            assert (committed["exit_code"], committed["notes"]) == (0, []), committed
            ran = await run(bench, *command)
            assert (ran["exit_code"] != 0, ran["notes"]) == (True, [hints.STAYS]), ran


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "echo {} > .vscode/settings.json"),
        ("sh", "-c", "cd .vscode && echo {} > settings.json"),
        ("rm", ".vscode/settings.json"),
        ("mv", ".vscode", "away"),
        ("sed", "-i", "s/a/b/", ".vscode/settings.json"),
    ],
    ids=["written", "written there", "removed", "moved", "replaced"],
)
async def test_a_write_to_what_is_protected_is_explained_with_its_name(command: tuple[str, ...]) -> None:
    with trio.fail_after(SECONDS):
        async with open_bench(files={".vscode/settings.json": "{}\n", ".envrc": ""}) as bench:
            ran = await run(bench, *command)
            (note,) = ran["notes"]
            assert ran["exit_code"] != 0
            assert note.startswith(hints.PROTECTED), note
            assert ".vscode/settings.json" in note


async def test_a_write_outside_is_not_blamed_on_what_is_protected() -> None:
    with trio.fail_after(SECONDS):
        async with open_bench(files={"mise/config.toml": ""}) as bench:
            assert (await run(bench, "touch", "/usr/promise"))["notes"] == [hints.READ_ONLY]


async def test_a_write_outside_is_explained(bench: Bench) -> None:
    ran = await run(bench, "touch", "/usr/made")
    assert hints.READ_ONLY in ran["notes"], ran


async def test_a_program_that_the_sandbox_does_not_show_is_named_with_the_setting(bench: Bench, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    with pytest.raises(Refusal) as caught:
        await run(bench, str(tool))
    assert caught.value.code == "PROCESS_SPAWN_FAILED"
    assert "not visible in the sandbox" in caught.value.message
    assert "readable_paths" in caught.value.next_step


@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize(
    ("name", "message", "next_step"),
    [
        ("./script.py", "is not executable", "`python3`"),
        ("script.py", "", "PATH"),
        ("./missing.py", "there is no such file", "find shows what is there"),
        ("folder/missing.sh", "there is no such file", "relative to `cwd`"),
        ("ls -la", "", 'or ["sh", "-c", "..."] for shell syntax'),
        ("cd", "", "Send the directory as `cwd`"),
        ("A_1=x", "", "variables as `env`"),
        ("./folder", "it is a directory", ""),
        ("./fifo", "it is a socket, a FIFO or a device", "find"),
    ],
)
async def test_what_was_written_for_a_shell_or_without_an_interpreter_is_told_how_to_send(
    sandbox: bool, name: str, message: str, next_step: str
) -> None:
    with trio.fail_after(SECONDS):
        files = {"script.py": "print(1)\n", "folder/file": ""}
        async with open_bench(files=files, sandbox=sandbox) as bench:
            os.mkfifo(bench.root / "fifo", 0o755)
            with pytest.raises(Refusal) as caught:
                await run(bench, name)
            assert caught.value.code == "PROCESS_SPAWN_FAILED"
            assert message in caught.value.message
            assert next_step in str(caught.value.next_step)


async def test_a_program_that_is_a_link_out_of_the_sandbox_is_told_where_it_leads(bench: Bench, tmp_path: Path) -> None:
    (bench.root / "env").symlink_to(tmp_path / "toolchain")
    for name in ("env/python", "./env/python"):
        with pytest.raises(Refusal) as caught:
            await run(bench, name)
        assert caught.value.code == "PROCESS_SPAWN_FAILED"
        assert f"leads to {tmp_path}/toolchain/python, which is not there inside" in caught.value.message
        assert "readable_paths" in caught.value.next_step


async def test_that_what_a_link_leads_to_exists_is_not_told(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "python").touch(mode=0o755)
    told = set()
    for name in ("python", "missing"):
        (bench.root / "tool").symlink_to(tmp_path / name)
        with pytest.raises(Refusal) as caught:
            await run(bench, "./tool")
        told.add(caught.value.message.replace(f"/{name}", "/NAME"))
        (bench.root / "tool").unlink()
    assert len(told) == 1, told


@pytest.mark.parametrize("tty", [False, True])
async def test_a_script_whose_interpreter_is_not_inside_is_explained(bench: Bench, tmp_path: Path, tty: bool) -> None:
    (bench.root / "script").write_text(f"#!{tmp_path}/toolchain/python\n")
    (bench.root / "script").chmod(0o755)
    ran = await bench.call("exec_command", command=["./script"], wait_seconds=30, tty=tty)
    assert (ran["exit_code"] in (126, 127), ran["notes"]) == (True, [hints.NO_SCRIPT]), ran


@pytest.mark.parametrize("shell", [(), ("sh", "-c"), ("bash", "-c")], ids=["alone", "sh", "bash"])
@pytest.mark.parametrize("interpreter", ["/bin/sh", "/usr/bin/env sh"])
async def test_a_script_with_windows_line_endings_is_told_of_its_carriage_return(
    bench: Bench, interpreter: str, shell: tuple[str, ...]
) -> None:
    (bench.root / "script").write_text(f"#!{interpreter}\r\necho hi\r\n", newline="")
    (bench.root / "script").chmod(0o755)
    ran = await run(bench, *shell, "./script")
    (note,) = ran["notes"]
    assert ran["exit_code"] == 127
    assert "carriage return" in note, note


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("command", ["no-such-tool build", "env no-such-tool"])
async def test_a_program_that_a_shell_does_not_find_inside_is_explained(bench: Bench, shell: str, command: str) -> None:
    ran = await run(bench, shell, "-c", command)
    assert hints.MISSING in ran["notes"], ran


async def test_whether_a_file_that_is_no_program_exists_is_not_told(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    told = set()
    for name in ("secret", "missing"):
        with pytest.raises(Refusal) as caught:
            await run(bench, str(tmp_path / name))
        told.add(caught.value.message.replace(name, "NAME"))
    assert len(told) == 1


async def test_what_a_run_planted_is_named_and_stands_in_the_audit(bench: Bench) -> None:
    ran = await run(bench, "sh", "-c", "mkdir -p sub/.git && echo x > .mcp.json")
    assert ran["planted"] == [".mcp.json", "sub/.git"]
    assert [note for note in ran["notes"] if "sub/.git" in note and "by themselves" in note]
    status = await bench.call("operation_status", operation_id=ran["operation_id"])
    (event,) = [event for event in status["events"] if "planted" in (event.get("details") or {})]
    assert event["details"]["planted"] == [".mcp.json", "sub/.git"]


async def test_a_directory_that_cannot_be_looked_into_after_a_run_is_named_as_what_it_may_hold(bench: Bench) -> None:
    """This one has a longer path than the kernel takes, so even root cannot."""
    ran = await run(bench, "perl", "-e", 'for (1 .. 25) { $name = "d" x 200; mkdir $name; chdir $name or die }')
    assert ran["planted"][0].startswith("dddd")
    assert [note for note in ran["notes"] if "or closed directories, which may hold such: dddd" in note], ran


async def test_a_hold_binds_the_program_that_the_sandbox_would_run(tmp_path: Path) -> None:
    outside = tmp_path / "ls"
    outside.write_text("#!/bin/sh\necho another\n")
    outside.chmod(0o755)
    workspace = {"env": {"PATH": f"{tmp_path}:/usr/bin"}}
    with trio.fail_after(SECONDS):
        async with open_bench(approvals="confirm", workspace=workspace) as bench:
            with pytest.raises(Refusal) as caught:
                await run(bench, "ls")
            assert caught.value.details is not None
            assert caught.value.details["shown"]["bound"]["program"] == "/usr/bin/ls"
            with pytest.raises(Refusal) as caught:
                await run(bench, str(outside))
            assert caught.value.code == "PROCESS_SPAWN_FAILED"
            assert "not visible in the sandbox" in caught.value.message


async def test_a_fault_in_the_look_behind_a_run_is_told_and_ends_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at was chosen by the command: its next mistake of ours must not end the daemon."""

    def fail(*_: object) -> list[planted.Planted]:
        raise ValueError("embedded null byte")

    with monkeypatch.context() as patched:
        patched.setattr(planted, "compare", fail)
        ran = await run(bench, "echo", "said")
    assert (ran["exit_code"], ran["chunk"]) == (0, "said\n")
    assert [note for note in ran["notes"] if "is not known" in note and "a fault of CodeSpace" in note], ran
    assert (await run(bench, "true"))["notes"] == []
