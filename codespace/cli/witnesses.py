"""What `doctor` finds of the command sandbox: it makes one, has it attacked from inside, and tells what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from codespace.cli.finding import Finding
from codespace.contract import Workspace
from codespace.errors import Refusal
from codespace.sandbox import probe, report
from codespace.sandbox.box import Sandbox
from codespace.sandbox.probe import Standing
from codespace.settings import Settings

_UNCOUNTED: Final = "Run CodeSpace as an ordinary user, or where it can make a cgroup (docs/sandbox.md, Limits)."


def findings(settings: Settings, sandbox: Sandbox) -> Iterator[Finding]:
    """Yield whether the sandbox holds, area by area, then what each workspace's commands get."""
    try:
        standing = sandbox.standing()
    except Refusal as refusal:
        yield Finding("fail", "sandbox", refusal.message, "Try again when the machine is less busy.")
        return
    if standing.equipment is None:
        yield _missing(standing, settings)
    else:
        yield Finding(
            "pass", "sandbox", f"linux-sandbox, made by {standing.equipment.bubblewrap}, attacked from inside:"
        )
        wrong = set(probe.failed(standing.witnesses))
        for area, (sentence, witnesses) in probe.AREAS.items():
            yield Finding("fail" if wrong & set(witnesses) else "pass", f"  {area}", sentence)
    for workspace in settings.workspaces.values():
        if workspace.profile == "workspace-write":
            yield _commands(standing, workspace)


def _missing(standing: Standing, settings: Settings) -> Finding:
    without = [each for each in settings.workspaces.values() if each.sandbox == "optional"]
    what = (
        "commands run with all rights of this account, and the network is open" if without else "commands are refused"
    )
    return Finding("limit" if without else "fail", "sandbox", f"there is none: {what}", "; ".join(standing.causes))


def _commands(standing: Standing, workspace: Workspace) -> Finding:
    if workspace.environment_kind != "host":
        found = f"none runs: environment {workspace.environment} is no execution path, and file tools refuse it too"
        return Finding("limit", f"commands in {workspace.id}", found, "Choose an environment of kind `host`.")
    facts = report.facts(standing, workspace)
    subject, rung = f"commands in {workspace.id}", facts["command_sandbox"]
    if not facts["exec_available"]:
        return Finding(
            "fail", subject, f"are refused: the workspace demands a sandbox, and there is {rung}", "As said above."
        )
    if rung == "none":
        return Finding(
            "limit",
            subject,
            "run without a sandbox",
            'As said above; or set `sandbox = "required"`, which refuses them until there is one.',
        )
    limited = ", ".join(f"{name} by {how}" for name, how in facts["sandbox"]["limits"].items() if how != "none")
    found = f"{rung}; git {facts['sandbox']['git']}; network {workspace.network}; limits: {limited or 'none'}"
    if rung == "linux-sandbox" and facts["sandbox"]["limits"]["pids"] == "none":
        return Finding("limit", subject, f"{found}; nothing holds the number of their processes", _UNCOUNTED)
    return Finding("pass" if rung == "linux-sandbox" else "limit", subject, found)
