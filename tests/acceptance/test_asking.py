"""A client that can ask its user is asked about a held patch, over both real wires; a stop does not wait for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from codespace.testing.calls import call
from codespace.testing.installed import HttpDaemon, script
from codespace.testing.site import Site, tree
from codespace.testing.wire import REVISION, Wire

PATCH = "*** Begin Patch\n*** Add File: new.txt\n+new\n*** End Patch\n"


class User:
    def __init__(self) -> None:
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "grant"})


async def applied_by(client: Client, user: User, root: Path) -> None:
    assert (await call(client, "apply_patch", workspace_id="main", patch=PATCH))["status"] == "applied"
    assert "+new" in user.questions[0]
    assert tree(root) == {"new.txt": b"new\n"}


async def test_over_stdio(tmp_path: Path) -> None:
    site, user = Site(tmp_path), User()
    root = site.add_workspace(approvals="confirm")
    command = StdioServerParameters(command=script(), args=["serve", "--stdio"], env=site.environ)
    with (tmp_path / "stderr.log").open("a") as log:
        async with Client(stdio_client(command, errlog=log), mode="legacy", elicitation_callback=user) as client:
            await applied_by(client, user, root)


def test_a_stop_answers_a_call_whose_user_still_thinks(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace(approvals="confirm")
    wire = Wire(site)
    wire.start()
    try:
        asks = {"capabilities": {"elicitation": {}}, "clientInfo": {"name": "raw", "version": "1"}}
        wire.request("initialize", {"protocolVersion": REVISION, **asks})
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        held = wire.post("tools/call", {"name": "exec_command", "arguments": {"command": ["true"]}})
        assert wire.receive()["method"] == "elicitation/create"
        wire.process.terminate()
        (answer,) = (message for message in wire.rest() if message.get("id") == held)
    finally:
        wire.close()
    assert '"APPROVAL_REQUIRED"' in answer["result"]["content"][0]["text"]


async def test_over_http(tmp_path: Path) -> None:
    site, user = Site(tmp_path), User()
    root = site.add_workspace(approvals="confirm")
    with HttpDaemon(site) as daemon:
        headers = {"Authorization": f"Bearer {daemon.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(daemon.url, http_client=http), mode="legacy", elicitation_callback=user
            ) as client,
        ):
            await applied_by(client, user, root)
