"""What a workspace's profile, environment and isolation demands allow. Pure: decides, does nothing.

Asked when a request arrives and again when a hold is resumed, so that a grant never outlives the
permission it was given under.
"""

from __future__ import annotations

from codespace.contract import Workspace
from codespace.errors import Refusal


def require_read(workspace: Workspace) -> None:
    """Refuse file tools where the environment is no execution path.

    Raises: Refusal SANDBOX_UNAVAILABLE.
    """
    if workspace.environment_kind != "host":
        raise Refusal(
            "SANDBOX_UNAVAILABLE",
            f"Workspace {workspace.id} belongs to environment {workspace.environment} of kind "
            f"{workspace.environment_kind}, which is registered but is no execution path. Nothing was done.",
            next_step="Ask the operator to move the workspace to an environment of kind `host`.",
        )


def require_write(workspace: Workspace) -> None:
    """Refuse whatever may change files unless the profile allows it.

    Raises: Refusal UNAUTHORIZED or SANDBOX_UNAVAILABLE.
    """
    require_read(workspace)
    if workspace.profile != "workspace-write":
        raise Refusal(
            "UNAUTHORIZED",
            f"Workspace {workspace.id} is registered read-only; nothing was written or started.",
            next_step="Read, find and search work here. Only the operator can change the profile.",
        )


def require_exec(workspace: Workspace, command_sandbox: str) -> None:
    """Refuse commands unless the profile allows them and the demanded isolation is in force.

    Args:
        command_sandbox: What a command would be locked into now, from a probe: `none`, `landlock`
            or `linux-sandbox`.
    Raises: Refusal UNAUTHORIZED or SANDBOX_UNAVAILABLE; nothing was started.
    """
    require_write(workspace)
    if workspace.network == "enabled" and command_sandbox != "linux-sandbox":
        raise Refusal(
            "SANDBOX_UNAVAILABLE",
            f"Workspace {workspace.id} has network `enabled`, which needs the Linux sandbox and its filtering proxy; "
            f"what is known to be in force is `{command_sandbox}`. Nothing was started.",
        )
    if workspace.sandbox == "required" and command_sandbox == "none":
        raise Refusal(
            "SANDBOX_UNAVAILABLE",
            f'Workspace {workspace.id} demands a sandbox (`sandbox = "required"`) and none is known to be in force. '
            "Nothing was started.",
        )
