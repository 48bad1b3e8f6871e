"""Attacks on the way out, by programs as they are, inside a network namespace whose only way is the door.

The door is the product's; behind it is a street (tests/helper/street.py) with public addresses and a
resolver of its own, so that every look-up and every connection is counted.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from codespace.contract import Domain
from codespace.runner.network.decisions import Decisions
from codespace.runner.network.proxy import Proxy
from codespace.sandbox.listener import listen
from codespace.sandbox.proxyenv import proxy_environment

from ..helper.street import OK, PUBLIC, SECONDS, Street, replies, street
from ..helper.test_proxy_tunnel import AUTHORITY, secure
from .test_listener import WAYS, innermost

AUTHORITY_FILE = "/run/authority.pem"
"""Where a run finds the certificate of those who vouch for the street's servers."""
GATE = ("/bin/sh", "-c", 'echo up; read -r go; exec "$@"', "gate")
FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=60).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.reason, error.read().decode())
    except OSError as error:
        print(error)
"""


class Run:
    """One command behind a gate, in a network of its own."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        self.listener = listen(innermost(program.pid))

    async def go(self) -> str:
        """Open the gate and return what the command said, on either stream."""
        with trio.fail_after(SECONDS):
            said, _ = await trio.to_thread.run_sync(self.program.communicate, "go\n")
        return said


def start(*command: str, env: Mapping[str, str] | None = None) -> Run:
    """Set up a run; it does nothing before `go`."""
    with tempfile.TemporaryFile() as vouching:
        vouching.write(AUTHORITY.cert_pem.bytes())
        vouching.seek(0)
        inside = ("--tmpfs", "/run", "--ro-bind-data", str(vouching.fileno()), AUTHORITY_FILE)
        program = subprocess.Popen(
            [*WAYS["bwrap"], *inside, *GATE, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/bin:/bin", **(proxy_environment() if env is None else env)},
            pass_fds=(vouching.fileno(),),
        )
    return Run(program)


@asynccontextmanager
async def running(
    *command: str, rules: tuple[str | Mapping[str, Any], ...], env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Run, Street]]:
    """A run and the street behind its door."""
    run = start(*command, env=env)
    try:
        async with street(*rules, listener=run.listener) as town:
            yield run, town
    finally:
        run.program.kill()
        with run.program:
            pass


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-c", code, *arguments)


async def test_a_listed_name_is_reached_by_http_and_an_unlisted_one_says_why_not() -> None:
    fetch = python(FETCH, "http://listed.example/", "http://evil.example/")
    async with running(*fetch, rules=("listed.example",)) as (run, town):
        house = await town.host("listed.example", replies(OK))
        evil = await town.host("evil.example", replies(OK), address="1.1.1.1")
        said = await run.go()
        assert said.startswith("hi\n403 CodeSpace: evil.example:80 is not in allowed_domains.")
        assert 'the operator would add "evil.example"' in said
        assert (house.connections, evil.connections, dict(town.lookups)) == (1, 0, {"listed.example": 1})


async def test_a_listed_name_is_reached_by_tls_and_the_refusal_of_another_is_seen() -> None:
    ssl_fetch = "import os, sys; os.environ['SSL_CERT_FILE'] = sys.argv.pop(1)\n" + FETCH
    fetch = python(ssl_fetch, AUTHORITY_FILE, "https://listed.example/", "https://evil.example/")
    async with running(*fetch, rules=("listed.example",)) as (run, town):
        house = await town.host("listed.example", secure("listed.example"), port=443)
        said = await run.go()
        assert said.startswith("hi\n")
        assert "403 CodeSpace: evil.example:443 is not in allowed_domains." in said
        assert house.connections == 1


