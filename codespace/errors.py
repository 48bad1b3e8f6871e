"""The error codes of the contract, and the one exception that carries them.

A refusal says what happened, what is left on disk and what to do next. It is raised wherever a
decision is made and turned into an answer at the door; nothing here knows a protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Code:
    """One row of docs/errors.md: when the code is said, and the usual way on."""

    meaning: str
    next_step: str
    retryable: bool = False


CODES: Final[Mapping[str, Code]] = {
    "UNAUTHORIZED": Code(
        "The caller may not do this, whatever its arguments claim.",
        "Ask the operator to do it or to change the configuration.",
    ),
    "WORKSPACE_NOT_FOUND": Code(
        "No workspace of this id is registered.",
        "Call workspace_info without workspace_id for the registered ids.",
    ),
    "WORKSPACE_BUSY": Code(
        "Something else is changing this workspace or may be; details say what, and since when.",
        "Wait for it (read_process with wait_seconds) or end it (terminate_process), then send the same call again.",
        retryable=True,
    ),
    "INVALID_ARGUMENT": Code(
        "An argument is missing, unknown, out of range or of the wrong type; nothing was done.",
        "Correct the named argument and call again.",
    ),
    "INVALID_PATCH": Code(
        "The patch is not well-formed or a chunk has no place in the file; nothing was written.",
        "Read the named file again and send a patch made for what it says now.",
    ),
    "INVALID_COMMAND": Code(
        "The command, its directory or its environment is not acceptable; nothing was started.",
        "Send `command` as a list of strings, the program first, without a refused variable.",
    ),
    "PROCESS_SPAWN_FAILED": Code(
        "The program could not be started; nothing runs.",
        "Check the program's name and that it is installed for commands of this workspace.",
    ),
    "SANDBOX_UNAVAILABLE": Code(
        "The isolation that this workspace demands cannot be had now; nothing was started.",
        "Ask the operator to run `codespace doctor`, which names the exact remedy.",
    ),
    "PATH_ESCAPE": Code(
        "The path is absolute or leads out of the workspace.",
        "Use a path relative to the workspace root.",
    ),
    "PROTECTED_PATH": Code(
        "The path may not be changed by a patch (git directories, files that tools run by themselves).",
        "Leave it alone, or ask the operator to change it.",
    ),
    "FILE_NOT_FOUND": Code("There is no such file in the workspace.", "Use find to see what is there."),
    "PATH_NOT_DIRECTORY": Code(
        "A component of the path, or the directory asked for, is not a directory.", "Use find to see what is there."
    ),
    "NOT_TEXT": Code("The file is not UTF-8 text.", "Read it with encoding `base64`."),
    "FILE_TOO_LARGE": Code(
        "The file is over a limit, which details name.",
        "Use search for what you need; the operator's setting is limits.file_bytes.",
    ),
    "FILE_OPERATION_FAILED": Code(
        "The operating system refused a file operation; the message says which.", "Remove the cause, then call again."
    ),
    "SYMLINK_REJECTED": Code(
        "A symbolic link lies on the path; links are never followed.",
        "Use the path of the real file if that is meant; the link itself is looked at and removed by a command.",
    ),
    "SPECIAL_FILE_REJECTED": Code(
        "The path is a directory, device, socket or FIFO where a file is needed.",
        "Name a regular file; for what a directory holds, use find with the glob `directory/**`.",
    ),
    "ADD_FILE_EXISTS": Code(
        "The file to add exists already; nothing was written.", "Update it instead, or choose another path."
    ),
    "MOVE_DESTINATION_EXISTS": Code(
        "The destination of a move exists already; nothing was written.", "Choose another destination."
    ),
    "VERSION_CONFLICT": Code(
        "A file is not at the version that was expected; details say both.",
        "Read the file again and send a patch made for its current version.",
    ),
    "PATCH_ROLLED_BACK": Code(
        "The patch could not be completed; every file is as it was before.", "Look at the cause, then send it again."
    ),
    "PATCH_PARTIAL": Code(
        "The patch could not be completed, and not every file could be put back; details name them.",
        "Read the named files and decide what they should be.",
    ),
    "OUTCOME_UNKNOWN": Code(
        "Whether the change took effect cannot be seen yet.", "Ask operation_status later; it will be settled.", True
    ),
    "SNAPSHOT_EXPIRED": Code("The bytes before the patch are no longer kept.", "Undo it with a new patch."),
    "OPERATION_KEY_CONFLICT": Code(
        "This operation_key was used for another request; nothing was done.", "Use a new key for a new request."
    ),
    "OPERATION_NOT_FOUND": Code("No operation of this id or key is recorded.", "Check the id or key."),
    "PROCESS_NOT_FOUND": Code(
        "No process of this id is live or retained.", "Use list_processes; an ended one is kept for a limited time."
    ),
    "PROCESS_EXITED": Code("The process has ended; details say how.", "Read its output with read_process."),
    "OUTPUT_LIMIT": Code("The result would be over the output limit.", "Ask for less at a time."),
    "LIMIT_REACHED": Code(
        "A limit of the workspace or of the program is reached; details name it, and its setting where it has one.",
        "Ask for less, or ask the operator to raise the setting that details name.",
    ),
    "TIMEOUT": Code("The step did not end in its time.", "Try again; if it repeats, ask for less.", True),
    "WORK_NOT_FOUND": Code("No work of this id is known here.", "Open one with work_open."),
    "WORK_CLOSED": Code("The work is closed.", "Open a new one with work_open."),
    "INTENT_NOT_FOUND": Code("No intent of this id is in this work.", "Use steer_status."),
    "INTENT_ALREADY_CLAIMED": Code("The intent was claimed already.", "Complete the claimed one first."),
    "INTENT_NOT_EDITABLE": Code("The intent can no longer be edited.", "Write a new intent."),
    "INTENT_REVISION_CONFLICT": Code("The intent has another revision by now.", "Fetch it again, then edit."),
    "APPROVAL_REQUIRED": Code(
        "The request is held until it is granted; nothing was done. approval_id names the hold.",
        "Wait for the grant (approval_status), then call operation_resume with the approval_id.",
    ),
    "APPROVAL_NOT_FOUND": Code("No hold of this id exists.", "Check the approval_id."),
    "APPROVAL_CONFLICT": Code(
        "The world is no longer what the hold showed; nothing was done.", "Send the request again for a new hold."
    ),
    "APPROVAL_EXPIRED": Code(
        "The hold was not granted, or its grant not used, in time.", "Send the request again for a new hold."
    ),
    "APPROVAL_AMBIGUOUS": Code(
        "The daemon ended while the granted request was being started, or ran; it is never started twice.",
        "Look at the workspace, then send a new request if it is still needed.",
    ),
    "STORE_UNAVAILABLE": Code(
        "The database could not be read or written in time; the message says what was done.",
        "Check the disk and the database, then call again.",
        retryable=True,
    ),
    "SHUTTING_DOWN": Code("The daemon is stopping; nothing was done.", "Call again once it runs.", retryable=True),
    "INTERNAL": Code(
        "A fault of CodeSpace itself; the log has the details under the operation named here.",
        "Report it with the id; operation_status says what is recorded.",
    ),
}


class Refusal(Exception):
    """A request was refused or failed, with a code, what is left, and the next step.

    Args:
        code: One of CODES.
        message: What happened and what is left on disk. Outside text in it is escaped at the door.
        next_step: What the caller can do; the code's own where left out.
        retryable: Whether the same call may succeed later; the code's own where left out.
        details: Plain JSON values.
        operation_id, approval_id, process_id: What the refusal is about, where there is one.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        next_step: str | None = None,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
        approval_id: str | None = None,
        process_id: str | None = None,
    ) -> None:
        known = CODES[code]
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.next_step = known.next_step if next_step is None else next_step
        self.retryable = known.retryable if retryable is None else retryable
        self.details = dict(details) if details else None
        self.operation_id = operation_id
        self.approval_id = approval_id
        self.process_id = process_id

    def body(self) -> dict[str, Any]:
        """Return the error body of the contract: plain JSON values, absent fields left out."""
        fields = {
            "code": self.code,
            "message": self.message,
            "next_step": self.next_step,
            "retryable": self.retryable,
            "details": self.details,
            "operation_id": self.operation_id,
            "approval_id": self.approval_id,
            "process_id": self.process_id,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Refusal:
        """Rebuild a refusal that crossed a pipe or was stored; an unknown code becomes INTERNAL."""
        fields = {name: body.get(name) for name in ("next_step", "retryable", "details")}
        ids = {name: body.get(name) for name in ("operation_id", "approval_id", "process_id")}
        code = body.get("code", "INTERNAL")
        return cls(code if code in CODES else "INTERNAL", str(body.get("message", "")), **fields, **ids)
