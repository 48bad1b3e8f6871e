"""Whoever is not the operator's own signed-in page gets nothing: other sites, rebound names, used links, programs."""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from playwright.sync_api import Page, expect

from codespace.testing.site import tree

from .conftest import Console, Open
from .test_holds import FILES, PATCH


@contextmanager
def evil_site(body: str) -> Iterator[int]:
    """Serve one page under any name of this machine; yield its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="evil")
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def attack(console: Console, hold: str) -> str:
    """Return a page that tries whatever a page can to have the hold granted."""
    target, fingerprint = f"{console.url}/holds/{hold}/grant", "0" * 64
    return f"""<!doctype html><iframe id=frame src="{console.url}/holds/{hold}"></iframe>
<form id=form method=post action="{target}" target=frame2>
<input name=fingerprint value="{fingerprint}"><input name=csrf value=""></form><iframe name=frame2></iframe>
<script>
const tried = [];
const attempt = (name, act) => tried.push(act().then((r) => name + " " + r, (e) => name + " failed"));
const body = new URLSearchParams({{ fingerprint: "{fingerprint}", csrf: "" }});
for (const mode of ["no-cors", "cors"])
  attempt(mode, () => fetch("{target}", {{ method: "POST", mode, credentials: "include", body }})
    .then((r) => r.type === "opaque" ? "opaque" : r.status));
