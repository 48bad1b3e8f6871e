"""A lean client of the stdio door: JSON lines on the pipes of `codespace serve --stdio`, and nothing else.

Where an official client would stand in the way: exact shutdown, stray bytes on stdout, signals, and
benchmarks in which the official client's own cost would hide the daemon's. Blocking on purpose.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final, Self

from codespace.testing.calls import Malformed
from codespace.testing.installed import END_SECONDS, script
from codespace.testing.site import Site

REVISION: Final = "2025-11-25"


class Wire:
    """One `codespace serve --stdio` and the two ends of its wire; a synchronous context manager.

    Attributes:
        process: The child.
        log: Where its stderr goes.
    """

    def __init__(self, site: Site, *, command: list[str] | None = None) -> None:
        self.site = site
        self.log = site.folder / "stderr.log"
        self._command = command or [script(), "serve", "--stdio"]
        self._number = 0

    def __enter__(self) -> Self:
        self.start()
        self.handshake()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the command without a word on the wire."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self.site.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def handshake(self) -> dict[str, Any]:
        """Say hello as a 2025-11-25 client; return the server's answer."""
        hello = {
            "protocolVersion": REVISION,
            "capabilities": {},
            "clientInfo": {"name": "codespace-testing-wire", "version": "1"},
        }
        answer = self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send one request and return its result. Raises: Malformed for an error or another answer."""
        number = self.post(method, params)
        while True:
            message = self.receive()
            if "id" not in message:
                continue  # a notification, such as progress
            if message["id"] != number or "result" not in message:
                raise Malformed(f"{method} was answered by {json.dumps(message)[:500]}")
            return dict(message["result"])

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return the whole result of tools/call as it came over the wire."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def post(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send one request without waiting; return its id."""
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params or {}})
        return self._number

    def send(self, message: dict[str, Any]) -> None:
        """Put one message on the wire."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raises: Malformed where a line is not one, EOFError at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the daemon ended; its stderr:\n{self.said}")
        return _message(line)

    def hang_up(self) -> None:
        """Close the daemon's stdin: the client is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def rest(self) -> list[dict[str, Any]]:
        """Return every message until the daemon closes its stdout."""
        assert self.process.stdout is not None
        return [_message(line) for line in self.process.stdout]

    @property
    def said(self) -> str:
        """What the daemon wrote to stderr."""
        return Path(self.log).read_text(errors="replace")

    def close(self) -> int:
        """Hang up, wait for the end, close what is ours; return the exit status."""
        self.hang_up()
        try:
            return self.process.wait(END_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as problem:
        raise Malformed(f"a stray line on stdout: {line[:200]!r}") from problem
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise Malformed(f"not a message: {line[:200]!r}")
    return message
