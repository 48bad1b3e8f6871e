"""`codespace approvals`, `grants` and `processes`, typed by an operator beside a running daemon, or without one."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import signal
import stat
import struct
import subprocess
import termios
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.gateway.database import connect
from codespace.testing import Bench, open_bench
from codespace.testing.installed import script
from codespace.testing.site import tree

HOSTILE = "evil\x1b[2J\u202egnp.txt"
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+CANARY\n*** End Patch\n"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


async def codespace(bench: Bench, *words: str) -> Said:
    run = partial(trio.run_process, [script(), *words], env=bench.site.environ, check=False)
    done = await run(capture_stdout=True, capture_stderr=True, stdin=b"")
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


async def held_command(bench: Bench, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call("exec_command", **arguments)
    return str(caught.value.approval_id)


async def held(bench: Bench, patch: str = PATCH) -> str:
    with pytest.raises(Refusal) as caught:
        await bench.call("apply_patch", patch=patch)
    assert caught.value.approval_id is not None, caught.value
    return caught.value.approval_id


async def test_a_hold_is_listed_shown_granted_and_runs_when_the_agent_resumes() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        listed = await codespace(bench, "approvals", "list")
        assert hold in listed.out
        assert "new.txt" in listed.out
        shown = await codespace(bench, "approvals", "show", hold)
        assert "+CANARY" in shown.out
        assert tree(bench.root) == {}
        granted = await codespace(bench, "approvals", "grant", hold, "--yes")
        assert (granted.code, granted.out) == (0, f"{hold} is granted.\n")
        resumed = await bench.call("operation_resume", approval_id=hold)
        assert resumed["apply_patch"]["status"] == "applied"
        assert hold not in (await codespace(bench, "approvals", "list")).out
        assert hold in (await codespace(bench, "approvals", "list", "--all")).out


async def test_a_held_patch_is_shown_with_what_is_not_plain_about_its_place() -> None:
    update = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch\n"
    async with open_bench(files={"a.txt": "one\none\n"}, approvals="operator") as bench:
        hold = await held(bench, update)
        shown = await codespace(bench, "approvals", "show", hold)
        assert "note         a.txt, chunk 1: its lines stand at 2 places; the first, line 1, was taken\n" in shown.out


async def test_what_is_typed_into_a_terminal_is_shown_with_the_command_that_it_is_granted_with() -> None:
    async with open_bench(approvals="operator") as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["sh"], tty=True, stdin="touch CANARY\nexit\n")
        shown = await codespace(bench, "approvals", "show", str(caught.value.approval_id))
        assert "a terminal, and this is typed into it: touch CANARY\\nexit\\n" in shown.out


@pytest.mark.parametrize("tty", [True, False])
async def test_input_that_may_come_later_unheld_is_shown_with_the_command_that_it_is_granted_with(tty: bool) -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held_command(bench, command=["cat"], tty=tty, open_stdin=True, wait_seconds=0)
        shown = await codespace(bench, "approvals", "show", hold)
        await codespace(bench, "approvals", "grant", hold, "--yes")
        process = (await bench.call("operation_resume", approval_id=hold))["exec_command"]["process_id"]
        assert (await bench.call("write_stdin", process_id=process, data="unseen\r"))["bytes_written"] == 7
        await bench.call("terminate_process", process_id=process)
        how = "a terminal, left open: it accepts whatever is typed" if tty else "left open: it accepts whatever is"
        assert how in shown.out


async def test_held_input_is_shown_decoded_whatever_it_was_sent_as() -> None:
    async with open_bench(approvals="operator") as bench:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["cat"], tty=True, wait_seconds=0)
        hold = str(caught.value.approval_id)
        assert (await codespace(bench, "approvals", "grant", hold, "--yes")).code == 0
        process = (await bench.call("operation_resume", approval_id=hold))["exec_command"]["process_id"]
        for data, told in ((b"rm -rf CANARY\n", "rm -rf CANARY\\n"), (b"\xff\x1b[2J", "\\\\xff\\x1b[2J")):
            sent = base64.b64encode(data).decode()
            with pytest.raises(Refusal) as caught:
                await bench.call("write_stdin", process_id=process, data=sent, encoding="base64")
            shown = await codespace(bench, "approvals", "show", str(caught.value.approval_id))
            assert f"input        {told} (sent as base64)" in shown.out
        await bench.call("terminate_process", process_id=process)


async def test_nothing_is_granted_unseen_by_a_program_that_cannot_be_asked() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        said = await codespace(bench, "approvals", "grant", hold)
        assert said.code == 2
        assert "nothing was granted" in said.err
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"


@pytest.mark.parametrize(
    ("answer", "state"), [("y\n", "granted"), ("n\n", "pending"), ("\n", "pending"), ("\x04", "pending")]
)
async def test_a_person_is_shown_the_whole_and_asked(answer: str, state: str) -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        ours, theirs = pty.openpty()
        try:
            os.write(ours, answer.encode())
            command = [script(), "approvals", "grant", hold]
            done = await trio.run_process(
                command, env=bench.site.environ, stdin=theirs, capture_stdout=True, capture_stderr=True, check=False
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert b"+CANARY" in done.stdout
        refused = {"granted": (0, b""), "pending": (2, b"codespace: nothing was granted.\n")}
        assert (done.returncode, done.stderr) == refused[state]
        assert (await bench.call("approval_status", approval_id=hold))["state"] == state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_person_who_is_asked_can_leave_without_an_answer(number: signal.Signals) -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        child, terminal = pty.fork()
        if child == 0:
            os.execve(script(), [script(), "approvals", "grant", hold], bench.site.environ)
        said, ended = b"", os.pidfd_open(child)
        with trio.fail_after(60):
            while b"[y/N]" not in said:
                await trio.lowlevel.wait_readable(terminal)
                said += os.read(terminal, 4096)
            await tell_until_it_ends(child, ended, number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130  # noqa: ASYNC222 - it has ended
        os.close(terminal)
        os.close(ended)
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"


@pytest.mark.parametrize("words", [("list", "--json"), ("watch", "--json")])
async def test_a_command_whose_output_nobody_takes_ends_when_it_is_told_to(words: tuple[str, ...]) -> None:
    async with open_bench(approvals="operator") as bench:
        for name in "abcd":  # lines that do not fit beside each other
            await held(bench, PATCH.replace("new", name).replace("CANARY", "x" * 2_500))
        command = [script(), "approvals", *words]
        told = await trio.lowlevel.open_process(command, env=bench.site.environ, stdout=subprocess.PIPE)
        assert told.stdout is not None
        fcntl.fcntl(told.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        with trio.fail_after(60):
            while held_back(told.stdout.fileno()) < 2_500:
                await trio.lowlevel.checkpoint()
            ended = os.pidfd_open(told.pid)
            await tell_until_it_ends(told.pid, ended, signal.SIGTERM)
            os.close(ended)
            assert await told.wait() == 130
        await told.stdout.aclose()


async def tell_until_it_ends(child: int, ended: int, number: signal.Signals) -> None:
    """Send a signal again each second: Python hears one that comes just before it waits in the system at the next."""
    gone = False
    while not gone:
        os.kill(child, number)
        with trio.move_on_after(1):
            await trio.lowlevel.wait_readable(ended)
            gone = True


def held_back(descriptor: int) -> int:
    """Return how many bytes lie in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])


