"""The effective execution contract: what is true and enforced now, never what was configured.

Built from the runner's facts (probes) and the workspace's registration. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespace import limits
from codespace.contract import Workspace


def execution(workspace: Workspace, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `workspace_info.execution` as CONTRACT section 3 spells it.

    Args:
        facts: `Runner.describe` of this workspace, from probes.
    """
    host = workspace.environment_kind == "host"
    writable = host and workspace.profile == "workspace-write"
    return {
        "environment": {
            "kind": workspace.environment_kind,
            "client_selectable": False,
            "exec_supported": writable,
            "file_read_supported": host,
            "file_write_supported": writable,
        },
        "permissions": {"read": host, "write": writable, "exec": writable and facts["exec_available"]},
        "files": {
            "read": {"available": host},
            "find": {"available": host},
            "search": {"available": host},
            "patch": {"available": writable},
        },
        "process": _process(writable and facts["exec_available"], facts),
        "serialization": _serialization(workspace),
        "isolation": {
            "file_tools_workspace_scoped": True,
            "file_io": facts["file_io"],
            "search_confinement": facts["search_confinement"],
            "command_sandbox": facts["command_sandbox"],
            "patch_helper_confined": facts["patch_helper_confined"],
            "runner": facts["runner"],
            "sandbox": dict(facts["sandbox"]),
            "reasons": list(facts["reasons"]),
        },
        "network": {
            "policy": workspace.network,
            "enforcement": facts["network_enforcement"],
            "allowed_domains": [_domain(domain.host, domain.port) for domain in workspace.allowed_domains],
            "client_may_escalate": False,
        },
        "approvals": workspace.approvals,
        "limits": {
            "read_bytes": workspace.limits.read_bytes,
            "output_bytes": limits.OUTPUT_CHUNK_BYTES,
            "timeout_seconds": workspace.timeout_seconds,
            "max_timeout_seconds": workspace.max_timeout_seconds,
            "max_processes": workspace.limits.processes,
            "patch_bytes": workspace.limits.patch_bytes,
        },
        "caveats": [*facts["caveats"], *_caveats(workspace)],
    }


def _process(available: bool, facts: Mapping[str, Any]) -> dict[str, Any]:
    tty = {
        "supported": facts["tty_supported"],
        "default": False,
        "initial_rows": 24,
        "initial_cols": 80,
        "resize_supported": facts["tty_supported"],
    }
    return {
        "available": available,
        "capabilities": {
            "handles": True,
            "survives_request_end": True,
            "write_stdin": True,
            "incremental_read": True,
            "terminate": True,
            "separate_streams": True,
            "exit_code": True,
            "tty": tty,
        },
    }


def _serialization(workspace: Workspace) -> dict[str, Any]:
    shared = workspace.occupancy == "shared"
    return {
        "live_process_holds_mutation_lease": not shared,
        "parallel_exec": shared,
        "read_while_process_live": True,
        "find_while_process_live": True,
        "patch_while_process_live": shared,
        "conflict_error": "WORKSPACE_BUSY",
    }


def _domain(host: str, port: int | None) -> str:
    return host if port is None else f"{host}:{port}"


def _caveats(workspace: Workspace) -> list[str]:
    caveats = [
        "A program that keeps a descriptor of a replaced file open goes on writing into the old file.",
        "A client that has a shell of its own under the operator's account is not bound by any of this.",
    ]
    if workspace.approvals == "confirm":
        caveats.append("Approvals `confirm` are a pause, not a boundary: the caller may grant its own holds.")
    return caveats
