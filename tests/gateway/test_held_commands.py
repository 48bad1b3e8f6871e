"""Commands and their input where the operator decides: held, bound, granted once or for a scope, never run twice."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest

from codespace.cli.telling import lines
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree


async def held(bench: Bench, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    assert caught.value.code == "APPROVAL_REQUIRED", caught.value
    assert caught.value.approval_id is not None
    return caught.value.approval_id


async def granted(bench: Bench, hold: str, **scope: Any) -> None:
    await bench.daemon.operator.grant(hold, by="the console", **scope)


async def run_granted(bench: Bench, **arguments: Any) -> dict[str, Any]:
    """Hold a command, grant it, resume it; return its result."""
    hold = await held(bench, "exec_command", **arguments)
    await granted(bench, hold)
    return dict((await bench.call("operation_resume", approval_id=hold))["exec_command"])


async def test_a_command_is_held_with_all_that_it_is_and_runs_once_in_the_sandbox() -> None:
    async with open_bench(approvals="operator") as bench:
        command = ["sh", "-c", "echo ran >> ran.txt"]
        hold = await held(bench, "exec_command", command=command, env={"A": "1"}, cwd=".")
        shown = (await bench.daemon.operator.hold(hold)).shown
        assert (shown["command"], shown["env"], shown["cwd"]) == (command, {"A": "1"}, ".")
        assert shown["bound"]["program"].endswith("/sh")
        assert shown["bound"]["program_version"].startswith("sha256:")
        await granted(bench, hold)
        for _ in range(2):
            done = (await bench.call("operation_resume", approval_id=hold))["exec_command"]
            assert (done["exit_code"], done["sandbox"]) == (0, "linux-sandbox")
        assert tree(bench.root) == {"ran.txt": b"ran\n"}


@pytest.mark.parametrize(
    ("name", "file", "shown"),
    [
        ("real.sh", "real.sh", {"file:real.sh"}),
        ("link.sh", "d/real.sh", {"link:link.sh", "file:d/real.sh"}),
        ("ld/real.sh", "d/real.sh", {"link:ld/real.sh", "file:d/real.sh"}),
        ("lx/../real.sh", "d/real.sh", {"link:lx/../real.sh", "file:d/real.sh"}),  # not what its letters say
        ("a\u00a0b.sh", "a\u00a0b.sh", {"file:a\u00a0b.sh"}),
        ("/proc/self/cwd/real.sh", "real.sh", {"file:real.sh"}),
        ("ROOT/d/real.sh", "d/real.sh", {"file:d/real.sh"}),
        ("large.sh", "large.sh", {"file:large.sh"}),
    ],
)
async def test_a_file_is_bound_however_the_command_reaches_it(name: str, file: str, shown: set[str]) -> None:
    names = ("real.sh", "d/real.sh", "d/x/y.sh", "a\u00a0b.sh")
    files = dict.fromkeys(names, "echo good\n") | {"large.sh": "echo good; exit\n" + "#" * 5000}
    async with open_bench(approvals="operator", files=files, workspace={"limits": {"file_bytes": 4096}}) as bench:
        for link, to in (("link.sh", "d/real.sh"), ("ld", "d"), ("lx", "d/x")):
            os.symlink(to, bench.root / link)
        command = ["sh", name.replace("ROOT", str(bench.root))]
        hold = await held(bench, "exec_command", command=command)
        bound = (await bench.daemon.operator.hold(hold)).shown["bound"]
        assert {each for each in bound if ":" in each} == shown
        assert "not bound" not in str(bound)
        await granted(bench, hold)
        was = (bench.root / file).stat()
        (bench.root / file).write_text(files[file].replace("good", "EVIL"))
        os.utime(bench.root / file, ns=(was.st_atime_ns, was.st_mtime_ns))
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert caught.value.code == "APPROVAL_CONFLICT"
        again = await run_granted(bench, command=command)
        assert again["chunk"] == "EVIL\n"


async def test_where_a_link_leads_is_bound_too() -> None:
    async with open_bench(approvals="operator", files={"a.sh": "echo one\n", "b.sh": "echo one\n"}) as bench:
        os.symlink("a.sh", bench.root / "link.sh")
        hold = await held(bench, "exec_command", command=["sh", "link.sh"])
        await granted(bench, hold)
        (bench.root / "link.sh").unlink()
        os.symlink("b.sh", bench.root / "link.sh")
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_resume", approval_id=hold)
        assert caught.value.code == "APPROVAL_CONFLICT"


async def test_what_cannot_be_bound_is_shown_as_that_and_what_is_hidden_not_at_all() -> None:
    files = {"pkg/__main__.py": "", "secret/x.sh": "", "a\nb.sh": ""}
    async with open_bench(
        approvals="operator", files=files, workspace={"hidden_paths": ["secret", "/sub/key"]}
    ) as bench:
        os.symlink("secret/x.sh", bench.root / "to-secret")
        os.symlink("/etc/passwd", bench.root / "out")
        os.symlink("/proc/self/cwd", bench.root / "host")
        (bench.root / "sub").mkdir()
        os.symlink("/etc/hostname", bench.root / "sub/key")
        os.symlink("sub", bench.root / "beside")
        os.mkfifo(bench.root / "pipe")
        names = [
            "pkg",
            "a\nb.sh",
            "out",
            "host",
            "host/below",
            "beside/key",
            "pipe",
            "secret",
            "secret/x.sh",
            "to-secret",
            "absent\n",
            "x" * 300,
            "/etc/passwd",
        ]
        hold = await held(bench, "exec_command", command=["echo", *names])
        bound = (await bench.daemon.operator.hold(hold)).shown["bound"]
        assert {each: told for each, told in bound.items() if ":" in each} == {
            "file:pkg": "a directory, not bound",
            "file:a\\nb.sh": "not bound: its name has control characters or is not Unicode text",
            "link:out": "-> /etc/passwd, outside of the workspace and not bound",
            "link:host": "-> /proc/self/cwd, outside of the workspace and not bound",
            "link:host/below": "outside of the workspace and not bound",
            "link:beside/key": "outside of the workspace and not bound",
            "file:pipe": "no regular file, not bound",
        }


async def test_a_resume_that_is_repeated_tells_how_the_command_stands_by_now() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench, "exec_command", command=["cat"], open_stdin=True, wait_seconds=0)
        await granted(bench, hold)
        run = (await bench.call("operation_resume", approval_id=hold))["exec_command"]
        assert run["state"] == "running"
        await bench.call("write_stdin", process_id=run["process_id"], data="told\n", eof=True)
        await bench.call("read_process", process_id=run["process_id"], cursor=5, wait_seconds=20)
        for _ in range(2):
            again = (await bench.call("operation_resume", approval_id=hold))["exec_command"]
            told = (await bench.call("approval_status", approval_id=hold))["result"]["ok"]
            for each in (again, told):
                assert (each["state"], each["exit_code"], each["replayed"]) == ("exited", 0, True)
                assert each["process_id"] == run["process_id"]
            assert again["chunk"] == "told\n"
            assert "chunk" not in told
            await bench.restart()  # then ledger and spool alone know it


async def test_an_exact_grant_runs_the_same_command_again_and_no_other() -> None:
    async with open_bench(approvals="operator", files={"a.txt": "1\n2\n"}) as bench:
        hold = await held(bench, "exec_command", command=["wc", "-l", "a.txt"])
        await granted(bench, hold, scope="exact", seconds=600)
        again = await bench.call("exec_command", command=["wc", "-l", "a.txt"])  # the hold that he granted
        for _ in range(2):
            assert (await bench.call("exec_command", command=["wc", "-l", "a.txt"]))["exit_code"] == 0
        assert "2 a.txt" in again["chunk"]
        await held(bench, "exec_command", command=["wc", "-c", "a.txt"])
        (bench.root / "a.txt").write_text("changed\n")
        await held(bench, "exec_command", command=["wc", "-l", "a.txt"])


async def test_a_grant_of_a_program_takes_any_arguments_and_is_never_had_for_a_shell() -> None:
    async with open_bench(approvals="operator", files={"a.txt": "1\n2\n"}) as bench:
        hold = await held(bench, "exec_command", command=["wc", "-l", "a.txt"])
        await granted(bench, hold, scope="program", seconds=600)
        assert (await bench.call("exec_command", command=["wc", "-c", "a.txt"]))["exit_code"] == 0
        await held(bench, "exec_command", command=["wc", "-c", "a.txt"], env={"LANG": "C"})
        shell = await held(bench, "exec_command", command=["sh", "-c", "true"])
        with pytest.raises(Refusal) as caught:
            await granted(bench, shell, scope="program", seconds=600)
        assert caught.value.code == "INVALID_ARGUMENT"


async def test_what_is_granted_is_granted_with_the_network_that_was_shown() -> None:
    async with open_bench(approvals="operator", files={"a.txt": "1\n2\n"}) as bench:
        commands = {"program": ["wc", "-l", "a.txt"], "exact": ["head", "a.txt"], None: ["tail", "a.txt"]}
        holds = {scope: await held(bench, "exec_command", command=command) for scope, command in commands.items()}
        for scope, hold in holds.items():
            await granted(bench, hold, **({"scope": scope, "seconds": 600} if scope else {}))
        await bench.call("operation_resume", approval_id=holds["program"])
        await bench.call("operation_resume", approval_id=holds["exact"])
        assert (await bench.call("exec_command", command=commands["exact"]))["exit_code"] == 0
        bench.site.add_workspace("main", approvals="operator", network="enabled", allowed_domains=["a.example:8080"])
        await bench.restart()
        with pytest.raises(Refusal, match="network") as caught:
            await bench.call("operation_resume", approval_id=holds[None])
        assert caught.value.code == "APPROVAL_CONFLICT"
        for scope in ("program", "exact"):
            hold = await held(bench, "exec_command", command=commands[scope])
            shown = (await bench.daemon.operator.hold(hold)).shown
            assert shown["network"] == {"policy": "enabled", "allowed_domains": ["a.example:8080"]}
        assert "network      policy enabled: a.example:8080" in "\n".join(
            lines(await bench.daemon.operator.hold(hold), 0)
        )


async def test_what_a_granted_command_reads_later_was_granted_with_it_or_is_held() -> None:
    async with open_bench(approvals="operator") as bench:
        accepting = await run_granted(bench, command=["cat"], open_stdin=True, wait_seconds=0)
        written = await bench.call("write_stdin", process_id=accepting["process_id"], data="one\n")
        assert written["bytes_written"] == 4
        await bench.call("terminate_process", process_id=accepting["process_id"])

        terminal = await run_granted(bench, command=["cat"], tty=True, wait_seconds=0)
        words = {"process_id": terminal["process_id"], "data": "two\n"}
        hold = await held(bench, "write_stdin", **words)
        shown = (await bench.daemon.operator.hold(hold)).shown
        assert (shown["data"], shown["command"]) == ("two\n", ["cat"])
        output = await bench.call("read_process", process_id=terminal["process_id"])
        assert "two" not in output["chunk"]
        await granted(bench, hold)
        assert (await bench.call("write_stdin", **words))["bytes_written"] == 4
        again = await held(bench, "write_stdin", **words)  # the same again is another write
        await granted(bench, again)
        for _ in range(2):
            resumed = await bench.call("operation_resume", approval_id=again)
            assert resumed["write_stdin"]["bytes_written"] == 4
        output = await bench.call("read_process", process_id=terminal["process_id"], cursor=0, wait_seconds=1)
        assert output["chunk"].count("two") <= 4  # two writes, each echoed by the terminal and told by cat
        await bench.call("terminate_process", process_id=terminal["process_id"])


async def test_input_that_is_granted_after_the_end_says_so_and_is_over() -> None:
    async with open_bench(approvals="operator") as bench:
        run = await run_granted(bench, command=["cat"], tty=True, wait_seconds=0)
        hold = await held(bench, "write_stdin", process_id=run["process_id"], data="x\n")
        await granted(bench, hold)
        await bench.call("terminate_process", process_id=run["process_id"])
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                await bench.call("operation_resume", approval_id=hold)
            assert caught.value.code == "PROCESS_EXITED"


async def test_a_sandboxed_command_finds_neither_the_database_nor_the_console() -> None:
    async with open_bench(approvals="operator") as bench:
        state = bench.daemon.settings.state_dir
        look = f"ls {state} {bench.daemon.settings.database}; echo > {state}/x; ls {state}/console/tickets; exit 7"
        done = await run_granted(bench, command=["sh", "-c", look])
        assert done["exit_code"] == 7
        assert done["chunk"].count("No such file") + done["chunk"].count("nonexistent") >= 3, done["chunk"]
        with sqlite3.connect(bench.daemon.settings.database) as db:
            assert db.execute("SELECT count(*) FROM holds WHERE state = 'granted'").fetchone() == (0,)
        db.close()
