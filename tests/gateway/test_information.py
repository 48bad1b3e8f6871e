"""workspace_info.execution is made of what the runner has found, whatever the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.gateway.information import execution
from codespace.testing import open_bench

FACTS: dict[str, Any] = {
    "exec_available": True,
    "tty_supported": True,
    "file_io": "openat2",
    "search_confinement": "bubblewrap",
    "command_sandbox": "linux-sandbox",
    "patch_helper_confined": True,
    "runner": "in-process",
    "sandbox": {"git": "read_only"},
    "reasons": [],
    "network_enforcement": "enforced",
    "caveats": [],
}
WORKSPACE = Workspace("w", "/w", profile="workspace-write")


@pytest.mark.parametrize(
    ("fact", "found", "where"),
    [
        ("exec_available", False, ("permissions", "exec")),
        ("exec_available", False, ("process", "available")),
        ("tty_supported", False, ("process", "capabilities", "tty", "supported")),
        ("file_io", "openat", ("isolation", "file_io")),
        ("search_confinement", "beneath", ("isolation", "search_confinement")),
        ("command_sandbox", "none", ("isolation", "command_sandbox")),
        ("patch_helper_confined", False, ("isolation", "patch_helper_confined")),
        ("runner", "uds", ("isolation", "runner")),
        ("sandbox", {"git": "none"}, ("isolation", "sandbox")),
        ("reasons", ["no layer"], ("isolation", "reasons")),
        ("network_enforcement", "none", ("network", "enforcement")),
    ],
)
def test_each_layer_is_told_as_it_was_found(fact: str, found: Any, where: tuple[str, ...]) -> None:
    told: Any = execution(WORKSPACE, FACTS | {fact: found})
    before: Any = execution(WORKSPACE, FACTS)
    for name in where:
        told, before = told[name], before[name]
    assert (told, before) == (found, FACTS[fact])


async def test_a_daemon_without_bubblewrap_says_of_each_layer_that_it_is_missing_and_what_to_correct(
    tmp_path: Path,
) -> None:
    chosen = tmp_path / "bwrap"
    chosen.write_text("#!/bin/sh\nexit 1\n")
    chosen.chmod(0o755)
    async with open_bench(options={"bwrap_path": str(chosen)}) as bench:
        told = (await bench.call("workspace_info"))["execution"]
        isolation = told["isolation"]
        assert (isolation["search_confinement"], isolation["command_sandbox"]) == ("beneath", "none")
        assert told["network"] == {
            "policy": "restricted",
            "enforcement": "none",
            "allowed_domains": [],
            "client_may_escalate": False,
        }
        assert sum(f"bwrap_path {chosen}" in reason for reason in isolation["reasons"]) == 2, isolation["reasons"]
        ran = await bench.call("exec_command", command=["true"])
        assert (ran["sandbox"], ran["network"]["enforcement"]) == ("none", "none")


@pytest.mark.parametrize("sandbox", [True, False])
async def test_a_workspace_in_a_container_claims_no_layer_and_every_tool_says_that_it_is_no_execution_path(
    sandbox: bool,
) -> None:
    environments = {"box": {"kind": "linux-container"}}
    async with open_bench(
        workspace={"environment": "box"}, options={"environments": environments, "tools": ["work"]}, sandbox=sandbox
    ) as bench:
        told = (await bench.call("workspace_info"))["execution"]
        isolation = told["isolation"]
        assert (isolation["command_sandbox"], told["network"]["enforcement"]) == ("none", "none")
        assert isolation["sandbox"]["filesystem"]["enforcement"] == "none"
        assert not told["permissions"]["exec"]
        assert not any("rights of the operator's account" in caveat for caveat in told["caveats"])
        assert any(
            "`box` of kind linux-container" in said and "no execution path" in said for said in isolation["reasons"]
        )
        asked: dict[str, dict[str, Any]] = {
            "read": {"path": "a"},
            "read_many": {"paths": ["a"]},
            "find": {},
            "search": {"pattern": "a"},
            "apply_patch": {"patch": "*** Begin Patch\n*** Add File: a\n+a\n*** End Patch"},
            "exec_command": {"command": ["true"]},
            "list_processes": {},
            "work_open": {"title": "a"},
        }
        for tool, arguments in asked.items():
            with pytest.raises(Refusal, match="no execution path"):
                await bench.call(tool, workspace_id="main", **arguments)
        assert (await bench.call("list_processes"))["processes"] == []