async def test_a_grant_for_another_fingerprint_than_the_holds_is_refused() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        facts = json.loads((await codespace(bench, "approvals", "show", hold, "--json")).out)
        assert facts["approval_id"] == hold
        assert "body" not in facts
        wrong = await codespace(bench, "approvals", "grant", hold, "--fingerprint", "0" * 64)
        assert (wrong.code, "APPROVAL_CONFLICT" in wrong.err) == (2, True)
        right = await codespace(bench, "approvals", "grant", hold, "--fingerprint", facts["fingerprint"])
        assert right.code == 0


async def test_an_empty_fingerprint_is_one_that_no_hold_has() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        said = await codespace(bench, "approvals", "grant", hold, "--yes", "--fingerprint", "")
        assert (said.code, "APPROVAL_CONFLICT" in said.err) == (2, True)
        assert (await bench.call("approval_status", approval_id=hold))["state"] == "pending"


async def test_decisions_without_a_daemon_are_there_when_it_comes_back() -> None:
    async with open_bench(approvals="operator") as bench:
        wanted, unwanted = await held(bench), await held(bench, PATCH.replace("new", "other"))
        await bench.stop()
        assert (await codespace(bench, "approvals", "grant", wanted, "--yes")).code == 0
        assert (await codespace(bench, "approvals", "deny", unwanted)).out == f"{unwanted} is denied.\n"
        await bench.start()
        assert (await bench.call("apply_patch", patch=PATCH))["status"] == "applied"
        assert (await bench.call("approval_status", approval_id=unwanted))["state"] == "denied"


