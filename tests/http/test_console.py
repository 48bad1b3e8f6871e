"""The console of a whole daemon over its own door, read without a browser."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import httpx2
import pytest
import trio

from codespace import limits
from codespace.errors import Refusal
from codespace.http.console import Console
from codespace.http.exposure import console_host
from codespace.http.serve import serve_http
from codespace.http.signin import Tickets
from codespace.testing import Bench, open_bench

CHUNK = f" a\n--- old\n+++ b/README.md\n+@@ -1,9 +1,9 @@\n+{'-' * 99}\n b\n"
DISGUISED = f"*** Begin Patch\n*** Update File: q.sql\n@@\n{CHUNK}*** End Patch\n"
PAINTED = [
    ("file", "--- a/q.sql"),
    ("file", "+++ b/q.sql"),
    ("hunk", "@@ -1,3 +1,5 @@"),
    ("same", " a"),
    ("del", "--- old"),
    ("add", "+++ b/README.md"),
    ("add", "+@@ -1,9 +1,9 @@"),
    ("add", "+" + "-" * 99),
    ("same", " b"),
]
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+CANARY\n*** End Patch\n"
OPERATOR = "operator-token-of-a-test-0123456789"


@asynccontextmanager
async def signed_in(bench: Bench) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the console of the bench's daemon and sign in."""
    daemon, stop = bench.daemon, trio.Event()
    console = Console(
        operator=daemon.operator,
        inbox=daemon.inbox,
        tools=daemon.tools,
        kept_diff=daemon.kept_diff,
        tickets=Tickets(str(bench.site.state), time.time),
        operator_token=OPERATOR,
        stopping=stop,
    )
    serve = partial(serve_http, None, host="127.0.0.1", port=0, token="t" * 32, stop=stop, console=console)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve)
        name = console_host(address)
        async with httpx2.AsyncClient(base_url=f"http://{address.authority}/console", headers={"host": name}) as http:
            form = {"token": OPERATOR}
            answer = await http.post("/sign-in", data=form, headers={"origin": f"http://{name}"})
            assert answer.status_code == 303
            http.headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
            yield http
        stop.set()


async def test_another_token_than_the_operators_opens_no_session_and_is_told_as_one() -> None:
    async with open_bench() as bench, signed_in(bench) as http:
        del http.headers["cookie"]
        own = f"http://{http.headers['host']}"
        answer = await http.post("/sign-in", data={"token": "another"}, headers={"origin": own})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert "not the operator" in answer.text


async def test_who_is_not_signed_in_has_no_more_read_of_a_form_than_a_page_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_FORM_BYTES", 1000)
    async with open_bench() as bench, signed_in(bench) as http:
        del http.headers["cookie"]
        own = f"http://{http.headers['host']}"
        for size, status in ((limits.CONSOLE_FORM_BYTES, 403), (limits.CONSOLE_FORM_BYTES + 1, 413)):
            form = "token=".ljust(size, "x")
            kind = {"content-type": "application/x-www-form-urlencoded"}
            assert (await http.post("/sign-in", content=form, headers=kind | {"origin": own})).status_code == status


async def test_the_list_of_what_is_held_names_its_commands_and_files_and_counts_them() -> None:
    async with open_bench(approvals="operator") as bench, signed_in(bench) as http:
        for tool, asked in (("exec_command", {"command": ["echo", "words"]}), ("apply_patch", {"patch": PATCH})):
            with pytest.raises(Refusal):
                await bench.call(tool, **asked)
        page = (await http.get("/holds")).text
        assert [wanted for wanted in ("echo words", "new.txt", 'aria-live="polite">2<') if wanted not in page] == []
        assert "CANARY" not in page


async def test_the_page_of_a_held_patch_says_what_is_not_plain_about_its_place() -> None:
    update = "*** Begin Patch\n*** Update File: a<b>\n@@\n-one\n+two\n*** End Patch\n"
    async with (
        open_bench(files={"a<b>": "one\none\n"}, approvals="operator") as bench,
        signed_in(bench) as http,
    ):
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=update)
        page = (await http.get(f"/holds/{caught.value.approval_id}")).text
        assert "<p>a&lt;b&gt;, chunk 1: its lines stand at 2 places; the first, line 1, was taken</p>" in page


