"""The command driver in a whole daemon: at most once, told to the end, free for the next call."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
import trio
import trio.testing

from codespace import limits
from codespace.contract import Caller
from codespace.errors import Refusal
from codespace.testing import Bench, open_bench
from codespace.testing.faulty import Faults
from codespace.testing.site import tree

CALLER = Caller("memory")


async def start(bench: Bench, *command: str, **arguments: Any) -> dict[str, Any]:
    return await bench.call("exec_command", command=list(command), **arguments)


async def code_of(bench: Bench, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call(tool, **arguments)
    return caught.value.code


async def test_an_answer_that_tells_of_an_end_leaves_the_root_free_for_the_next_call() -> None:
    async with open_bench() as bench:
        for number in range(15):
            assert (await start(bench, "sh", "-c", f"exit {number}"))["exit_code"] == number


async def test_a_command_that_locked_the_directory_itself_is_not_told_as_another_daemon() -> None:
    async with open_bench(occupancy="shared") as bench:
        run = await start(bench, "flock", ".", "sh", "-c", "echo locked; exec sleep 60", wait_seconds=0)
        await bench.call("read_process", process_id=run["process_id"], wait_seconds=20)
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch="*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n")
        assert caught.value.code == "WORKSPACE_BUSY"
        assert "or a command has locked it" in caught.value.next_step
        await bench.call("terminate_process", process_id=run["process_id"])
        await bench.call("apply_patch", patch="*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n")


async def test_an_answer_that_did_not_wait_tells_of_an_end_only_once_it_is_recorded() -> None:
    faults, go_on = Faults(), trio.Event()
    async with open_bench(runner=faults.open_runner, sandbox=False) as bench:
        faults.order("after", "wait_exit", go_on.wait)
        asked = {"command": ["cat"], "open_stdin": True, "wait_seconds": 0, "operation_key": "k"}
        process_id = (await bench.call("exec_command", **asked))["process_id"]
        run = bench.daemon.tools._processes._runs.held(process_id)  # type: ignore[attr-defined]
        await bench.call("write_stdin", process_id=process_id, data="", eof=True)

        async def repeat() -> None:
            answer = await bench.call("exec_command", **asked)
            assert (answer["state"], run.told.is_set()) == ("exited", True)

        with trio.fail_after(60):
            while not faults.met:
                await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat)
                while not run.told.statistics().tasks_waiting:
                    await trio.lowlevel.checkpoint()
                go_on.set()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no output be taken for one that pauses, however slow the machine."""
    monkeypatch.setattr(limits, "OUTPUT_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(limits, "OUTPUT_GATHER_SECONDS", 60.0)


@pytest.mark.usefixtures("no_pause")
async def test_what_a_command_goes_on_to_write_is_gathered_behind_its_first_output() -> None:
    async with open_bench() as bench:
        lines = "for i in $(seq 30); do echo $i; sleep 0.01; done"
        asked = {"process_id": (await start(bench, "sh", "-c", lines, wait_seconds=0))["process_id"]}
        first = await bench.call("read_process", **asked, wait_seconds=50)
        second = await bench.call("read_process", **asked, wait_seconds=50, cursor=first["cursor"])
    assert first["chunk"].startswith("1\n")
    assert (second["chunk"].endswith("30\n"), second["state"]) == (True, "exited")


async def test_output_without_a_pause_is_shown_as_far_as_one_answer_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTPUT_PAUSE_SECONDS", 60.0)
    async with open_bench() as bench:
        asked = {"process_id": (await start(bench, "sh", "-c", "while echo x; do sleep 0.01; done"))["process_id"]}
        await bench.call("read_process", **asked, limit_bytes=2)
        with trio.fail_after(30):
            few = await bench.call("read_process", **asked, cursor=2, limit_bytes=8, wait_seconds=50)
            monkeypatch.setattr(limits, "OUTPUT_GATHER_SECONDS", 0.5)
            some = await bench.call("read_process", **asked, cursor=0, wait_seconds=50)
        await bench.call("terminate_process", **asked, grace_seconds=0)
    assert few["chunk"] == "x\n" * 4
    assert len(some["chunk"]) > 10


async def test_a_command_that_writes_all_the_time_is_seen_to_move_though_the_client_hears_of_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTPUT_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(limits, "OUTPUT_GATHER_SECONDS", 0.2)
    monkeypatch.setattr(limits, "PROGRESS_INTERVAL_SECONDS", 0.2)
    async with open_bench() as bench:
        asked = {"process_id": (await start(bench, "sh", "-c", "while echo x; do sleep 0.01; done"))["process_id"]}
        first = await bench.call("read_process", **asked, limit_bytes=2)
        with trio.fail_after(30):
            more = await bench.call("read_process", **asked, cursor=first["cursor"], wait_seconds=50)
        await bench.call("terminate_process", **asked, grace_seconds=0)
    assert (more["state"], more["chunk"][:2]) == ("running", "x\n")


@pytest.mark.usefixtures("no_pause")
async def test_the_echo_of_a_key_is_told_at_once_and_that_of_a_line_with_what_comes_of_it() -> None:
    async with open_bench() as bench:
        asks = "read -r one; sleep 0.2; echo answer"
        asked = {"process_id": (await start(bench, "sh", "-c", asks, tty=True, wait_seconds=0))["process_id"]}
        with trio.fail_after(40):
            await bench.call("write_stdin", **asked, data="a")
            key = await bench.call("read_process", **asked, wait_seconds=50)
            await bench.call("write_stdin", **asked, data="b\n")
            line = await bench.call("read_process", **asked, wait_seconds=50, cursor=key["cursor"])
    assert key["chunk"] == "a"
    assert line["chunk"] == "b\r\nanswer\r\n"


async def test_input_that_a_command_does_not_take_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STDIN_SECONDS", 0.1)
    data = "x" * 1_000_000
    async with open_bench(runner=Faults().open_runner, sandbox=False) as bench:
        process_id = (await start(bench, "sleep", "600", open_stdin=True, wait_seconds=0))["process_id"]
        written = await bench.call("write_stdin", process_id=process_id, data=data, eof=True)
        assert 0 < written["bytes_written"] < len(data)
        assert written["bytes_written"] + written["bytes_left"] == len(data)
        await bench.call("terminate_process", process_id=process_id, grace_seconds=0)


async def test_an_end_of_input_that_cannot_be_typed_is_refused_with_what_was_typed_before() -> None:
    async with open_bench() as bench:
        process_id = (await start(bench, "sh", "-c", "stty eof undef; echo ready; cat", tty=True, wait_seconds=0))[
            "process_id"
        ]
        with trio.fail_after(60):
            while "ready" not in (await bench.call("read_process", process_id=process_id, wait_seconds=10))["chunk"]:
                pass
        with pytest.raises(Refusal, match=r"INVALID_ARGUMENT: .*end-of-input key") as caught:
            await bench.call("write_stdin", process_id=process_id, data="abc", eof=True)
        assert caught.value.details == {"bytes_written": 3}
        await bench.call("terminate_process", process_id=process_id, grace_seconds=0)


async def test_two_calls_with_one_key_at_the_same_time_start_one_process() -> None:
    async with open_bench(occupancy="shared") as bench:
        results: list[dict[str, Any]] = []

        async def one() -> None:
            results.append(await start(bench, "sh", "-c", "echo x >> ran", operation_key="k"))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
        assert len({result["process_id"] for result in results}) == 1
        assert tree(bench.root) == {"ran": b"x\n"}


@pytest.mark.parametrize(
    "changed",
    [
        {"command": ["sh", "-c", "echo y >> ran"]},
        {"cwd": "sub"},
        {"env": {"A": "2"}},
        {"stdin": "other"},
        {"open_stdin": True},
        {"tty": True},
        {"rows": 25},
        {"cols": 81},
        {"timeout_seconds": 31.0},
    ],
)
async def test_a_key_is_refused_for_a_command_that_differs_in_anything(changed: dict[str, Any]) -> None:
    asked = {"command": ["sh", "-c", "echo x >> ran"], "env": {"A": "1"}, "timeout_seconds": 30.0}
    asked |= {} if "open_stdin" in changed else {"stdin": "given"}
    async with open_bench(files={"sub/file": ""}) as bench:
        first = await bench.call("exec_command", **asked, operation_key="k")
        assert await code_of(bench, "exec_command", **(asked | changed), operation_key="k") == "OPERATION_KEY_CONFLICT"
        again = await bench.call("exec_command", **asked, operation_key="k", wait_seconds=1)
        assert (again["replayed"], again["process_id"]) == (True, first["process_id"])
        assert tree(bench.root) == {"sub/file": b"", "ran": b"x\n"}


async def test_a_request_that_is_cancelled_anywhere_leaves_a_process_that_can_be_found_or_none() -> None:
    async with open_bench() as bench:
        for milliseconds in range(0, 20, 2):
            key = f"k{milliseconds}"
            with trio.move_on_after(milliseconds / 1000):
                await bench.daemon.tools.exec_command(
                    CALLER,
                    workspace_id="main",
                    command=["sh", "-c", "exit 3"],
                    cwd=".",
                    env=None,
                    stdin=None,
                    open_stdin=False,
                    tty=False,
                    rows=24,
                    cols=80,
                    timeout_seconds=None,
                    wait_seconds=10,
                    operation_key=key,
                    work_id=None,
                )
            again = await start(bench, "sh", "-c", "exit 3", operation_key=key)  # waits behind it, or is the first
            assert (again["state"], again["exit_code"]) == ("exited", 3)


async def test_who_repeats_a_call_that_is_being_given_up_is_no_caller_that_went_away() -> None:
    faults = Faults()
    async with open_bench(files={"sub/a": "x"}, runner=faults.open_runner) as bench, trio.open_nursery() as nursery:
        asked = {"command": ["true"], "cwd": "sub", "operation_key": "k"}
        looking, gate, gone = trio.Event(), trio.Event(), trio.CancelScope()

        async def look_slowly() -> None:
            looking.set()
            with trio.CancelScope(shield=True):  # as a thread does that cannot be cancelled
                await gate.wait()

        async def go_away() -> None:
            with gone:
                await bench.call("exec_command", **asked)

        faults.order("before", "check_directory", look_slowly)
        nursery.start_soon(go_away)
        await looking.wait()
        gone.cancel()
        run = bench.daemon.tools._admission._drivers["exec_command"]._runs.of_key("k")  # type: ignore[attr-defined]
        while not run.started.is_given_up:
            await trio.lowlevel.checkpoint()
        answers: list[dict[str, Any]] = []

        async def repeat() -> None:
            answers.append(await bench.call("exec_command", **asked))

        nursery.start_soon(repeat)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(60):
            while not answers:
                await trio.lowlevel.checkpoint()
        assert answers[0]["exit_code"] == 0


async def test_a_command_whose_record_was_begun_when_its_caller_went_away_runs_and_can_be_found() -> None:
    async with open_bench() as bench, trio.open_nursery() as nursery:
        gone = trio.CancelScope()
        writer = bench.daemon.tools._ledger._store._writer  # type: ignore[attr-defined]
        runs = bench.daemon.tools._admission._drivers["exec_command"]._runs  # type: ignore[attr-defined]

        async def go_away() -> None:
            with gone:
                await bench.call("exec_command", command=["touch", "made"], operation_key="k")

        with closing(sqlite3.connect(bench.daemon.settings.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            nursery.start_soon(go_away)
            while writer._current is None:
                await trio.lowlevel.checkpoint()
            gone.cancel()
            while not runs.of_key("k").started.is_given_up:
                await trio.lowlevel.checkpoint()
            other.execute("ROLLBACK")
        ended = await start(bench, "touch", "made", operation_key="k")
        assert (ended["state"], ended["replayed"]) == ("exited", True)
        assert tree(bench.root) == {"made": b""}


async def test_the_ledger_tells_how_it_ended_and_holds_neither_argv_nor_output() -> None:
    async with open_bench() as bench:
        ended = await start(bench, "sh", "-c", "echo CANARY; exit 7")
        status = await bench.call("operation_status", operation_id=ended["operation_id"])
        assert (status["kind"], status["status"], status["process_id"]) == ("exec", "exited", ended["process_id"])
        assert status["outcome"]["exit_code"] == 7
        assert [event["event"] for event in status["events"]] == [
            "minted",
            "start_ordered",
            "started",
            "ended",
            "drained",
        ]
        assert "CANARY" not in str(status)


async def test_a_program_that_cannot_start_is_recorded_as_never_started_and_replayed_as_such() -> None:
    async with open_bench() as bench:
        for replayed in (None, True):
            with pytest.raises(Refusal) as caught:
                await start(bench, "no-such-program", operation_key="k")
            assert caught.value.code == "PROCESS_SPAWN_FAILED"
            assert (caught.value.details or {}).get("replayed") is replayed
            assert caught.value.next_step.count("new one" if replayed else "new operation_key") == 1
        status = await bench.call("operation_status", operation_key="k")
        assert status["status"] == "spawn_failed"
        assert (await bench.call("list_processes"))["processes"] == []


async def test_the_callers_time_limit_is_bounded_by_the_operators() -> None:
    async with open_bench(workspace={"timeout_seconds": 5, "max_timeout_seconds": 10}) as bench:
        assert await code_of(bench, "exec_command", command=["true"], timeout_seconds=11) == "INVALID_ARGUMENT"
        ended = await start(bench, "sleep", "1000", timeout_seconds=0.2)
        assert (ended["state"], ended["termination"]) == ("exited", "timeout")


async def test_a_wall_clock_that_is_set_back_does_not_shorten_what_a_command_took() -> None:
    async with open_bench() as bench:
        runs = await start(bench, "sleep", "0.3", wait_seconds=0)
        bench.clock.advance(-3600)
        ended = await bench.call("read_process", process_id=runs["process_id"], wait_seconds=30)
        assert 0.2 < ended["ended_at"] - ended["started_at"] < 60


async def test_a_command_is_told_its_time_limit_while_it_runs_and_how_to_have_a_longer_one() -> None:
    most = "10 s, the operator's `max_timeout_seconds`."
    async with open_bench(occupancy="shared", workspace={"timeout_seconds": 5, "max_timeout_seconds": 10}) as bench:
        runs = await start(bench, "sleep", "1000", wait_seconds=0)
        for tool in ("read_process", "process_status"):
            told = await bench.call(tool, process_id=runs["process_id"])
            assert "Its time limit ends it after 5 s at the latest." in told["notes"] == runs["notes"]
        await bench.call("terminate_process", process_id=runs["process_id"], grace_seconds=0)
        ended = await start(bench, "sleep", "1000", timeout_seconds=0.2)
        longer = f"`timeout_seconds` gives a command a longer one: at most {most}"
        assert f"Its time limit was 0.2 s. {longer}" in ended["notes"]
        await bench.restart()
        assert (await bench.call("process_status", process_id=ended["process_id"]))["notes"] == [longer]
    async with open_bench(workspace={"timeout_seconds": 0.2, "max_timeout_seconds": 0.2}) as bench:
        ended = await start(bench, "sleep", "1000")
        most = "0.2 s, the operator's `max_timeout_seconds`."
        assert f"It had the longest time limit that is allowed here: {most}" in ended["notes"]


async def test_processes_beyond_the_limit_are_refused_by_name() -> None:
    async with open_bench(occupancy="shared", workspace={"limits": {"processes": 2}}) as bench:
        running = [await start(bench, "sleep", "1000", wait_seconds=0) for _ in range(2)]
        with pytest.raises(Refusal) as caught:
            await start(bench, "true")
        assert caught.value.code == "LIMIT_REACHED"
        assert (caught.value.details or {})["setting"] == "limits.processes"
        for each in running:
            await bench.call("terminate_process", process_id=each["process_id"])
        assert (await start(bench, "true"))["exit_code"] == 0


async def test_a_stop_ends_commands_and_records_each_end() -> None:
    async with open_bench(occupancy="shared") as bench:
        ids = [(await start(bench, "sleep", "1000", wait_seconds=0))["operation_id"] for _ in range(3)]
        await bench.restart()
        for operation_id in ids:
            status = await bench.call("operation_status", operation_id=operation_id)
            assert (status["status"], status["outcome"]["termination"]) == ("exited", "terminated")


async def test_a_key_whose_process_is_of_an_earlier_life_tells_its_end_and_starts_nothing() -> None:
    async with open_bench() as bench:
        command = ("sh", "-c", "echo x >> ran; echo told; exit 3")
        first = await start(bench, *command, operation_key="k")
        await bench.restart()
        again = await start(bench, *command, operation_key="k")
        assert (again["replayed"], again["dispatch_status"]) == (True, "confirmed")
        for name in ("process_id", "operation_id", "chunk", "eof", "exit_code", "started_at", "ended_at", "resources"):
            assert again[name] == first[name], name
        assert tree(bench.root) == {"ran": b"x\n"}


async def test_long_waits_end_when_the_daemon_stops() -> None:
    async with open_bench() as bench:
        seen: list[str] = []

        async def wait() -> None:
            ended = await start(bench, "sleep", "1000", wait_seconds=50)
            seen.append(ended["state"])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                while not (await bench.call("list_processes"))["processes"]:
                    await trio.lowlevel.checkpoint()
                bench.daemon.begin_stop()
        assert seen == ["running"]


@pytest.mark.parametrize(
    ("cwd", "code"), [("gone", "FILE_NOT_FOUND"), ("file.txt", "PATH_NOT_DIRECTORY"), ("door", "SYMLINK_REJECTED")]
)
async def test_a_directory_that_is_not_there_leaves_no_row_and_burns_no_key(cwd: str, code: str) -> None:
    async with open_bench(files={"file.txt": "x\n"}) as bench:
        (bench.root / "door").symlink_to("/etc")
        asked = {"command": ["pwd"], "operation_key": "k", "cwd": cwd}
        assert await code_of(bench, "exec_command", **asked) == code
        assert await code_of(bench, "operation_status", operation_key="k") == "OPERATION_NOT_FOUND"
        (bench.root / cwd).unlink(missing_ok=True)
        (bench.root / cwd).mkdir()
        assert (await bench.call("exec_command", **asked))["exit_code"] == 0, "the key is free, and so is the root"
        (bench.root / cwd).rmdir()
        assert (await bench.call("exec_command", **asked))["replayed"] is True, "what ran once is told without it"


@pytest.mark.parametrize("tool", ["read_process", "process_status", "terminate_process"])
async def test_an_unknown_process_is_said_to_be_unknown(tool: str) -> None:
    async with open_bench() as bench:
        assert await code_of(bench, tool, process_id="proc-none") == "PROCESS_NOT_FOUND"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"cwd": "../.."}, "PATH_ESCAPE"),
        ({"cwd": "/etc"}, "PATH_ESCAPE"),
        ({"env": {"LD_PRELOAD": "x"}}, "INVALID_COMMAND"),
        ({"command": ["a\0b"]}, "INVALID_COMMAND"),
    ],
)
async def test_what_is_wrong_by_itself_leaves_no_row(arguments: dict[str, Any], code: str) -> None:
    async with open_bench() as bench:
        assert await code_of(bench, "exec_command", **{"command": ["true"], "operation_key": "k"} | arguments) == code
        assert await code_of(bench, "operation_status", operation_key="k") == "OPERATION_NOT_FOUND"
