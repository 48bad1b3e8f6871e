"""npm in the sandbox, with its registry pinned: install from it and nowhere else, then run what was installed.

The registry is a few lines on the host's loopback, which nothing but a pin can reach.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from codespace.testing import Bench, open_bench

SECONDS = 90.0
NPM = ("--no-audit", "--no-fund", "--fetch-retries=0", "--loglevel=error")
BIN = "#!/usr/bin/env node\nconsole.log('hello from ' + require('os').hostname() + ' ' + process.cwd())\n"
MANIFEST = {"name": "greet", "version": "1.0.0", "bin": {"greet": "cli.js"}}


def tarball() -> bytes:
    """Return the one package."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text, mode in (("package.json", json.dumps(MANIFEST), 0o644), ("cli.js", BIN, 0o755)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


class Registry:
    """A package registry with one package; notes who asked for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0
        self._tarball = tarball()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._answer, [listener])

    @property
    def address(self) -> str:
        return f"http://registry.test:{self.port}"

    async def _answer(self, visitor: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            block = await visitor.receive_some()
            if not block:
                return
            head += block
        path = head.split(b" ")[1].decode()
        self.asked.append(path)
        kind, body = self._page(path)
        status = b"200 OK" if body else b"404 Not Found"
        await visitor.send_all(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, kind, len(body), body)
        )
        await visitor.send_eof()

    def _page(self, path: str) -> tuple[bytes, bytes]:
        if path == "/greet":
            digest = base64.b64encode(hashlib.sha512(self._tarball).digest()).decode()
            dist = {"tarball": f"{self.address}/greet/-/greet-1.0.0.tgz", "integrity": f"sha512-{digest}"}
            versions = {"1.0.0": {**MANIFEST, "dist": dist}}
            return b"application/json", json.dumps(
                {"name": "greet", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
            ).encode()
        return b"application/octet-stream", self._tarball if path == "/greet/-/greet-1.0.0.tgz" else b""


@asynccontextmanager
async def project() -> AsyncIterator[tuple[Bench, Registry]]:
    """A workspace that depends on the package, and the registry behind its one door."""
    assert shutil.which("npm"), "npm is not here; .ci/run installs it"
    registry = Registry()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(registry.serve)
            pin = {"host": "registry.test", "port": registry.port, "address": "127.0.0.1"}
            package = {"name": "app", "version": "1.0.0", "scripts": {"hello": "greet"}}
            files = {
                "package.json": json.dumps(package | {"dependencies": {"greet": "^1.0.0"}}),
                ".npmrc": f"registry={registry.address}/\n",
            }
            async with open_bench(files=files, workspace={"network": "enabled", "allowed_domains": [pin]}) as bench:
                yield bench, registry
            nursery.cancel_scope.cancel()


async def run(bench: Bench, *command: str) -> dict[str, Any]:
    ran = await bench.call("exec_command", command=list(command), wait_seconds=50)
    assert ran["sandbox"] == "linux-sandbox"
    return ran


async def test_a_package_is_installed_from_the_pinned_registry_and_its_program_runs() -> None:
    async with project() as (bench, registry):
        installed = await run(bench, "npm", "install", *NPM)
        assert installed["exit_code"] == 0, installed["chunk"]
        assert "/greet/-/greet-1.0.0.tgz" in registry.asked
        (decision,) = installed["network"]["decisions"]
        assert (decision["host"], decision["allowed"]) == ("registry.test", True)
        assert (bench.root / "node_modules/greet/cli.js").read_text() == BIN
        assert json.loads((bench.root / "package-lock.json").read_text())["packages"]["node_modules/greet"]["integrity"]
        ran = await run(bench, "npm", "run", "--silent", "hello")
        assert (ran["exit_code"], ran["chunk"]) == (0, f"hello from sandbox {bench.root}\n")


async def test_a_registry_that_is_not_listed_is_named_and_nothing_is_installed() -> None:
    async with project() as (bench, registry):
        ran = await run(bench, "npm", "install", *NPM, "--registry=http://evil.example/")
        assert ran["exit_code"] != 0
        assert [note for note in ran["notes"] if "the operator adds `evil.example`" in note], ran
        assert registry.asked == []
        assert not (bench.root / "node_modules/greet").exists()