attempt("read", () => fetch("{console.url}/holds/{hold}", {{ credentials: "include" }}).then((r) => r.text()));
attempt("events", () => new Promise((ok, no) => {{
  const source = new EventSource("{console.url}/events", {{ withCredentials: true }});
  source.onmessage = ok; source.onerror = () => {{ source.close(); no(); }};
}}));
document.getElementById("form").submit();
window.done = Promise.all(tried);
</script>"""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "evil.localhost", "codespace.localhost"])
def test_a_page_of_another_origin_can_neither_grant_nor_read_nor_frame(open_console: Open, name: str) -> None:
    with open_console(files=FILES) as console:
        hold = console.held("apply_patch", patch=PATCH)
        page = console.signed_in()
        with evil_site(attack(console, hold)) as port:
            answers: dict[str, int] = {}
            page.on("response", lambda got: got.request.method == "POST" and answers.update({got.url: got.status}))
            page.goto(f"http://{name}:{port}/")
            tried = page.evaluate("window.done")
            page.wait_for_load_state("networkidle")
            assert set(tried) - {"no-cors opaque"} == {
                "no-cors failed",
                "cors failed",
                "read failed",
                "events failed",
            } - ({"no-cors failed"} if "no-cors opaque" in tried else set())
            assert set(answers.values()) <= {403}
            frame = page.frames[1]
            assert "Grant" not in (frame.locator("body").inner_text() if frame.url.startswith("http://codesp") else "")
        assert console.state(hold) == "pending"
        assert set(tree(console.root)) == {"shop/cart.py"}
        page.goto(f"{console.url}/holds/{hold}")
        expect(page.get_by_role("button", name="Grant")).to_be_enabled()


def test_a_name_that_was_rebound_to_this_machine_gets_no_page(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        page = console.stranger()
        for host in ("rebound.example", "127.0.0.1", "localhost", "console.codespace.localhost"):
            answer = page.goto(f"http://{host}:{console.port}/console/sign-in")
            assert answer is not None
            assert answer.status == 421, host


def test_a_link_is_good_once_and_looking_at_it_takes_nothing(open_console: Open) -> None:
    with open_console() as console:
        link = console.link()
        first, second = console.stranger(), console.stranger()
        for page in (first, second):
            page.goto(link)
            expect(page.get_by_role("button", name="Sign in to this console")).to_be_visible()
        second.get_by_role("button", name="Sign in to this console").click()
        expect(second.get_by_role("heading", name="Held")).to_be_visible()
        first.get_by_role("button", name="Sign in to this console").click()
        expect(first.get_by_text("The link was used already")).to_be_visible()
        first.goto(f"{console.url}/holds")
        expect(first.get_by_text("You are not signed in.")).to_be_visible()


def test_the_cookie_is_for_no_script_and_no_other_site_and_ends_with_sign_out(open_console: Open) -> None:
    with open_console() as console:
        page = console.signed_in()
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
        assert cookie["domain"] == "codespace.localhost"
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_text("You are not signed in.")).to_be_visible()
        page.context.add_cookies([{**cookie}])  # type: ignore[typeddict-item]  # the same fields
        page.goto(f"{console.url}/holds")
        expect(page.get_by_text("You are not signed in.")).to_be_visible()


def test_no_program_without_a_session_or_a_forms_token_gets_anything(open_console: Open) -> None:
    with open_console(files=FILES) as console:
        hold = console.held("apply_patch", patch=PATCH)
        page = console.signed_in()
        (cookie,) = page.context.cookies()
        page.goto(f"{console.url}/holds/{hold}")
        csrf = page.locator("input[name=csrf]").first.input_value()
        fingerprint = page.locator("input[name=fingerprint]").input_value()
        form = {"csrf": csrf, "fingerprint": fingerprint}
        origin = {"Host": f"codespace.localhost:{console.port}", "Origin": console.url.removesuffix("/console")}
        session = {"Cookie": f"codespace={cookie['value']}"}
        path = f"/console/holds/{hold}/grant"
        with httpx2.Client(base_url=f"http://127.0.0.1:{console.port}", timeout=60) as program:
            refused = {
                "no session": program.post(path, data=form, headers=origin),
                "no token": program.post(path, data={**form, "csrf": ""}, headers=origin | session),
                "wrong token": program.post(path, data={**form, "csrf": "x"}, headers=origin | session),
                "no origin": program.post(path, data=form, headers={"Host": origin["Host"]} | session),
                "null origin": program.post(path, data=form, headers=origin | session | {"Origin": "null"}),
                "forwarded": program.post(path, data=form, headers=origin | session | {"X-Forwarded-For": "1.2.3.4"}),
                "json": program.post(path, json=form, headers=origin | session),
                "fingerprint": program.post(path, data={**form, "fingerprint": "0" * 64}, headers=origin | session),
                "other case": program.post(path.replace("console", "Console"), data=form, headers=origin | session),
            }
            assert {name: answer.status_code for name, answer in refused.items()} == {
                "no session": 401,
                "no token": 403,
                "wrong token": 403,
                "no origin": 403,
                "null origin": 403,
                "forwarded": 403,
                "json": 400,
                "fingerprint": 409,
                "other case": 421,
            }
            assert console.state(hold) == "pending"
            for page_path in ("holds", f"holds/{hold}", "operations", "processes", "works", "grants", "events"):
                assert program.get(f"/console/{page_path}", headers=origin).status_code == 401
            assert program.post(path, data=form, headers=origin | session).status_code == 303  # what was refused, works
        assert console.state(hold) == "granted"


def test_beside_stdio_only_the_console_is_served(open_console: Open) -> None:
    with open_console() as console, httpx2.Client(base_url=f"http://127.0.0.1:{console.port}", timeout=60) as program:
        for path in ("/mcp", "/inbox/works", "/inbox/approvals"):
            assert program.post(path).status_code in (401, 404)
        token = (console.site.state / "http-token").read_text().strip()
        assert program.post("/mcp", headers={"Authorization": f"Bearer {token}"}).status_code == 404


def test_every_page_forbids_frames_foreign_scripts_and_caches(open_console: Open) -> None:
    with open_console() as console:
        page: Page = console.signed_in()
        for path in ("holds", "workspaces", "static/console.js", "nothing", "holds/appr-none"):
            answer = page.goto(f"{console.url}/{path}")
            assert answer is not None
            headers = answer.headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
