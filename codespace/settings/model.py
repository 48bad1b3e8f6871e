"""What the operator decided, checked and complete: the value that the rest of the program gets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from codespace import limits
from codespace.contract import Workspace

MEMORY_DATABASE = ":memory:"
TOKEN_FILE = "http-token"  # noqa: S105 - the name of a file, not a token


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one daemon. Paths are absolute and resolved; nothing here is read again later."""

    state_dir: str
    database: str
    """Path of the database file, or `:memory:`."""
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)
    results: Literal["text", "structured", "both"] = "both"
    tools: tuple[str, ...] = ()
    """Groups of tools that are shown even where nothing calls for them."""
    approval_expiry_seconds: float = limits.APPROVAL_EXPIRY_SECONDS
    snapshot_bytes: int = limits.SNAPSHOT_BYTES
    snapshot_age_seconds: float = limits.SNAPSHOT_AGE_SECONDS
    spool_bytes: int = limits.SPOOL_BYTES
    process_spool_bytes: int = limits.PROCESS_SPOOL_BYTES
    retention_seconds: float = limits.RETENTION_SECONDS
    bwrap_path: str | None = None
    rg_path: str | None = None
    http_host: str = "127.0.0.1"
    http_port: int = limits.HTTP_PORT
    http_token: str | None = field(default=None, repr=False)
    """None: one is generated into `http_token_file`."""
    operator_token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    runner: Literal["in-process", "uds"] = "in-process"
    runner_dir: str | None = None
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"
    config_path: str | None = None
    """The file that was read; None where there was none."""

    @property
    def http_token_file(self) -> str:
        """Where a generated token lies (0600), for `client-config` to read."""
        return os.path.join(self.state_dir, TOKEN_FILE)