async def test_a_scoped_grant_is_given_listed_used_and_revoked() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        words = ("approvals", "grant", hold, "--yes", "--patches", ".", "--for", "600")
        said = await codespace(bench, *words)
        grant = next(word for word in said.out.split() if word.startswith("grant-"))
        assert "for 10 min" in said.out
        assert (await bench.call("apply_patch", patch=PATCH.replace("new", "a")))["status"] == "applied"
        (line,) = (await codespace(bench, "grants", "list", "--json")).out.splitlines()
        assert (json.loads(line)["grant_id"], json.loads(line)["uses"]) == (grant, 1)
        assert (await codespace(bench, "grants", "revoke", grant)).out == f"{grant} is revoked.\n"
        assert "revoked" in (await codespace(bench, "grants", "list")).out
        await held(bench, PATCH.replace("new", "b"))


async def test_a_scope_that_is_not_to_be_had_leads_to_what_is() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held_command(bench, command=["sh", "-c", "true"])
        said = await codespace(bench, "approvals", "grant", hold, "--yes", "--program")
        assert (said.code, said.out) == (2, "")
        assert said.err.endswith("Nothing was granted.\n  Grant this exact command (--exact), or grant it once.\n")
        assert (await codespace(bench, "approvals", "grant", hold, "--yes", "--exact")).code == 0
        patch = await held(bench)
        said = await codespace(bench, "approvals", "grant", patch, "--yes", "--patches", "src")
        assert said.err.endswith("all of this one (--patches PATH), or grant it once.\n")


async def test_each_hold_and_grant_says_which_directory_it_is_for() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench)
        for words in (["approvals", "list"], ["approvals", "show", hold]):
            assert str(bench.root) in (await codespace(bench, *words)).out, words
        await codespace(bench, "approvals", "grant", hold, "--yes", "--patches", ".")
        assert str(bench.root) in (await codespace(bench, "grants", "list")).out


async def test_a_list_that_ends_before_what_is_held_says_so_and_how_the_rest_is_seen() -> None:
    async with open_bench(approvals="operator") as bench:
        await held(bench)
        assert (await codespace(bench, "approvals", "list")).err == ""
        with connect(bench.daemon.settings.database) as db:  # as several workspaces may hold
            (row,) = db.table("holds").rows
            more = [{**row, "id": f"appr-{n}", "fingerprint": f"{n}"} for n in range(limits.LIST_ROWS)]
            db.table("holds").insert_all(more)
        for words in ([], ["--json"]):
            said = await codespace(bench, "approvals", "list", *words)
            assert len(said.out.splitlines()) == limits.LIST_ROWS + (not words)
            assert f"the oldest {limits.LIST_ROWS} are listed; {limits.LIST_ROWS + 1} wait for a decision" in said.err
            assert "newer ones follow" in said.err


async def test_hostile_names_and_contents_act_on_no_terminal() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held(bench, PATCH.replace("CANARY", "\x1b]0;owned\x07\u202e"))
        for words in (("list",), ("show", hold), ("show", hold, "--json"), ("list", "--json")):
            out = (await codespace(bench, "approvals", *words)).out
            assert hold in out
            assert not set(out) & set("\x1b\x07\u202e")
        assert "⟨ESC⟩]0;owned⟨U+0007⟩⟨U+202E⟩" in (await codespace(bench, "approvals", "show", hold)).out


OVER = """*** Begin Patch
*** Delete File: nightly
*** Update File: tool.sh
*** Move to: nightly
@@
-echo tool
+echo night
*** End Patch"""


async def test_the_mode_that_a_patch_gives_a_file_is_shown_and_granted_with_it() -> None:
    async with open_bench(approvals="operator", files={"nightly": "echo night\n", "tool.sh": "echo tool\n"}) as bench:
        (bench.root / "tool.sh").chmod(0o755)
        hold = await held(bench, OVER)
        assert "update       nightly, mode 0644 -> 0755\n" in (await codespace(bench, "approvals", "show", hold)).out
        await codespace(bench, "approvals", "grant", hold, "--yes")
        (bench.root / "tool.sh").chmod(0o4755)  # in between
        with pytest.raises(Refusal) as refused:
            await bench.call("operation_resume", approval_id=hold)
        assert refused.value.code == "APPROVAL_CONFLICT"
        assert stat.S_IMODE((bench.root / "nightly").stat().st_mode) == 0o644