async def test_a_list_shows_no_more_of_what_an_agent_does_than_a_line() -> None:
    many = [f"{'x' * 50}/{number}" for number in range(100)]
    patch = "".join(f"*** Add File: {name}\n+1\n" for name in many)
    async with open_bench() as bench, signed_in(bench) as http:
        await bench.call("apply_patch", patch=f"*** Begin Patch\n{patch}*** End Patch\n")
        page = (await http.get("/operations")).text
        assert f"{many[0]}, {many[1]}"[: limits.CONSOLE_SUMMARY_CHARACTERS] in page
        assert many[2] not in page


async def test_the_list_of_processes_begins_with_what_runs_and_goes_on_with_the_newest() -> None:
    async with open_bench(workspace={"occupancy": "shared"}) as bench, signed_in(bench) as http:
        for word in ("first-ended", "it-runs", "last-ended"):
            script = "read line" if word == "it-runs" else ":"
            command = ["sh", "-c", script, word]
            await bench.call(
                "exec_command", command=command, open_stdin=True, wait_seconds=0 if "read" in script else 10
            )
        page = (await http.get("/processes")).text
        assert sorted(("first-ended", "it-runs", "last-ended"), key=page.index) == [
            "it-runs",
            "last-ended",
            "first-ended",
        ]


@pytest.mark.parametrize(("times", "encoding", "shown"), [(1, "text", "\ufffd"), (99, "base64", "\\xff" * 99)])
async def test_output_that_is_no_text_is_shown_as_what_it_is_on_its_page_and_as_it_comes(
    times: int, encoding: str, shown: str
) -> None:
    async with open_bench() as bench, signed_in(bench) as http:
        words = ["printf", r"rm -r <everything>\n" + r"\377" * times + r"\033[2J"]
        ran = await bench.call("exec_command", command=words)
        assert ran["encoding"] == encoding
        page = (await http.get(f"/processes/{ran['process_id']}")).text
        assert f"rm -r &lt;everything&gt;\n{shown}⟨ESC⟩[2J</pre>" in page
        stream = (await http.get(f"/processes/{ran['process_id']}/output?cursor=0")).text
        (told,) = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
        assert json.loads(told) == {"text": f"rm -r <everything>\n{shown}⟨ESC⟩[2J", "eof": True}


def painted(page: str) -> list[tuple[str, str]]:
    """Return the lines of the diff on a page, each with what it is shown as."""
    shown = page[page.index('<pre class="diff"') : page.index("</pre>")]
    return re.findall(r'<span class="(\w+)">([^\n]*)\n</span>', shown)


async def test_what_stands_in_a_file_is_not_shown_as_the_head_of_another() -> None:
    files = {"q.sql": "a\n-- old\nb\n"}
    async with open_bench(approvals="operator", files=files) as bench, signed_in(bench) as http:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=DISGUISED)
        assert painted((await http.get(f"/holds/{caught.value.approval_id}")).text) == PAINTED


@pytest.mark.parametrize("page_bytes", [40, 65_536])
async def test_a_page_that_begins_within_a_hunk_or_a_line_shows_what_each_line_is(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr(limits, "DIFF_PAGE_BYTES", page_bytes)
    async with open_bench(files={"q.sql": "a\n-- old\nb\n"}) as bench, signed_in(bench) as http:
        done = await bench.call("apply_patch", patch=DISGUISED)
        there, seen = f"/operations/{done['operation_id']}", list[tuple[str, str]]()
        while True:
            page = (await http.get(there)).text
            seen += painted(page)
            following = re.search(r'rel="next" href="/console([^"]+)"', page)
            if following is None:
                break
            there = following[1].replace("&amp;", "&")
    assert "".join(text for _, text in seen) == "".join(text for _, text in PAINTED)
    # A line longer than a page is shown in pieces, each as what its line is.
    assert [kind for kind, text in seen for _ in text] == [kind for kind, text in PAINTED for _ in text]


async def test_a_form_of_an_older_session_is_refused_with_what_the_operator_can_do() -> None:
    async with open_bench(approvals="operator") as bench, signed_in(bench) as http:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=PATCH)
        own = {"origin": f"http://{http.headers['host']}"}
        answer = await http.post(f"/holds/{caught.value.approval_id}/deny", data={"csrf": "older"}, headers=own)
        assert (answer.status_code, "Load the page again" in answer.text) == (403, True)
        assert "Ask the operator" not in answer.text