NO_ROUTE = """
import socket, sys
port = int(sys.argv[1])
for kind, address in (("TCP", ("1.1.1.1", 443)), ("TCP", ("127.0.0.1", port)), ("UDP", ("1.1.1.1", 53))):
    with socket.socket(type=socket.SOCK_STREAM if kind == "TCP" else socket.SOCK_DGRAM) as asking:
        try:
            asking.settimeout(5)
            asking.connect(address)
            asking.send(b"x")
            print("reached", address)
        except OSError as error:
            print("no way", error.errno)
try:
    print("reached", socket.getaddrinfo("listed.example", 80))
except OSError:
    print("no name")
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname()).close()
    print("own loopback works")
"""


async def test_a_program_that_does_not_ask_the_proxy_has_no_way_at_all() -> None:
    sentinel = socket.create_server(("127.0.0.1", 0))
    with sentinel:
        sentinel.setblocking(False)
        command = python(NO_ROUTE, str(sentinel.getsockname()[1]))
        async with running(*command, rules=("*",), env={}) as (run, town):
            said = await run.go()
            assert said.splitlines() == ["no way 101", "no way 111", "no way 101", "no name", "own loopback works"]
            assert town.decisions == []
        with pytest.raises(BlockingIOError):
            sentinel.accept()
        socket.create_connection(sentinel.getsockname()).close()  # and it could be reached from here
        sentinel.accept()[0].close()


