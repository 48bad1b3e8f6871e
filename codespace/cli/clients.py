"""`codespace client-config CLIENT`: what an MCP client needs to find this daemon.

Printed, or merged into the client's own file of this user. A file in a workspace is never written:
an agent could change it, and with it what the client starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codespace import cli
from codespace.cli import configured, tomltext, userfile
from codespace.display import display
from codespace.http.exposure import Address
from codespace.settings import Settings
from codespace.settings.environment import home
from codespace.settings.load import default_state_dir

NAME: Final = "codespace"
_TOML_SECTION: Final = "mcp_servers"
_CARRIED: Final = (
    "CODESPACE_STATE_DIR",
    "CODESPACE_OPERATIONS_DB",
    "CODESPACE_PROCESS_TIMEOUT_SECS",
    "CODESPACE_RUNNER",
    "CODESPACE_RUNNER_DIR",
)
# A desktop client starts programs with an environment of its own: what was decided here must be said there.


class Unwritable(Exception):
    """The client's file cannot be merged safely; the message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """How one client wants to be told. `file` is None where it has no file of the user."""

    title: str
    file: str | None
    section: str
    typed: bool = False
    """Whether an entry names its transport in `type`."""
    http: bool = True
    waits: bool = False
    """Whether an entry has it wait for its servers; else it begins without the tools of one that takes a second."""
    after: str = "Restart the client."


CLIENTS: Final[Mapping[str, Client]] = {
    "claude-desktop": Client(
        "Claude Desktop", ".config/Claude/claude_desktop_config.json", "mcpServers", http=False, after="Restart it."
    ),
    "claude-code": Client("Claude Code", ".claude.json", "mcpServers", typed=True, after="Check it with `/mcp`."),
    "cursor": Client("Cursor", ".cursor/mcp.json", "mcpServers"),
    "vscode": Client("VS Code", ".config/Code/User/mcp.json", "servers", typed=True, after="Run `MCP: List Servers`."),
    "codex": Client("Codex", ".codex/config.toml", _TOML_SECTION, waits=True, after="Check it with `codex mcp list`."),
    "generic": Client("any MCP client", None, "mcpServers", typed=True),
}


def run(arguments: argparse.Namespace) -> int:
    """Print or write the configuration of one client."""
    client = CLIENTS[arguments.client]
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    try:
        entry = _http_entry(settings, client) if arguments.http else _stdio_entry(settings, client)
        if arguments.write:
            return _write(client, settings, entry, secret=arguments.http)
    except (Unwritable, OSError, UnicodeError) as error:
        print(f"codespace: {display(configured.cause(error), newlines=True)}\nNothing was written.", file=sys.stderr)
        return cli.USAGE
    _print(client, entry)
    return 0


def program() -> list[str]:
    """Return the words that start this very installation, whatever the client's PATH is."""
    script = os.path.join(sysconfig.get_path("scripts"), "codespace")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "codespace"]


def _stdio_entry(settings: Settings, client: Client) -> dict[str, Any]:
    words = [*program(), "serve", "--stdio"]
    entry = _beginning(client, "stdio") | {"command": words[0], "args": words[1:]}
    wanted = {name: value for name, value in os.environ.items() if name in _CARRIED}
    if settings.config_path is not None:
        wanted["CODESPACE_CONFIG"] = settings.config_path
    if settings.state_dir != os.path.realpath(default_state_dir({}, home(os.environ))):
        wanted.setdefault("CODESPACE_STATE_DIR", settings.state_dir)  # by XDG_STATE_HOME, which many clients leave out
    if wanted:
        entry["env"] = wanted
    return entry


def _beginning(client: Client, transport: str) -> dict[str, Any]:
    return ({"type": transport} if client.typed else {}) | ({"required": True} if client.waits else {})


def _http_entry(settings: Settings, client: Client) -> dict[str, Any]:
    if not client.http:
        raise Unwritable(
            f"{client.title} starts its servers itself and cannot be given a URL in its file. Leave --http out."
        )
    headers = "http_headers" if client.section == _TOML_SECTION else "headers"
    return _beginning(client, "http") | {
        "url": Address(settings.http_host, settings.http_port).url,
        headers: {"Authorization": f"Bearer {_token(settings)}"},
    }


def _token(settings: Settings) -> str:
    if settings.http_token is not None:
        return settings.http_token
    token = userfile.read(settings.http_token_file)
    if token is None:
        raise Unwritable("There is no token yet. Start `codespace serve --http` once; it generates one.")
    return token.strip()


def _print(client: Client, entry: Mapping[str, Any]) -> None:
    where = f"~/{client.file}" if client.file else "the client's configuration"
    print(f"# For {client.title}: put this into {where}, or use --write." if client.file else f"# For {client.title}:")
    print(_toml(entry) if client.section == _TOML_SECTION else _json({client.section: {NAME: entry}}))
    if client.title == "Claude Code" and "command" in entry:  # a token in arguments could be read by other users
        print(f"\n# or run:\nclaude mcp add-json --scope user {NAME} {shlex.quote(json.dumps(entry))}")


def _write(client: Client, settings: Settings, entry: Mapping[str, Any], *, secret: bool) -> int:
    if client.file is None:
        raise Unwritable(
            "A generic client has no file that is known here. Leave --write out, and copy what is printed."
        )
    path = os.path.join(home(os.environ), client.file)
    real = os.path.realpath(path)
    for workspace in settings.workspaces.values():
        if real.startswith(workspace.root + "/"):
            raise Unwritable(f"{real} lies inside the workspace `{workspace.id}`, where an agent could change it.")
    present = userfile.read(path)
    text = _merged_toml(present, entry) if client.section == _TOML_SECTION else _merged_json(client, present, entry)
    if text == present:
        print(f"{display(path)} says so already; nothing was changed.")
        return 0
    copied = userfile.replace(path, text, private=secret)
    print(f"Wrote {display(path)}" + (f" (what was there before: {display(copied)})." if copied else "."))
    print(client.after)
    return 0


def _merged_json(client: Client, present: str | None, entry: Mapping[str, Any]) -> str:
    by_hand = f"Add by hand:\n{_json({client.section: {NAME: entry}})}"
    try:
        document = json.loads(present) if present and present.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Unwritable(f"The file is not plain JSON ({error}), and comments would be lost. {by_hand}") from None
    servers = document.setdefault(client.section, {}) if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise Unwritable(f"The file does not have the form that {client.title} documents. {by_hand}")
    if present and servers.get(NAME) == entry:
        return present
    servers[NAME] = dict(entry)
    try:
        return _json(document) + "\n"
    except (ValueError, RecursionError):
        raise Unwritable(
            f"The file has a number that cannot be written back, or is nested too deep. It stays as it is. {by_hand}"
        ) from None


def _merged_toml(present: str | None, entry: Mapping[str, Any]) -> str:
    try:
        return tomltext.append(present or "", (_TOML_SECTION, NAME), entry)
    except tomltext.NotSafe as error:
        raise Unwritable(f"The file stays as it is: {error}. Put this there by hand:\n{_toml(entry)}") from None


def _json(value: Any) -> str:
    """Return it as a file can hold it: half a letter, as a text that was cut within one has, is kept as its escape."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _toml(entry: Mapping[str, Any]) -> str:
    return tomltext.section((_TOML_SECTION, NAME), entry)