async def test_a_scope_that_is_not_to_be_had_is_shown_with_its_reason_before_anybody_asked_for_it() -> None:
    async with open_bench(approvals="operator") as bench, signed_in(bench) as http:
        with pytest.raises(Refusal) as caught:
            await bench.call("exec_command", command=["sh", "-c", "true"])
        page = (await http.get(f"/holds/{caught.value.approval_id}")).text
        assert "with any arguments it could do anything.)</small>" in page
        assert "Nothing was granted" not in page


async def test_each_hold_and_grant_says_which_directory_it_is_for() -> None:
    async with open_bench(approvals="operator") as bench, signed_in(bench) as http:
        with pytest.raises(Refusal) as caught:
            await bench.call("apply_patch", patch=PATCH)
        hold = str(caught.value.approval_id)
        for page in ("/holds", f"/holds/{hold}"):
            assert str(bench.root) in (await http.get(page)).text, page
        await bench.daemon.operator.grant(hold, by="the console", scope="patches", path=".")
        assert str(bench.root) in (await http.get("/grants")).text


async def test_a_command_in_a_directory_that_is_not_registered_here_is_listed_and_leads_to_its_record() -> None:
    async with open_bench() as bench, signed_in(bench) as http:
        environ = {"CODESPACE_OPERATIONS_DB": bench.daemon.settings.database}
        async with open_bench(environ=environ) as other:
            ran = await other.call("exec_command", command=["sleep", "1000"], wait_seconds=0)
            page = (await http.get("/processes")).text
            assert [wanted for wanted in (ran["process_id"], str(other.root)) if wanted not in page] == []
            record = await http.get(f"/operations/{ran['operation_id']}")
            assert (record.status_code, "/console/processes/proc-" in record.text) == (200, False)
        assert ran["process_id"] not in (await http.get("/processes")).text


async def test_a_database_that_cannot_be_read_is_told_on_every_page_and_none_fails() -> None:
    async with open_bench(approvals="operator") as bench, signed_in(bench) as http:
        assert (await http.get("/holds")).status_code == 200
        for path in bench.site.state.glob("operations.sqlite*"):
            path.write_bytes(b"\xff" * path.stat().st_size)
        for page in ("holds", "operations", "works", "processes", "grants"):
            answer = await http.get(f"/{page}")
            assert (answer.status_code, "STORE_UNAVAILABLE" in answer.text) == (503, True), page
        assert (await http.get("/workspaces")).status_code == 200


async def test_no_stranger_takes_the_place_of_a_browser_that_is_signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 3)
    async with (
        open_bench(approvals="operator") as bench,
        signed_in(bench) as http,
        http.stream("GET", "/events") as events,
        AsyncExitStack() as strangers,
    ):
        news = events.aiter_lines()
        assert await anext(news)
        for _ in range(3 * limits.HTTP_CONNECTIONS):
            connected = await trio.open_tcp_stream("127.0.0.1", http.base_url.port)
            stranger = await strangers.enter_async_context(connected)
            await stranger.send_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await stranger.receive_some()
        with pytest.raises(Refusal):
            await bench.call("apply_patch", patch=PATCH)
        with trio.fail_after(60):
            while '"pending": 1' not in await anext(news):
                pass


async def test_another_account_gets_no_page_whatever_cookie_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bench() as bench, signed_in(bench) as http:
        ask = "use IO::Socket::INET; $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[0]) or die; "
        ask += "print $s join '', <STDIN>; $s->flush; {behind} print <$s>"
        request = f"GET /console/holds HTTP/1.1\r\nHost: {http.headers['host']}\r\nConnection: close\r\n"
        request += f"Cookie: {http.headers['cookie']}\r\n\r\n"

        who = {"user": 61_234, "group": 61_234, "extra_groups": []} if os.geteuid() == 0 else {}
        theirs = 61_234 if who else os.geteuid()

        async def status(behind: str = "") -> int:
            argv = ["/usr/bin/perl", "-e", ask.format(behind=behind), str(http.base_url.port)]
            asking = partial(trio.run_process, argv, stdin=request.encode(), capture_stdout=True, **who)
            with trio.fail_after(60):
                return int((await asking()).stdout.split()[1])

        monkeypatch.setattr(os, "geteuid", lambda: theirs)
        assert await status() == 200
        monkeypatch.setattr(os, "geteuid", lambda: theirs + 1)
        assert await status() == 403
        assert await status("shutdown $s, 1;") == 403
