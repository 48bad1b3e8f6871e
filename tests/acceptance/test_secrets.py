"""Canaries: words that must never show up in a log, in the database's bytes or in an error."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import httpx2
import pytest

from codespace.errors import Refusal
from codespace.testing.installed import HttpDaemon, Visit, over_http, over_stdio
from codespace.testing.site import Site

KINDS = ("patch", "argv", "stdin", "environment", "output", "file", "operator")


@pytest.fixture
def canaries() -> dict[str, str]:
    """One unguessable word for each place that a secret may come from."""
    return {kind: f"canary-{kind}-{secrets.token_hex(8)}" for kind in KINDS}


def database_bytes(site: Site) -> bytes:
    """Return the bytes of the database and of what SQLite keeps beside it."""
    files = sorted(site.state.glob("operations.sqlite*"))
    assert files, "the database is where the contract says"
    return b"".join(path.read_bytes() for path in files)


def assert_absent(canaries: dict[str, str], where: str, haystack: bytes) -> None:
    found = [kind for kind, word in canaries.items() if word.encode() in haystack]
    assert not found, f"{where} holds the secrets of {found}"


async def work_with(visit: Visit, canaries: dict[str, str]) -> list[dict[str, Any]]:
    """Use every canary in calls that succeed, fail and are refused; return the error bodies."""
    add = f"*** Begin Patch\n*** Add File: a.txt\n+{canaries['patch']}\n*** End Patch\n"
    await visit.call("apply_patch", patch=add, check_only=True)
    await visit.call("apply_patch", patch=add)
    await visit.call(
        "exec_command",
        command=["sh", "-c", 'cat; echo "$SECRET"; cat secret.txt; echo "$0" >&2; exit 7', canaries["argv"]],
        stdin=canaries["stdin"],
        env={"SECRET": canaries["environment"]},
    )
    await visit.call("read", path="secret.txt")
    bad: list[tuple[str, dict[str, Any]]] = [
        ("apply_patch", {"patch": add}),
        ("apply_patch", {"patch": add.replace("*** End Patch", "")}),
        ("apply_patch", {"patch": add, "expected_versions": {"secret.txt": "absent"}}),
        ("exec_command", {"command": ["no-such-program", canaries["argv"]], "stdin": canaries["stdin"]}),
        ("exec_command", {"command": ["/bin/true"], "env": {"LD_PRELOAD": canaries["environment"]}}),
        ("exec_command", {"command": ["/bin/true"], "cwd": "nowhere", "stdin": canaries["stdin"]}),
    ]
    bodies = []
    for tool, arguments in bad:
        with pytest.raises(Refusal) as caught:
            await visit.call(tool, **arguments)
        bodies.append(caught.value.body())
    return bodies


def prepare(site: Site, canaries: dict[str, str]) -> None:
    site.add_workspace("main", files={"secret.txt": canaries["file"]}, env={"OPERATORS": canaries["operator"]})
    site.extra_environ["CODESPACE_LOG"] = "debug"


async def test_no_secret_is_in_the_log_the_database_or_an_error(tmp_path: Path, canaries: dict[str, str]) -> None:
    site = Site(tmp_path)
    prepare(site, canaries)
    async with over_stdio(site) as visit:
        errors = await work_with(visit, canaries)
        assert_absent(canaries, "the live database", database_bytes(site))
    for body in errors:
        # A patch that has no place is explained by its own text to the caller who sent it.
        assert_absent(
            {kind: word for kind, word in canaries.items() if kind != "patch"}, "an error", str(body).encode()
        )
    assert_absent(canaries, "the log", (site.folder / "stderr.log").read_bytes())
    assert_absent(canaries, "the database", database_bytes(site))


async def test_the_token_is_in_no_log_no_answer_and_no_database(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_workspace("main")
    site.extra_environ["CODESPACE_LOG"] = "debug"
    token = f"canary-token-{secrets.token_hex(16)}"
    wrong = f"canary-wrong-{secrets.token_hex(16)}"
    with HttpDaemon(site, token) as daemon:
        async with over_http(site, daemon.url, token) as visit:
            info = await visit.call("workspace_info")
            seen = await visit.call("exec_command", command=["sh", "-c", "env; tr '\\0' '\\n' < /proc/$PPID/environ"])
        async with httpx2.AsyncClient(timeout=60) as plain:
            for headers in ({}, {"Authorization": f"Bearer {wrong}"}, {"Authorization": f"Basic {token}"}):
                answer = await plain.post(
                    daemon.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers
                )
                assert answer.status_code == 401
                assert answer.json() == {"error": "unauthorized"}
    words = {"token": token, "wrong": wrong}
    assert_absent(words, "workspace_info", str(info).encode())
    assert_absent(words, "a command's view", seen["chunk"].encode())
    assert_absent(words, "the log", daemon.said.encode())
    assert_absent(words, "the database", database_bytes(site))


async def test_a_held_body_is_gone_from_the_database_once_it_was_used(tmp_path: Path, canaries: dict[str, str]) -> None:
    site = Site(tmp_path)
    site.add_workspace("main", approvals="confirm")
    add = f"*** Begin Patch\n*** Add File: a.txt\n+{canaries['patch']}\n*** End Patch\n"
    argv = ["sh", "-c", "exit 0", canaries["argv"]]
    async with over_stdio(site) as visit:
        for decision, tool, arguments in (
            ("grant", "apply_patch", {"patch": add}),
            ("grant", "exec_command", {"command": argv, "stdin": canaries["stdin"]}),
            ("deny", "exec_command", {"command": [*argv, "again"]}),
        ):
            with pytest.raises(Refusal) as caught:
                await visit.call(tool, **arguments)
            approval_id = caught.value.approval_id
            await visit.call("approval_resolve", approval_id=approval_id, decision=decision)
            if decision == "grant":
                await visit.call("operation_resume", approval_id=approval_id)
    assert_absent(canaries, "the database", database_bytes(site))
    assert_absent(canaries, "the log", (site.folder / "stderr.log").read_bytes())