async def test_the_mode_that_an_undo_brings_back_is_shown() -> None:
    async with open_bench(approvals="confirm", files={"tool.sh": "echo tool\n"}) as bench:
        (bench.root / "tool.sh").chmod(0o4755)
        patch = "*** Begin Patch\n*** Delete File: tool.sh\n*** End Patch"
        hold = await held(bench, patch)
        await bench.call("approval_resolve", approval_id=hold, decision="grant")
        removed = (await bench.call("operation_resume", approval_id=hold))["apply_patch"]
        assert "mode" not in removed["changes"][0]
        with pytest.raises(Refusal) as caught:
            await bench.call("operation_undo", operation_id=removed["operation_id"])
        shown = (await codespace(bench, "approvals", "show", str(caught.value.approval_id))).out
        assert "add          tool.sh, mode 4755\n" in shown


async def test_a_mark_joins_no_sign_that_a_hold_is_shown_with() -> None:
    async with open_bench(approvals="operator") as bench:
        hold = await held_command(
            bench, command=["true"], env={"A": "\u0338b"}
        )  # joined to what is before it, it would make of `=` a `≠`
        shown = (await codespace(bench, "approvals", "show", hold)).out
        assert "variable     A=\\u0338b" in shown


async def test_a_watch_tells_of_a_hold_as_it_comes_and_ends_when_interrupted() -> None:
    async with open_bench(approvals="operator") as bench:
        first = await held(bench)
        command = [script(), "approvals", "watch", "--json"]
        watch = await trio.lowlevel.open_process(command, env=bench.site.environ, stdout=subprocess.PIPE)
        assert watch.stdout is not None
        async with watch.stdout:
            out = b""
            while out.count(b"\n") < 1:
                out += await watch.stdout.receive_some()
            second = await held(bench, PATCH.replace("new", "b"))
            while out.count(b"\n") < 2:
                out += await watch.stdout.receive_some()
            watch.send_signal(signal.SIGINT)
            assert await watch.wait() == 130
        assert [json.loads(line)["approval_id"] for line in out.splitlines()] == [first, second]


@pytest.mark.parametrize(
    "words",
    [
        ("approvals", "show", "appr-none"),
        ("approvals", "grant", "appr-none", "--yes"),
        ("approvals", "deny", "appr-none"),
        ("grants", "revoke", "grant-none"),
    ],
)
async def test_an_unknown_id_is_said_to_be_unknown(words: tuple[str, ...]) -> None:
    async with open_bench(approvals="operator") as bench:
        said = await codespace(bench, *words)
        assert said.code == 2
        assert said.err.startswith("codespace: APPROVAL_NOT_FOUND")
        assert ("list of grants" in said.err) is (words[0] == "grants")


async def test_commands_are_listed_while_they_run_and_on_request_after_it() -> None:
    async with open_bench() as bench:
        running = await bench.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
        assert running["process_id"] in (await codespace(bench, "processes", "list")).out
        await bench.call("terminate_process", process_id=running["process_id"])
        assert running["process_id"] not in (await codespace(bench, "processes", "list")).out
        assert running["process_id"] in (await codespace(bench, "processes", "list", "--all")).out


async def test_the_end_of_a_command_is_told_as_its_code_its_signal_or_what_ended_it() -> None:
    async with open_bench() as bench:
        ends = {"exit 3": "exit code 3", "kill -KILL $$": "signal SIGKILL"}
        for script, end in ends.items():
            ran = await bench.call("exec_command", command=["sh", "-c", script])
            told = (await codespace(bench, "processes", "list", "--all")).out
            (line,) = (line for line in told.splitlines() if ran["process_id"] in line)
            assert line.endswith(f"  {end}")


async def test_where_nothing_is_recorded_it_is_said_and_nothing_is_made() -> None:
    async with open_bench(approvals="operator") as bench:
        await bench.stop()
        for path in bench.site.state.glob("operations.sqlite*"):
            path.unlink()
        said = await codespace(bench, "approvals", "list")
        assert (said.code, "nothing has been recorded yet" in said.err) == (2, True)
        assert list(bench.site.state.glob("operations.sqlite*")) == []