async def test_addresses_and_names_that_lead_inside_are_refused_and_nothing_is_dialled() -> None:
    inside = {"loop.example": "127.0.0.1", "lan.example": "192.168.1.1", "meta.example": "169.254.169.254"}
    inside["mapped.example"] = "::ffff:10.0.0.1"
    urls = [f"http://{name}/" for name in inside]
    urls += [f"http://{text}/" for text in ("2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "169.254.169.254")]
    environment = {**proxy_environment(), "no_proxy": "", "NO_PROXY": ""}
    async with running(*python(FETCH, *urls), rules=("*",), env=environment) as (run, town):
        houses = [await town.host(name, replies(OK), address=address) for name, address in inside.items()]
        said = await run.go()
        assert said.count("403 CodeSpace: ") == len(urls)
        assert (sum(house.connections for house in houses), town.dials) == (0, [])
        assert {told.code for told in town.decisions} == {"not-global", "address-literal"}


async def test_a_resolver_that_changes_its_mind_is_asked_once() -> None:
    async with running(*python(FETCH, "http://flip.example/"), rules=("*",)) as (run, town):
        await town.host("flip.example", replies(OK))
        inside = await town.build("127.0.0.1", 80, replies(OK))
        town.names["flip.example"] = [[PUBLIC], ["127.0.0.1"]]
        assert await run.go() == "hi\n"
        assert (town.lookups["flip.example"], town.dials, inside.connections) == (1, [(PUBLIC, 80)], 0)


async def test_a_redirect_to_an_unlisted_name_is_refused() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
    async with running(*python(FETCH, "http://listed.example/"), rules=("listed.example",)) as (run, town):
        await town.host("listed.example", replies(redirect))
        evil = await town.host("evil.example", replies(OK), address="1.1.1.1")
        assert "403 CodeSpace: evil.example:80 is not in allowed_domains." in await run.go()
        assert (evil.connections, [told.host for told in town.decisions]) == (0, ["listed.example", "evil.example"])


FRONTING = """
import os, socket, ssl, sys
for name in sys.argv[2:]:
    asking = socket.create_connection(("127.0.0.1", 3128), timeout=60)
    asking.sendall(b"CONNECT listed.example:443 HTTP/1.1\\r\\nHost: listed.example\\r\\n\\r\\n")
    print(asking.recv(4096).split(b"\\r\\n")[0].decode())
    try:
        with ssl.create_default_context(cafile=sys.argv[1]).wrap_socket(asking, server_hostname=name) as tls:
            tls.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            print("answer", tls.recv(4096)[-2:].decode())
    except ssl.SSLError as error:
        print("refused", error.reason)
"""


async def test_a_tunnel_for_a_listed_name_carries_no_other_server_name() -> None:
    command = python(FRONTING, AUTHORITY_FILE, "listed.example", "evil.example")
    async with running(*command, rules=("listed.example",)) as (run, town):
        await town.host("listed.example", secure("listed.example"), port=443)
        said = (await run.go()).splitlines()
        opened = "HTTP/1.1 200 Connection established"
        assert said[:3] == [opened, "answer hi", opened]
        assert "UNRECOGNIZED_NAME" in said[3]
        assert [told.code for told in town.decisions] == ["listed", "other-server-name"]


EVERYDAY = {
    "curl": "-sS --cacert {authority} https://listed.example/ http://listed.example/",
    "git": "-c http.sslCAInfo={authority} ls-remote https://listed.example/x.git",
    "npm": "view x version --cafile={authority} --registry=https://listed.example/ --fetch-retries=0",
}


@pytest.mark.parametrize("program", EVERYDAY)
async def test_everyday_programs_find_the_way_by_themselves(program: str) -> None:
    assert shutil.which(program), f"{program} is not here; .ci/run installs it"
    environment = {**proxy_environment(), "HOME": "/run", "npm_config_cache": "/run/npm"}
    command = (program, *EVERYDAY[program].format(authority=AUTHORITY_FILE).split())
    package = b'{"name":"x","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"x","version":"1.2.3"}}}'
    answers = {
        "git": b"001e# service=git-upload-pack\n0000" + _packet(b"%b HEAD\n" % (b"1" * 40)) + b"0000",
        "npm": package,
        "curl": b"hi",
    }
    kinds = {"git": b"application/x-git-upload-pack-advertisement", "npm": b"application/json", "curl": b"text/plain"}
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kinds[program],
        len(answers[program]),
        answers[program],
    )
    async with running(*command, rules=("listed.example",), env=environment) as (run, town):
        await town.host("listed.example", replies(answer))
        await town.host("listed.example", secure("listed.example", answer), port=443)
        said = await run.go()
        assert {"git": "1" * 40, "npm": "1.2.3", "curl": "hihi"}[program] in said
        assert {(told.host, told.code) for told in town.decisions} == {("listed.example", "listed")}


def _packet(line: bytes) -> bytes:
    return b"%04x%b" % (len(line) + 4, line)


async def test_two_runs_have_doors_of_their_own() -> None:
    fetch = python(FETCH, "http://listed.example/")
    async with (
        running(*fetch, rules=("listed.example",)) as (first, town),
        running(*fetch, rules=()) as (second, other),
    ):
        await town.host("listed.example", replies(OK))
        await other.host("listed.example", replies(OK))
        assert await first.go() == "hi\n"
        assert "403 CodeSpace: " in await second.go()
        assert (len(town.decisions), len(other.decisions)) == (1, 1)


async def test_the_real_program_keeps_a_real_run_to_its_list_and_ends_with_it() -> None:
    """The same without a street: the proxy as a process, the system's resolver, a pinned server."""
    program = Proxy()
    async with trio.open_nursery() as nursery:
        try:

            async def talk(stream: trio.SocketStream) -> None:
                async with stream:
                    await stream.receive_some()
                    await stream.send_all(OK)

            (sentinel,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, talk, [sentinel])
            port = sentinel.socket.getsockname()[1]
            urls = [f"http://{host}:{port}/" for host in ("db.internal", "localhost", "evil.example")]
            run = start(*python(FETCH, *urls), env={**proxy_environment(), "no_proxy": "", "NO_PROXY": ""})
            with run.program:
                kept = Decisions()
                rules = [Domain("db.internal", port, "127.0.0.1"), Domain("localhost", port)]
                door = await program.open(rules, run.listener)
                said = await run.go()
                await door.close(kept.add)
            assert said.startswith("hi\n403 CodeSpace: localhost:")
            assert [(row["host"], row["allowed"], row["code"]) for row in kept.rows()] == [
                ("db.internal", True, "listed"),
                ("localhost", False, "not-global"),
                ("evil.example", False, "not-listed"),
            ]
        finally:
            await program.aclose()
        nursery.cancel_scope.cancel()
