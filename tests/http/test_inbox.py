"""The inbox at the real door: who gets in, what a request may look like, and what the agent then sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest
import trio

from codespace import limits
from codespace.contract import Inbox
from codespace.errors import Refusal
from codespace.http.exposure import Address
from codespace.http.serve import serve_http
from codespace.protocol.server import build_server
from codespace.settings import SettingsError
from codespace.testing import Bench, open_bench
from codespace.testing.site import tree

TOKEN = "canary-token-of-clients-0123456789"
OPERATOR = "canary-token-of-the-operator-0123456789"
HOSTILE = "\x1b[2J\u202e</script>' OR 1=1 --"


@dataclass
class Desk:
    """A whole daemon with its HTTP door open, and the operator's client."""

    bench: Bench
    address: Address
    http: httpx2.AsyncClient

    def client(self, token: str | None, **headers: str) -> httpx2.AsyncClient:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return httpx2.AsyncClient(base_url=f"http://{self.address.authority}", headers=headers, timeout=60)

    async def ask(self, method: str, path: str, status: int = 200, **sent: Any) -> Any:
        """Send a request as the operator; return the JSON of its answer."""
        body = {"json": sent} if sent else {}
        answer = await self.http.request(method, f"/inbox/{path}", **body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def refused(self, method: str, path: str, status: int, code: str, **sent: Any) -> dict[str, Any]:
        body: dict[str, Any] = await self.ask(method, path, status, **sent)
        assert (body["code"], bool(body["message"]), bool(body["next_step"])) == (code, True, True)
        assert isinstance(body["retryable"], bool)
        assert not any(tool in body["next_step"] for tool in ("work_", "steer_"))  # the operator has none of these
        return body

    async def open(self, title: str = "t") -> str:
        return str((await self.bench.call("work_open", title=title))["work_id"])


@asynccontextmanager
async def open_desk(
    *, operator_token: str | None = OPERATOR, no_auth: bool = False, **options: Any
) -> AsyncIterator[Desk]:
    environ = {} if operator_token is None else {"CODESPACE_OPERATOR_TOKEN": operator_token}
    async with open_bench(environ=environ, **options) as bench, trio.open_nursery() as nursery:
        stop = trio.Event()
        daemon = bench.daemon
        serve = partial(
            serve_http,
            partial(build_server, daemon.tools, version="0", transport="http", exposed=daemon.exposed),
            host="127.0.0.1",
            port=0,
            token=None if no_auth else TOKEN,
            stop=stop,
            no_auth=no_auth,
            operator_token=daemon.settings.operator_token,
            inbox=daemon.inbox,
            operator=daemon.operator,
        )
        address = await nursery.start(serve)
        desk = Desk(bench, address, httpx2.AsyncClient())
        await desk.http.aclose()
        async with desk.client(operator_token) as desk.http:
            yield desk
        stop.set()


ROUTES = [
    ("GET", "works"),
    ("GET", "works/{work}"),
    ("GET", "works/{work}/intents"),
    ("POST", "works/{work}/intents"),
    ("PATCH", "intents/{intent}"),
    ("POST", "intents/{intent}/queue"),
    ("POST", "intents/{intent}/cancel"),
    ("POST", "works/{work}/reorder"),
    ("POST", "works/{work}/stop"),
]


# --- who gets in ---


async def test_only_the_operators_token_opens_any_route_and_it_opens_nothing_else() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        intent = (await desk.ask("POST", f"works/{work}/intents", 201, text="one"))["intent_id"]
        before = await desk.ask("GET", f"works/{work}/intents")
        for token in (None, TOKEN, OPERATOR[:-1], OPERATOR + "x", "Bearer"):
            async with desk.client(token) as stranger:
                for method, path in ROUTES:
                    url = f"/inbox/{path.format(work=work, intent=intent)}"
                    answer = await stranger.request(method, url, json={"text": "mine", "revision": 1})
                    assert (answer.status_code, answer.json()) == (401, {"error": "unauthorized"}), (token, url)
        async with desk.client(OPERATOR) as operator:
            assert (await operator.post("/mcp", json={})).status_code == 401
            assert (await operator.get("/nothing")).status_code == 401
        assert await desk.ask("GET", f"works/{work}/intents") == before


@pytest.mark.parametrize("no_auth", [False, True])
async def test_without_an_operator_token_there_is_no_inbox_and_no_tool_for_works(no_auth: bool) -> None:
    async with open_desk(operator_token=None, no_auth=no_auth) as desk:
        for token in (None, TOKEN, OPERATOR):
            async with desk.client(token) as client:
                for method, path in ROUTES:
                    answer = await client.request(method, f"/inbox/{path.format(work='work-1', intent='int-1')}")
                    assert answer.status_code == 404
        names = [tool.name for tool in (await desk.bench.client.list_tools()).tools]
        assert not {"work_open", "steer_claim_next", "work_finish"} & set(names)


async def test_a_door_without_a_token_for_clients_still_wants_the_operators() -> None:
    async with open_desk(no_auth=True) as desk:
        assert (await desk.ask("GET", "works")) == {"works": []}
        async with desk.client(None) as anyone:
            assert (await anyone.get("/inbox/works")).status_code == 401
        async with desk.client(OPERATOR, forwarded="for=192.0.2.1") as carried:
            assert (await carried.get("/inbox/works")).status_code == 403


@pytest.mark.parametrize(
    "path", ["//inbox/works", "/./inbox/works", "/x/../inbox/works", "/%2e/inbox/works", "/INBOX/works"]
)
async def test_no_other_spelling_of_the_path_opens_it_for_clients(path: str) -> None:
    async with open_desk() as desk:
        stream = await trio.open_tcp_stream("127.0.0.1", desk.address.port)
        async with stream:
            head = f"GET {path} HTTP/1.1\r\nhost: {desk.address.authority}\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
            await stream.send_all(head.encode())
            status = int((await stream.receive_some()).split(b" ", 2)[1])
        assert status in (308, 401, 404)  # a redirect leads to the guarded name


async def test_pages_of_other_origins_rebound_names_and_forms_do_nothing() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        url = f"/inbox/works/{work}/intents"
        for headers, status in (
            ({"origin": "https://example.com"}, 403),
            ({"origin": "null"}, 403),
            ({"host": f"example.com:{desk.address.port}"}, 421),
        ):
            async with desk.client(OPERATOR, **headers) as page:
                assert (await page.post(url, json={"text": "x"})).status_code == status
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = await desk.http.post(url, content=b'{"text": "x"}', headers={"content-type": kind})
            assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
        assert (await desk.ask("GET", f"works/{work}/intents"))["intents"] == []


async def test_one_token_for_both_is_refused_before_anything_listens() -> None:
    with pytest.raises(SettingsError, match="OPERATOR_TOKEN"):
        await serve_http(
            lambda: None,  # type: ignore[arg-type, return-value]  # never asked
            host="127.0.0.1",
            port=0,
            token=TOKEN,
            stop=trio.Event(),
            operator_token=TOKEN,
        )


# --- what a request may look like ---


@pytest.mark.parametrize(
    ("sent", "argument"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": 1}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x" * (limits.INTENT_TEXT_CHARACTERS + 1)}, "text"),
        ({"text": "x", "kind": "stop_notice"}, "kind"),
        ({"text": "x", "delivery": "now"}, "delivery"),
        ({"text": "x", "delivery": ["next_work"]}, "delivery"),
        ({"text": "x", "approved": True}, "approved"),
        ({"text": "x", "Text": "y"}, "Text"),
        ({"text": "x", "\x1b[2J": 1}, "\\x1b[2J"),
        ({"text": "x", "supersedes": 5}, "supersedes"),
    ],
)
async def test_a_wrong_or_unknown_key_is_named_and_nothing_is_stored(sent: dict[str, Any], argument: str) -> None:
    async with open_desk() as desk:
        work = await desk.open()
        answer = await desk.http.post(f"/inbox/works/{work}/intents", json=sent)
        body = answer.json()
        assert (answer.status_code, body["code"], body["details"]) == (400, "INVALID_ARGUMENT", {"argument": argument})
        assert (await desk.ask("GET", f"works/{work}/intents"))["intents"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b'{"text": "x", "text": "y"}',
        b'{"text": NaN}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"text": "\\ud800"}',
        b'{"text": "x"} {}',
    ],
    ids=range(9),
)
async def test_a_body_that_is_not_one_json_object_is_refused(body: bytes) -> None:
    async with open_desk() as desk:
        work = await desk.open()
        url = f"/inbox/works/{work}/intents"
        answer = await desk.http.post(url, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
        assert (await desk.ask("GET", f"works/{work}/intents"))["intents"] == []


async def test_a_body_over_its_limit_is_too_large_and_the_longest_text_is_not() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        url = f"/inbox/works/{work}/intents"
        answer = await desk.http.post(url, json={"text": "x" * limits.INBOX_BODY_BYTES})
        assert (answer.status_code, answer.json()) == (413, {"error": "the request body is too large"})
        longest = "\u202e" * limits.INTENT_TEXT_CHARACTERS
        assert (await desk.http.post(url, json={"text": longest})).status_code == 201


async def test_every_refusal_has_a_fitting_status_and_the_body_of_the_contract() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        await desk.refused("GET", "works/work-1", 404, "WORK_NOT_FOUND")
        await desk.refused("POST", "intents/int-1/queue", 404, "INTENT_NOT_FOUND")
        intent = (await desk.ask("POST", f"works/{work}/intents", 201, text="a"))["intent_id"]
        other = await desk.open()
        await desk.refused("POST", f"works/{other}/reorder", 404, "INTENT_NOT_FOUND", intent_ids=[intent])
        await desk.refused("POST", f"works/{other}/intents", 404, "INTENT_NOT_FOUND", text="b", supersedes=intent)
        await desk.refused("PATCH", f"intents/{intent}", 400, "INVALID_ARGUMENT", revision=1)
        await desk.refused("PATCH", f"intents/{intent}", 400, "INVALID_ARGUMENT", text="b")
        body = await desk.refused("PATCH", f"intents/{intent}", 409, "INTENT_REVISION_CONFLICT", revision=2, text="b")
        assert body["details"] == {"expected": 2, "actual": 1}
        await desk.refused("POST", f"intents/{intent}/cancel", 409, "INTENT_REVISION_CONFLICT", revision=7)
        await desk.ask("POST", f"intents/{intent}/queue")
        await desk.bench.call("steer_claim_next", work_id=work)
        await desk.refused("PATCH", f"intents/{intent}", 409, "INTENT_ALREADY_CLAIMED", revision=1, text="b")
        await desk.bench.call("steer_complete", work_id=work, intent_id=intent, outcome="done")
        await desk.refused("POST", f"intents/{intent}/cancel", 409, "INTENT_NOT_EDITABLE")
        await desk.bench.call("work_finish", work_id=work)
        await desk.refused("POST", f"works/{work}/intents", 409, "WORK_CLOSED", text="c")
        for method, path, status in (("GET", "nothing", 404), ("DELETE", f"works/{work}", 405), ("GET", "", 404)):
            answer = await desk.http.request(method, f"/inbox/{path}")
            assert (answer.status_code, list(answer.json())) == (status, ["error"])


async def test_a_fault_of_the_program_is_told_without_a_traceback() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        del desk.bench.daemon.inbox._store  # type: ignore[attr-defined]
        body = await desk.refused("GET", f"works/{work}/intents", 500, "INTERNAL")
        assert "_store" not in json.dumps(body)


# --- what comes of it ---


async def test_the_daemons_inbox_is_the_port_of_the_contract() -> None:
    async with open_desk() as desk:
        inbox: Inbox = desk.bench.daemon.inbox
        assert {name for name in vars(Inbox) if not name.startswith("_")} <= set(dir(inbox))


async def test_hostile_words_come_back_as_they_were_and_act_on_no_terminal() -> None:
    async with open_desk() as desk:
        work = await desk.open("plain </script> title")
        await desk.ask("POST", f"works/{work}/intents", 201, text=HOSTILE)
        answer = await desk.http.get(f"/inbox/works/{work}/intents")
        assert answer.content.isascii()
        assert answer.text.rstrip("\n").isprintable()
        assert answer.json()["intents"][0]["text"] == HOSTILE
        assert answer.headers["content-type"] == "application/json"
        assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")


async def test_an_operator_steers_an_agent_from_draft_to_done() -> None:
    async with open_desk() as desk:
        work = await desk.open("build it")
        first = await desk.ask("POST", f"works/{work}/intents", 201, text="use tabs")
        assert (first["state"], first["kind"], first["delivery"], first["revision"]) == (
            "draft",
            "follow_up",
            "after_current_work",
            1,
        )
        second = await desk.ask("POST", f"works/{work}/intents", 201, text="say hello", kind="note")
        edited = await desk.ask("PATCH", f"intents/{first['intent_id']}", revision=1, text="use spaces")
        assert (edited["revision"], edited["text"]) == (2, "use spaces")
        assert (await desk.bench.call("steer_status", work_id=work))["queued"] == 0
        for intent in (first, second):
            await desk.ask("POST", f"intents/{intent['intent_id']}/queue")
        names = [second["intent_id"], first["intent_id"]]
        moved = await desk.ask("POST", f"works/{work}/reorder", intent_ids=names)
        assert [each["intent_id"] for each in moved["intents"]] == names

        ran = await desk.bench.call("exec_command", command=["true"], work_id=work, wait_seconds=20)
        assert ran["coordination"] == {"queued": 2, "claimed": 0}
        told = [(await desk.bench.call("steer_claim_next", work_id=work)).get("intent")]
        assert (told[0]["text"], told[0]["kind"]) == ("say hello", "note")
        assert (await desk.bench.call("work_finish", work_id=work))["reason"] == "pending_user_input"
        complete = partial(desk.bench.call, "steer_complete", work_id=work)
        await complete(intent_id=second["intent_id"], outcome="done")
        assert (await desk.bench.call("steer_claim_next", work_id=work))["intent"]["text"] == "use spaces"
        await complete(intent_id=first["intent_id"], outcome="blocked", note="there is no file")
        quiet = await desk.bench.call("exec_command", command=["true"], work_id=work, wait_seconds=20)
        assert "coordination" not in quiet
        assert (await desk.bench.call("work_finish", work_id=work))["closed"] is True
        listed = (await desk.ask("GET", f"works/{work}/intents"))["intents"]
        assert [(each["state"], each.get("note")) for each in listed] == [
            ("done", None),
            ("blocked", "there is no file"),
        ]
        shown = (await desk.ask("GET", "works"))["works"][0]
        assert (shown["title"], shown["state"]) == ("build it", "closed")


async def test_a_stop_ends_what_runs_in_the_workspace_and_nothing_new_starts_in_the_work() -> None:
    others = {"other": {"profile": "workspace-write"}}
    async with open_desk(occupancy="shared", others=others) as desk:
        call = desk.bench.call
        work = str((await call("work_open", workspace_id="main", title="t"))["work_id"])
        sleep = {"command": ["sleep", "600"], "wait_seconds": 0}
        mine = await call("exec_command", workspace_id="main", work_id=work, **sleep)
        beside = await call("exec_command", workspace_id="main", **sleep)
        elsewhere = await call("exec_command", workspace_id="other", **sleep)
        with trio.fail_after(30):
            told = await desk.ask("POST", f"works/{work}/stop", text="enough")
        assert (told["state"], told["notice"]["text"], told["commands_ended"]) == ("closing", "enough", True)
        states = [
            (await call("process_status", process_id=each["process_id"]))["state"] for each in (mine, beside, elsewhere)
        ]
        assert states == ["exited", "exited", "running"]
        for tool, arguments in (("exec_command", {"command": ["true"]}), ("apply_patch", {"patch": "x"})):
            answer = await desk.bench.client.call_tool(tool, {"workspace_id": "main", "work_id": work, **arguments})
            assert json.loads(answer.content[0].text)["code"] == "WORK_CLOSED"  # type: ignore[union-attr]
        notice = (await call("steer_claim_next", work_id=work))["intent"]
        assert (notice["kind"], notice["text"]) == ("stop_notice", "enough")
        await call("steer_complete", work_id=work, intent_id=notice["intent_id"], outcome="done")
        assert (await call("work_finish", work_id=work))["closed"] is True


async def test_what_was_granted_for_a_work_is_not_run_after_its_stop() -> None:
    async with open_desk(approvals="confirm") as desk:
        work = await desk.open()
        patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"
        for tool, arguments in (("apply_patch", {"patch": patch}), ("exec_command", {"command": ["touch", "b.txt"]})):
            with pytest.raises(Refusal) as caught:
                await desk.bench.call(tool, work_id=work, **arguments)
            approval_id = str(caught.value.approval_id)
            await desk.bench.call("approval_resolve", approval_id=approval_id, decision="grant")
            await desk.ask("POST", f"works/{work}/stop")
            with pytest.raises(Refusal) as caught:
                await desk.bench.call("operation_resume", approval_id=approval_id)
            assert caught.value.code == "WORK_CLOSED"
            ahead = {"workspace_id": "main", "work_id": work, **arguments}
            with pytest.raises(Refusal) as caught:
                await desk.bench.call("approval_create", tool=tool, arguments=ahead)
            assert caught.value.code == "WORK_CLOSED"
            work = await desk.open()
        assert tree(desk.bench.root) == {}


async def test_a_repeated_key_is_answered_whatever_became_of_its_work() -> None:
    async with open_desk() as desk:
        work = await desk.open()
        patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** End Patch\n"
        first = await desk.bench.call("apply_patch", patch=patch, operation_key="k", work_id=work)
        await desk.bench.call("work_finish", work_id=work)
        again = await desk.bench.call("apply_patch", patch=patch, operation_key="k", work_id=work)
        assert (again["replayed"], again["operation_id"]) == (True, first["operation_id"])


async def test_works_and_intents_are_there_after_a_restart_and_their_texts_are_in_no_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with open_desk() as desk:
        work = await desk.open("CANARY title")
        intent = (await desk.ask("POST", f"works/{work}/intents", 201, text="CANARY text"))["intent_id"]
        await desk.ask("POST", f"intents/{intent}/queue")
        await desk.bench.restart()
        claimed = await desk.bench.call("steer_claim_next", work_id=work)
        assert claimed["intent"]["text"] == "CANARY text"
        shown = await desk.bench.daemon.inbox.work(work_id=work)
        assert (shown["title"], shown["claimed"]) == ("CANARY title", 1)
    said = "".join(capfd.readouterr())
    assert "CANARY" not in said
    assert OPERATOR not in said
