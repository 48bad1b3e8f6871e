"""The HTTP door against pages, rebound names, forms and strangers, on the installed daemon."""

from __future__ import annotations

import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest

from codespace.testing.installed import HttpDaemon, over_http, script
from codespace.testing.site import Site

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDaemon]:
    site = Site(tmp_path_factory.mktemp("door"))
    site.add_workspace("main")
    with HttpDaemon(site) as daemon:
        yield daemon


@pytest.fixture
def authorized(daemon: HttpDaemon) -> dict[str, str]:
    return {**JSON_HEADERS, "Authorization": f"Bearer {daemon.token}"}


def post(daemon: HttpDaemon, headers: dict[str, str], **options: Any) -> int:
    return httpx2.post(daemon.url, headers=headers, **({"json": PING} | options), timeout=60).status_code


def test_a_foreign_page_a_rebound_name_and_a_form_post_do_nothing(
    daemon: HttpDaemon, authorized: dict[str, str]
) -> None:
    for origin in (
        "https://example.com",
        "null",
        f"http://evil.localhost:{daemon.port}",
        f"http://127.0.0.1:{daemon.port + 1}",
    ):
        assert post(daemon, {**authorized, "Origin": origin}) == 403, origin
    for host in ("example.com", f"example.com:{daemon.port}", "127.0.0.1:1", f"127.0.0.1.example.com:{daemon.port}"):
        assert post(daemon, {**authorized, "Host": host}) == 421, host
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert httpx2.post(daemon.url, headers=form, data={"jsonrpc": "2.0"}, timeout=60).status_code == 401
    plain = {**authorized, "Content-Type": "text/plain"}
    assert post(daemon, plain, json=None, content=b'{"jsonrpc":"2.0","id":1,"method":"ping"}') in (400, 406, 415)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "bearer", "Basic {}", "Bearer {}x", "{}"]
)
def test_without_the_right_token_nothing_is_said(daemon: HttpDaemon, header: str | None) -> None:
    headers = dict(JSON_HEADERS)
    if header is not None:
        headers["Authorization"] = header.format(daemon.token).strip()
    for path in ("/mcp", "/mcp/"):
        answer = httpx2.post(f"http://127.0.0.1:{daemon.port}{path}", headers=headers, json=PING, timeout=60)
        assert answer.status_code in (401, 404), path
        if answer.status_code == 401:
            assert answer.json() == {"error": "unauthorized"}


def test_health_is_told_to_everyone_and_nothing_more(daemon: HttpDaemon) -> None:
    answer = httpx2.get(f"http://127.0.0.1:{daemon.port}/healthz", timeout=60)
    assert answer.status_code == 200
    for secret in (daemon.token, str(daemon.site.folder), "main"):
        assert secret not in answer.text


async def test_strangers_leave_files_for_the_work_where_few_can_be_open(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace("main")
    with HttpDaemon(site) as daemon, ExitStack() as strangers:
        _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (100, hard))
        async with over_http(site, daemon.url, daemon.token) as visit:
            for _ in range(150):
                strangers.enter_context(socket.create_connection(("127.0.0.1", daemon.port), timeout=60))
            assert (await visit.call("exec_command", command=["true"]))["exit_code"] == 0
            patch = "*** Begin Patch\n*** Add File: new\n+new\n*** End Patch\n"
            assert (await visit.call("apply_patch", patch=patch))["status"] == "applied"


def test_other_paths_are_not_found_and_bodies_are_bounded(daemon: HttpDaemon, authorized: dict[str, str]) -> None:
    for path in ("/", "/inbox/../mcp/..", "/etc/passwd", "/mcp/../../x", "/%2e%2e/x"):
        assert httpx2.get(f"http://127.0.0.1:{daemon.port}{path}", headers=authorized, timeout=60).status_code in (
            400,
            404,
        )
    announced = {**authorized, "Content-Length": str(10**12)}
    connection = HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    connection.putrequest("POST", "/mcp")
    for name, value in announced.items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    assert connection.getresponse().status == 413
    connection.close()
    assert httpx2.get(f"http://127.0.0.1:{daemon.port}/healthz", timeout=60).status_code == 200


def test_an_open_address_without_a_token_is_refused_at_the_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace("main")
    for host, options in (("0.0.0.0", ["--no-auth"]), ("::", ["--no-auth"])):
        done = subprocess.run(
            [script(), "serve", "--http", *options],
            env={**site.environ, "CODESPACE_HTTP_HOST": host, "CODESPACE_HTTP_PORT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        said = done.stderr.decode()
        assert done.returncode not in (0, -9, -15), said
        assert "Traceback" not in said
        assert "token" in said.lower() or "loopback" in said.lower()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_address_that_is_bound_is_told_and_one_that_others_can_reach_warned_of(tmp_path: Path, host: str) -> None:
    site = Site(tmp_path)
    site.add_workspace("main")
    site.extra_environ["CODESPACE_HTTP_HOST"] = host
    with HttpDaemon(site) as daemon:
        pass
    assert f"bound={host}:{daemon.port}" in daemon.said
    assert f"url=http://127.0.0.1:{daemon.port}/mcp" in daemon.said
    assert ("other machines can connect, without TLS" in daemon.said) is (host == "0.0.0.0")


def test_a_failed_request_leaves_no_operation(daemon: HttpDaemon) -> None:
    call = {"name": "apply_patch", "arguments": {"patch": "x", "operation_key": "from a stranger"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    assert post(daemon, JSON_HEADERS, json=body) == 401
    database = b"".join(path.read_bytes() for path in daemon.site.state.glob("operations.sqlite*"))
    assert b"from a stranger" not in database
