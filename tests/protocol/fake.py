"""A gateway in memory that keeps `contract.Tools` honestly: files in a dict, commands that are coroutines.

It knows Add File and Delete File patches and the programs `echo`, `false`, `cat` and `sleep`; enough for
the doors to carry real results of every shape. `check_tools` says what it and any other must do.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from codespace import ids
from codespace.contract import Caller, Tools
from codespace.digest import ABSENT, version_of
from codespace.errors import Refusal
from codespace.protocol.tools import TABLE

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC")


def version(data: bytes | None) -> str:
    return ABSENT if data is None else version_of(data)


@dataclass
class Command:
    process_id: str
    operation_id: str
    output: bytes = b""
    exit_code: int | None = None
    termination: str | None = None
    stdin_open: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def state(self) -> dict[str, Any]:
        ended = self.termination is not None
        return {
            "process_id": self.process_id,
            "operation_id": self.operation_id,
            "workspace_id": "w",
            "state": "exited" if ended else "running",
            "exit_code": self.exit_code,
            "signal": "SIGTERM" if self.termination == "terminated" else None,
            "termination": self.termination,
            "output_total": len(self.output),
            "started_at": 100.0,
            "ended_at": 101.5 if ended else None,
        }

    def change(self, output: bytes = b"", termination: str | None = None, exit_code: int | None = None) -> None:
        self.output += output
        self.termination = self.termination or termination
        self.exit_code = exit_code
        self.changed.set()
        self.changed = trio.Event()


class FakeTools:
    """See the module. `calls` records (tool, caller, arguments); `waiting` is set while a call waits."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {"a.txt": b"one\ntwo\n", "dot.png": PNG} if files is None else files
        self.calls: list[tuple[str, Caller, dict[str, Any]]] = []
        self.commands: dict[str, Command] = {}
        self.operations: dict[str, dict[str, Any]] = {}
        self.holds: dict[str, dict[str, Any]] = {}
        self.works: dict[str, list[dict[str, Any]]] = {}
        self.closed: set[str] = set()
        self.waiting = trio.Event()
        self.cancelled = trio.Event()
        self.inside: Callable[[], None] = lambda: None

    def _note(self, tool: str, caller: Caller, arguments: dict[str, Any]) -> None:
        self.calls.append((tool, caller, arguments))
        self.inside()
        if arguments.get("workspace_id") not in (None, "w"):
            raise Refusal("WORKSPACE_NOT_FOUND", f"There is no workspace {arguments['workspace_id']}.")

    async def workspace_info(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("workspace_info", caller, arguments)
        result: dict[str, Any] = {
            "server": "codespace",
            "version": "0",
            "tools_exposed": list(TABLE),
            "transports": [caller.transport],
            "protocol_versions": ["2025-11-25", "2026-07-28"],
            "workspaces": [{"workspace_id": "w", "profile": "workspace-write"}],
        }
        if arguments["workspace_id"] is not None:
            result |= {
                "workspace_id": "w",
                "profile": "workspace-write",
                "root": "/w",
                "execution": {"approvals": "off"},
            }
        return result

    def _data(self, path: str) -> bytes:
        if path not in self.files:
            raise Refusal("FILE_NOT_FOUND", f"There is no file {path}.", details={"path": path})
        return self.files[path]

    async def read(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("read", caller, arguments)
        return self._read(**arguments)

    def _read(self, path: str, start_line: Any = None, line_count: Any = None, encoding: str = "text", **_: Any) -> Any:
        data = self._data(path)
        head = {"path": path, "version": version(data), "size_bytes": len(data)}
        if encoding == "base64" or path.endswith(".png"):
            content = base64.b64encode(data).decode()
            media_type = "image/png" if path.endswith(".png") else None
            return head | {
                "content": content,
                "encoding": "base64",
                "total_lines": None,
                "truncated": False,
                "media_type": media_type,
            }
        lines = data.decode().splitlines(keepends=True)
        start = start_line or 1
        shown = lines[start - 1 :][: line_count or len(lines)]
        return head | {
            "content": "".join(shown),
            "encoding": "text",
            "total_lines": len(lines),
            "start_line": start,
            "end_line": start + len(shown) - 1,
            "line_ending": "lf",
            "final_newline": data.endswith(b"\n"),
            "truncated": start - 1 + len(shown) < len(lines),
            "media_type": None,
        }

    async def read_many(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("read_many", caller, arguments)
        entries = []
        for path in arguments["paths"]:
            try:
                entries.append(self._read(path))
            except Refusal as refusal:
                entries.append({"path": path, "error": refusal.body()})
        return {"entries": entries, "truncated": False}

    async def find(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("find", caller, arguments)
        paths = sorted(path for path in self.files if (arguments["query"] or "") in path)
        shown = paths[: arguments["limit"]]
        cut = len(shown) < len(paths)
        return {"paths": shown, "truncated": cut, "total_seen": len(paths), "reason": "limit" if cut else None}

    async def search(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("search", caller, arguments)
        matches = []
        for path, data in sorted(self.files.items()):
            lines = data.decode("latin-1").splitlines()
            for number, text in enumerate(lines, 1):
                if (column := text.find(arguments["pattern"])) >= 0:
                    around = arguments["context_lines"]
                    before = lines[max(0, number - 1 - around) : number - 1]
                    after = lines[number : number + around]
                    place = {"path": path, "line": number, "column": column + 1}
                    matches.append(place | {"text": text, "before": before, "after": after})
        return {"matches": matches, "truncated": False, "files_searched": len(self.files), "reason": None}

    async def apply_patch(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("apply_patch", caller, arguments)
        key = arguments["operation_key"]
        for known in self.operations.values():
            if key is not None and known["key"] == key:
                return known["result"] | {"replayed": True, "still_current": True}
        after = self._patched(arguments["patch"])
        for path, expected in (arguments["expected_versions"] or {}).items():
            actual = version(self.files.get(path))
            if actual != expected:
                details = {"path": path, "expected": expected, "actual": actual}
                raise Refusal("VERSION_CONFLICT", f"{path} is at {actual}. Nothing was written.", details=details)
        changes = [
            {
                "path": path,
                "kind": "delete" if data is None else "update" if path in self.files else "add",
                "from_path": None,
                "before_version": version(self.files.get(path)),
                "after_version": version(data),
            }
            for path, data in after.items()
        ]
        result: dict[str, Any] = {"files": list(after), "changes": changes, "diff": "--- a\n+++ b\n", "replayed": False}
        if arguments["check_only"]:
            return result | {"status": "checked", "operation_id": None}
        for path, data in after.items():
            if data is None:
                del self.files[path]
            else:
                self.files[path] = data
        result |= {"status": "applied", "operation_id": ids.mint(ids.OPERATION)}
        self.operations[result["operation_id"]] = {"key": key, "result": result}
        return result

    def _patched(self, patch: str) -> dict[str, bytes | None]:
        after: dict[str, bytes | None] = {}
        path = ""
        for number, line in enumerate(patch.splitlines(), 1):
            match line.split(": ", 1):
                case ["*** Add File", path]:
                    after[path] = b""
                case ["*** Delete File", path]:
                    self._data(path)
                    after[path] = None
                case ["*** Begin Patch"] | ["*** End Patch"]:
                    pass
                case _ if line.startswith("+") and path:
                    after[path] = (after[path] or b"") + line[1:].encode() + b"\n"
                case _:
                    raise Refusal("INVALID_PATCH", f"Line {number} is no patch: {line}. Nothing was written.")
        return after

    async def operation_undo(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("operation_undo", caller, arguments)
        known = self.operations.get(arguments["operation_id"])
        if known is None:
            raise Refusal("OPERATION_NOT_FOUND", "No such operation is recorded.")
        changes = [
            change
            | {
                "kind": {"add": "delete", "delete": "add"}.get(change["kind"], change["kind"]),
                "before_version": change["after_version"],
                "after_version": change["before_version"],
            }
            for change in known["result"]["changes"]
        ]
        result = known["result"] | {"changes": changes, "operation_id": ids.mint(ids.OPERATION), "replayed": False}
        self.operations[result["operation_id"]] = {"key": arguments["operation_key"], "result": result}
        return result

    async def operation_status(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("operation_status", caller, arguments)
        for operation_id, known in self.operations.items():
            if operation_id == arguments["operation_id"] or known["key"] == arguments["operation_key"]:
                return {
                    "operation_id": operation_id,
                    "kind": "patch",
                    "status": "applied",
                    "workspace_id": "w",
                    "created_at": 100.0,
                    "finished_at": 101.0,
                    "files": known["result"]["files"],
                    "changes": known["result"]["changes"],
                    "still_current": True,
                    "events": [{"event": "mint", "target": "minted"}],
                    "process_id": None,
                }
        raise Refusal("OPERATION_NOT_FOUND", "No such operation.")

    async def exec_command(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("exec_command", caller, arguments)
        program, *rest = arguments["command"]
        command = Command(ids.mint(ids.PROCESS), ids.mint(ids.OPERATION), stdin_open=arguments["open_stdin"])
        match program:
            case "echo":
                command.change(" ".join(rest).encode() + b"\n", "exited", 0)
            case "false":
                command.change(b"", "exited", 1)
            case "cat" if arguments["stdin"] is not None:
                command.change(arguments["stdin"].encode(), "exited", 0)
            case "cat" | "sleep":
                pass
            case _:
                raise Refusal("PROCESS_SPAWN_FAILED", f"There is no program {program}. Nothing was started.")
        self.commands[command.process_id] = command
        await self._wait(caller, command, arguments["wait_seconds"], lambda: command.termination is not None)
        started = {"dispatch_status": "confirmed", "sandbox": "none", "network": "none", "notes": []}
        return started | self._chunk(command, 0, 65_536, "text")

    async def _wait(self, caller: Caller, command: Command, seconds: float, done: Callable[[], bool]) -> None:
        try:
            with trio.move_on_after(seconds):
                while not done():
                    if caller.progress is not None:
                        await caller.progress(1.0, "running")
                    self.waiting.set()
                    await command.changed.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise

    def _chunk(self, command: Command, cursor: int, limit: int, encoding: str) -> dict[str, Any]:
        data = command.output[cursor : cursor + limit]
        text = data.decode() if encoding == "text" else base64.b64encode(data).decode()
        end = cursor + len(data)
        eof = command.termination is not None and end == len(command.output)
        return command.state() | {
            "chunk": text,
            "encoding": encoding,
            "cursor": end,
            "eof": eof,
            "retained_from": 0,
            "output_lost": 0,
        }

    def _command(self, process_id: str) -> Command:
        if process_id not in self.commands:
            raise Refusal("PROCESS_NOT_FOUND", f"There is no process {process_id}.", process_id=process_id)
        return self.commands[process_id]

    async def read_process(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("read_process", caller, arguments)
        command, cursor = self._command(arguments["process_id"]), arguments["cursor"]
        news = lambda: len(command.output) > cursor or command.termination is not None  # noqa: E731
        await self._wait(caller, command, arguments["wait_seconds"], news)
        return self._chunk(command, cursor, arguments["limit_bytes"], arguments["encoding"])

    async def process_status(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("process_status", caller, arguments)
        return self._command(arguments["process_id"]).state()

    async def list_processes(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("list_processes", caller, arguments)
        return {"processes": [command.state() for command in self.commands.values()]}

    async def write_stdin(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("write_stdin", caller, arguments)
        command = self._command(arguments["process_id"])
        if not command.stdin_open:
            raise Refusal("INVALID_ARGUMENT", "Its standard input is closed.")
        data = arguments["data"].encode()
        command.stdin_open = not arguments["eof"]
        command.change(data, "exited" if arguments["eof"] else None, 0 if arguments["eof"] else None)
        return {"process_id": command.process_id, "bytes_written": len(data)}

    async def resize_process(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("resize_process", caller, arguments)
        command = self._command(arguments["process_id"])
        return {"process_id": command.process_id, "rows": arguments["rows"], "cols": arguments["cols"]}

    async def terminate_process(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("terminate_process", caller, arguments)
        command = self._command(arguments["process_id"])
        command.change(termination="terminated")
        return command.state()

    async def approval_create(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("approval_create", caller, arguments)
        hold = {"approval_id": ids.mint(ids.APPROVAL), "state": "pending", "tool": arguments["tool"]}
        hold |= {"workspace_id": "w", "fingerprint": "0" * 64, "reason": None, "expires_at": 1000.0, "result": None}
        self.holds[hold["approval_id"]] = {"hold": hold, "arguments": arguments["arguments"]}
        return hold

    def _hold(self, approval_id: str) -> dict[str, Any]:
        if approval_id not in self.holds:
            raise Refusal("APPROVAL_NOT_FOUND", "No such hold.", approval_id=approval_id)
        return self.holds[approval_id]

    async def approval_status(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("approval_status", caller, arguments)
        hold: dict[str, Any] = self._hold(arguments["approval_id"])["hold"]
        return hold

    async def approval_resolve(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("approval_resolve", caller, arguments)
        hold: dict[str, Any] = self._hold(arguments["approval_id"])["hold"]
        hold["state"] = {"grant": "granted", "deny": "denied"}[arguments["decision"]]
        return {"approval_id": hold["approval_id"], "state": hold["state"]}

    async def operation_resume(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("operation_resume", caller, arguments)
        known = self._hold(arguments["approval_id"])
        hold = known["hold"]
        if hold["state"] == "granted":
            known["result"] = await getattr(self, hold["tool"])(caller, **known["arguments"])
            hold["state"] = "consumed"
        return {"approval_id": hold["approval_id"], "state": hold["state"], hold["tool"]: known.get("result")}

    async def work_open(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("work_open", caller, arguments)
        work_id = ids.mint(ids.WORK)
        self.works[work_id] = []
        return self._counted(work_id)

    def queue(self, work_id: str, text: str) -> None:
        """Let the user of this fake want something."""
        intent = {"intent_id": ids.mint(ids.INTENT), "kind": "follow_up", "state": "queued", "text": text}
        self.works[work_id].append(intent)

    def _counted(self, work_id: str) -> dict[str, Any]:
        if work_id not in self.works:
            raise Refusal("WORK_NOT_FOUND", "No such work.")
        states = [intent["state"] for intent in self.works[work_id]]
        return {"work_id": work_id, "queued": states.count("queued"), "claimed": states.count("claimed")}

    async def steer_status(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("steer_status", caller, arguments)
        state = "closed" if arguments["work_id"] in self.closed else "active"
        return self._counted(arguments["work_id"]) | {"state": state}

    async def steer_claim_next(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("steer_claim_next", caller, arguments)
        counted = self._counted(arguments["work_id"])
        intents = self.works[arguments["work_id"]]
        undone = [dict(intent) for intent in intents if intent["state"] == "claimed"]
        if undone or not counted["queued"]:
            return counted | ({"undone": undone} if undone else {})
        intent = next(intent for intent in intents if intent["state"] == "queued")
        intent["state"] = "claimed"
        return self._counted(arguments["work_id"]) | {"intent": dict(intent)}

    async def steer_complete(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("steer_complete", caller, arguments)
        self._counted(arguments["work_id"])
        for intent in self.works[arguments["work_id"]]:
            if intent["intent_id"] == arguments["intent_id"] and intent["state"] != "queued":
                intent |= {"state": arguments["outcome"]}
                intent |= {} if arguments["note"] is None else {"note": arguments["note"]}
                return self._counted(arguments["work_id"]) | {"intent": dict(intent)}
        raise Refusal("INTENT_NOT_FOUND", "No such intent was claimed.")

    async def work_finish(self, caller: Caller, **arguments: Any) -> dict[str, Any]:
        self._note("work_finish", caller, arguments)
        counted = self._counted(arguments["work_id"])
        if counted["queued"] or counted["claimed"]:
            return counted | {"closed": False, "reason": "pending_user_input"}
        self.closed.add(arguments["work_id"])
        return {"work_id": arguments["work_id"], "closed": True}


def as_tools(fake: FakeTools) -> Tools:
    """Show the fake as what the doors expect."""
    return fake  # type: ignore[return-value]  # its methods take the same arguments by name
