"""What a page shows of a hold, rendered as the console does and read without a browser."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from markupsafe import Markup

from codespace.gateway.hold import Hold
from codespace.http.pages import Pages

COMMAND = {
    "command": ["sh"],
    "cwd": ".",
    "env": {},
    "stdin": "touch <CANARY>\n",
    "open_stdin": False,
    "tty": True,
    "rows": 24,
    "cols": 80,
    "timeout_seconds": 600.0,
    "network": {"policy": "enabled", "allowed_domains": ["a.example", "b.example:80=10.0.0.1"]},
    "bound": {},
}


def page_of(tool: str, shown: dict[str, Any]) -> str:
    hold = Hold(
        id="appr-1",
        tool=tool,
        workspace_id="main",
        operation_key=None,
        fingerprint="f" * 64,
        state="pending",
        body={},
        shown=shown,
        reason=None,
        expires_at=0.0,
        created_at=0.0,
        result=None,
        approvals="operator",
        instance_id="inst-1",
        caller="stdio",
    )
    frame: dict[str, Any] = {"here": "holds", "session": True, "token": lambda: Markup(""), "pending": 1}
    return Pages().render("hold", hold=hold, at=None, scopes=[], **frame)


def test_what_is_typed_into_a_terminal_is_on_the_page_of_its_command() -> None:
    page = page_of("exec_command", COMMAND)
    assert "a terminal, and this is typed into it: touch &lt;CANARY&gt;\\n" in page
    assert "typed into it" not in page_of("exec_command", COMMAND | {"stdin": None})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tty": True, "stdin": None, "open_stdin": True}, "a terminal, left open: it accepts whatever is typed"),
        ({"tty": False, "stdin": None, "open_stdin": True}, "left open: it accepts whatever is written to it later"),
        ({"tty": False, "stdin": "none"}, "this text: none"),
    ],
)
def test_input_that_is_granted_with_a_command_is_on_its_page(changes: dict[str, Any], told: str) -> None:
    assert told in page_of("exec_command", COMMAND | changes)
    assert told not in page_of("exec_command", COMMAND | {"stdin": None, "open_stdin": False, "tty": changes["tty"]})


def test_the_network_that_is_granted_with_a_command_is_on_its_page() -> None:
    assert "policy enabled: a.example, b.example:80=10.0.0.1" in page_of("exec_command", COMMAND)
    assert "policy restricted<" in page_of("exec_command", COMMAND | {"network": {"policy": "restricted"}})


def test_held_input_is_on_its_page_decoded() -> None:
    sent = base64.b64encode(b"rm -r <everything>\n\xff").decode()
    shown = {"process_id": "proc-1", "data": sent, "encoding": "base64", "eof": False, "command": ["sh"]}
    assert "rm -r &lt;everything&gt;\n\\xff" in page_of("write_stdin", shown)
    assert "not*base64" in page_of("write_stdin", shown | {"data": "not*base64"})
