"""The steps of the demonstration: each does one thing, checks it, and returns the lines to show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from codespace.demo.agent import Agent, check

NOTES: Final = "notes"
CAREFUL: Final = "careful"
MORE_WATER: Final = (
    "*** Begin Patch\n*** Update File: recipe.txt\n@@\n 500 g flour\n-350 g water\n+375 g water\n*** End Patch\n"
)
SALT: Final = "*** Begin Patch\n*** Update File: recipe.txt\n@@\n 2 g yeast\n+10 g salt\n*** End Patch\n"
WHERE_PATHS_MUST_NOT_LEAD: Final = {
    "../private.txt": "PATH_ESCAPE",
    "/etc/passwd": "PATH_ESCAPE",
    "shortcut": "SYMLINK_REJECTED",
}


async def ask(agent: Agent) -> list[str]:
    info = await agent.call("workspace_info", workspace_id=NOTES)
    execution = info["execution"]
    isolation, network = execution["isolation"], execution["network"]
    check(execution["permissions"]["write"] is True, "the workspace is not writable")
    check(network["enforcement"] in ("none", "enforced"), "the network's enforcement is not told")
    return [
        f"workspace {NOTES}: profile {info['profile']}, approvals {execution['approvals']}",
        f"files through {isolation['file_io']}, command sandbox {isolation['command_sandbox']}",
        f"network {network['policy']}, enforcement {network['enforcement']}",
    ]


async def read(agent: Agent) -> list[str]:
    seen = await agent.call("read", workspace_id=NOTES, path="recipe.txt")
    check(seen["content"] == agent.on_disk("notes/recipe.txt"), "the content is not the file's")
    agent.known["first version"] = seen["version"]
    return [f"recipe.txt: {seen['total_lines']} lines, {seen['size_bytes']} bytes", f"version {seen['version'][:23]}…"]


async def preview(agent: Agent) -> list[str]:
    before = agent.on_disk("notes/recipe.txt")
    plan = await agent.call("apply_patch", workspace_id=NOTES, patch=MORE_WATER, check_only=True)
    check(plan["status"] == "checked", f"the status is {plan['status']}")
    check(agent.on_disk("notes/recipe.txt") == before, "a preview has written")
    return [*_changed(plan["diff"]), "nothing was written"]


async def apply(agent: Agent) -> list[str]:
    expected = {"recipe.txt": agent.known["first version"]}
    done = await agent.call("apply_patch", workspace_id=NOTES, patch=MORE_WATER, expected_versions=expected)
    check(done["status"] == "applied", f"the status is {done['status']}")
    agent.known["second version"] = done["changes"][0]["after_version"]
    return [f"{change['kind']} {change['path']}" for change in done["changes"]] + [f"operation {done['operation_id']}"]


async def read_back(agent: Agent) -> list[str]:
    seen = await agent.call("read", workspace_id=NOTES, path="recipe.txt", start_line=3, line_count=1)
    check(seen["content"].strip() == "375 g water", "the new line is not there")
    check(seen["version"] == agent.known["second version"], "the version is not the one that the patch announced")
    check("375 g water\n" in agent.on_disk("notes/recipe.txt"), "the disk says something else")
    return [f"line 3: {seen['content'].strip()}"]


async def be_late(agent: Agent) -> list[str]:
    before = agent.on_disk("notes/recipe.txt")
    stale = {"recipe.txt": agent.known["first version"]}
    body = await agent.refused(
        "VERSION_CONFLICT", "apply_patch", workspace_id=NOTES, patch=SALT, expected_versions=stale
    )
    check(agent.on_disk("notes/recipe.txt") == before, "a refused patch has written")
    return _shown(body)


async def run(agent: Agent) -> list[str]:
    command = ["sh", "-c", "wc -l < recipe.txt; echo oven is cold >&2; exit 3"]
    ran = await agent.call("exec_command", workspace_id=NOTES, command=command)
    check((ran["state"], ran["exit_code"]) == ("exited", 3), f"it ended as {ran['state']}, {ran.get('exit_code')}")
    errors = await agent.call("read_process", process_id=ran["process_id"], stream="stderr")
    check(errors["chunk"] == "oven is cold\n", "stderr is not kept apart")
    return [
        "exit code 3 is a result, not an error",
        f"stderr said: {errors['chunk'].strip()}",
        *await _locked_in(agent, ran["sandbox"]),
    ]


async def _locked_in(agent: Agent, sandbox: str) -> list[str]:
    """Show what the lock of commands is worth, where there is one."""
    if sandbox != "linux-sandbox":
        return [f"it ran without a sandbox ({sandbox}); `codespace doctor` says why"]
    outside = str(agent.folder / "private.txt")
    tried = await agent.call("exec_command", workspace_id=NOTES, command=["cat", outside])
    check(tried["exit_code"] != 0 and "outside of every" not in tried["chunk"], "it read what is outside")
    check(tried["network"]["enforcement"] == "enforced", "the network is not closed")
    return ["it ran in the sandbox: a file beside the workspace is not there for it, and there is no network"]


async def run_long(agent: Agent) -> list[str]:
    command = ["sh", "-c", "echo baking; sleep 1000"]
    started = await agent.call("exec_command", workspace_id=NOTES, command=command, wait_seconds=0)
    process_id = started["process_id"]
    polled = await agent.call("read_process", process_id=process_id, wait_seconds=10)
    check((polled["chunk"], polled["state"]) == ("baking\n", "running"), "its first output did not come")
    busy = await agent.refused("WORKSPACE_BUSY", "apply_patch", workspace_id=NOTES, patch=SALT)
    ended = await agent.call("terminate_process", process_id=process_id, grace_seconds=1)
    check((ended["state"], ended["termination"]) == ("exited", "terminated"), "it was not terminated")
    return ["polled: baking", f"a patch meanwhile: {busy['code']}", "terminated, with everything below it"]


async def lose_a_reply(agent: Agent) -> list[str]:
    key = "demo: add salt"
    await agent.call("apply_patch", workspace_id=NOTES, patch=SALT, operation_key=key)
    # Imagine that this answer never arrived: the key is all that the client still has.
    status = await agent.call("operation_status", operation_key=key)
    check(status["status"] == "applied", f"the recorded status is {status['status']}")
    again = await agent.call("apply_patch", workspace_id=NOTES, patch=SALT, operation_key=key)
    check(again["replayed"] is True, "the repeated call was not a replay")
    check(agent.on_disk("notes/recipe.txt").count("10 g salt") == 1, "the salt is in there twice")
    return ["by its key: applied", "sent again: its result is repeated, its effect is not"]


async def ask_first(agent: Agent) -> list[str]:
    held = await agent.refused("APPROVAL_REQUIRED", "apply_patch", workspace_id=CAREFUL, patch=SALT)
    approval_id = held["approval_id"]
    check("salt" not in agent.on_disk("careful/recipe.txt"), "a held patch has written")
    await agent.call("approval_resolve", approval_id=approval_id, decision="grant")
    first = await agent.call("operation_resume", approval_id=approval_id)
    second = await agent.call("operation_resume", approval_id=approval_id)
    check(first["apply_patch"]["status"] == "applied", "it was not applied")
    same = first["apply_patch"]["operation_id"] == second["apply_patch"]["operation_id"]
    check(same and agent.on_disk("careful/recipe.txt").count("salt") == 1, "it ran twice")
    return [f"held as {approval_id}", "granted, resumed, and resumed again: it ran once"]


async def try_to_escape(agent: Agent) -> list[str]:
    shown = []
    for path, code in WHERE_PATHS_MUST_NOT_LEAD.items():
        await agent.refused(code, "read", workspace_id=NOTES, path=path)
        shown.append(f"read {path}: {code}")
    hook = "*** Begin Patch\n*** Add File: .git/hooks/post-checkout\n+echo run me\n*** End Patch\n"
    await agent.refused("PROTECTED_PATH", "apply_patch", workspace_id=NOTES, patch=hook)
    await agent.refused("PATH_ESCAPE", "exec_command", workspace_id=NOTES, command=["ls"], cwd="..")
    check(agent.on_disk("private.txt") == "outside of every workspace\n", "the outside was touched")
    return [*shown, "patch .git/hooks/post-checkout: PROTECTED_PATH", "run in ..: PATH_ESCAPE"]


STEPS: Final[tuple[tuple[str, Callable[[Agent], Awaitable[list[str]]]], ...]] = (
    ("Ask what is in force", ask),
    ("Read a file", read),
    ("Preview a patch", preview),
    ("Apply it", apply),
    ("Read it back", read_back),
    ("Send a patch for a version that is gone", be_late),
    ("Run a command", run),
    ("Run a long command, poll it, end it", run_long),
    ("Lose a reply and find out by key", lose_a_reply),
    ("Have a patch held, granted and resumed", ask_first),
    ("Try to get out", try_to_escape),
)


def _changed(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def _shown(body: dict[str, object]) -> list[str]:
    return [f"{body['code']}: {body['message']}", f"next: {body['next_step']}"]
