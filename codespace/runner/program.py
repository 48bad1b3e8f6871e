"""Which file a command runs: looked up in the clean environment, and bound by its hash for a hold."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from codespace import limits
from codespace.contract import Workspace
from codespace.digest import Digest
from codespace.display import display
from codespace.errors import Refusal
from codespace.runner import environment
from codespace.runner.turns import Turns
from codespace.sandbox import plan, shortage

_READ_BYTES: Final = 1_048_576
_hashing = Turns(limits.HASH_THREADS)
_HINTS: Final = {
    errno.ENOEXEC: "It is neither a binary for this machine nor a script with a `#!` line; name its interpreter first.",
    errno.ENOENT: "Its interpreter (the `#!` line, which must not end in CRLF, or the loader) does not exist; correct "
    "that, or send a program that runs it first.",
    errno.E2BIG: "Its arguments and environment are too large; put them into a file.",
    errno.EAGAIN: "The account has as many processes as it may have; end some first.",
    errno.ETOOMANYREFS: "A program of this account has left too many open files in sockets: end commands that are not "
    "needed, or ask the operator to end others of its programs, and call again.",
    **dict.fromkeys(shortage.ERRORS, shortage.NEXT_STEP),
    errno.ETXTBSY: "The program is open for writing; wait until it is written.",
}
_PASSING: Final = (errno.EAGAIN, errno.ETOOMANYREFS, *shortage.ERRORS)

Bound = Callable[[str], Awaitable[Mapping[str, str]]]
"""Returns what a hold binds of an absolute path, as Files.bound."""
Sees = Callable[[str], bool]


def find(argv0: str, path: str, cwd_fd: int, sees: Sees | None = None) -> str:
    """Return the program that `argv0` names: an absolute path, or one relative to `cwd_fd`.

    Args:
        argv0: With a `/` it is a path, relative to the directory; else it is looked up in `path`.
        path: PATH of the command. Entries that are not absolute are passed over: an empty one or `.`
            would let the workspace put itself in front of the system.
        sees: Whether a real path is there for the command; None where all are.
    Raises: Refusal PROCESS_SPAWN_FAILED.
    Source: the clean environment; never the daemon's own PATH.
    """
    if "/" in argv0:
        if problem := _problem(argv0, cwd_fd, sees):
            hints = {_UNSEEN: UNSEEN_HINT, INERT: INERT_HINT, SPECIAL: SPECIAL_HINT}
            if not posixpath.isabs(argv0):
                hints[_MISSING] = ABSENT_HINT
            raise failed(argv0, f"{problem}.", hints.get(problem))
        return argv0
    blocked = None
    for directory in path.split(":"):
        if not directory.startswith("/"):
            continue
        candidate = posixpath.join(directory, argv0)
        problem = _problem(candidate, cwd_fd, sees)
        if problem is None:
            return candidate
        if problem != _MISSING:
            blocked = f"{candidate}: {problem}"
    if path != environment.PATH:
        raise failed(argv0, "it was not found in the PATH that the operator set.", _shell_hint(argv0))
    raise failed(argv0, f"it was not found in PATH ({path}){f'; {blocked}' if blocked else ''}.", _shell_hint(argv0))


_MISSING: Final = "there is no such file"
DIRECTORY: Final = "it is a directory"
SPECIAL: Final = "it is a socket, a FIFO or a device"
SPECIAL_HINT: Final = "Send the path of a program (find shows what is there)."
INERT: Final = "it is not executable"
INERT_HINT: Final = "Send the program that runs it first, such as `python3` or `sh`, or make it executable."
_UNSEEN: Final = "it is not visible in the sandbox"
UNSEEN_HINT: Final = (
    "Use a program of /usr or of the workspace, or ask the operator to add its directory to `readable_paths` and, for "
    "a bare name, to PATH in `env`."
)
ABSENT_HINT: Final = (
    "Check the path, which is relative to `cwd` (find shows what is there), or send a program of the machine by its "
    "name."
)
LED_OUT_HINT: Final = (
    "Ask the operator to add the installation that it belongs to to `readable_paths`, or make it anew from what is "
    "there inside (a virtual environment: `python3 -m venv`)."
)


def _problem(program: str, cwd_fd: int, sees: Sees | None = None) -> str | None:
    if sees is not None and not sees(_real(program, cwd_fd)):
        return _UNSEEN
    try:
        mode = os.stat(program, dir_fd=cwd_fd).st_mode
        if stat.S_ISDIR(mode):
            return DIRECTORY
        if not stat.S_ISREG(mode):
            return SPECIAL
        return None if os.access(program, os.X_OK, dir_fd=cwd_fd) else INERT
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as error:
        return os.strerror(error.errno or 0)


def _real(program: str, cwd_fd: int) -> str:
    """Return where a program really lies, behind all links; a name that is missing counts where it would be."""
    return os.path.realpath(posixpath.join(os.readlink(f"/proc/self/fd/{cwd_fd}"), program))


_SHELL_WORDS: Final = frozenset({".", "alias", "cd", "export", "set", "source", "ulimit", "umask", "unset"})
# What a shell does itself; it would change nothing in any later command.
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")


def syntax_hint(argv0: str) -> str | None:
    """Return how to send what is written for a shell; None for what may be the name of a program."""
    if any(character in argv0 for character in " |&;<>$*"):
        return 'There is no shell: send each argument as its own item, or ["sh", "-c", "..."] for shell syntax.'
    if argv0 in _SHELL_WORDS or _ASSIGNMENT.match(argv0):
        return 'It is a word of a shell. Send the directory as `cwd`, variables as `env`, or ["sh", "-c", "..."].'
    return None


def _shell_hint(argv0: str) -> str:
    return syntax_hint(argv0) or (
        "Check the name, give a path (relative to `cwd`), or ask the operator to extend PATH in the workspace's `env`."
    )


def failed(argv0: str, problem: str, next_step: str | None) -> Refusal:
    """Return the refusal of a program that cannot be started, for the sentence `problem`."""
    return Refusal(
        "PROCESS_SPAWN_FAILED",
        f"{display(argv0, limit=200)!r} cannot be started: {problem} Nothing was started.",
        next_step=next_step,
    )


def spawn_failure(argv0: str, stage: str, number: int) -> Refusal:
    """Return the refusal for a start that the operating system refused at `stage` with errno `number`."""
    name = errno.errorcode.get(number, str(number))
    problem = f"the operating system refused the {stage} with {name} ({os.strerror(number)})."
    return failed(argv0, problem, _HINTS.get(number) if stage == "program" or number in _PASSING else None)


def unprepared(problem: str, error: OSError) -> Refusal:
    """Return the refusal of a start for which the daemon could not get what `problem` names."""
    return Refusal(
        "PROCESS_SPAWN_FAILED",
        f"{problem} ({error.strerror}). Nothing was started.",
        next_step=_HINTS[error.errno]
        if error.errno in _PASSING
        else "Call again; if it repeats, ask the operator, for whom `codespace doctor` looks.",
    )


async def resolve(
    workspace: Workspace, argv: Sequence[str], cwd: str, cwd_fd: int, bound_of: Bound, sees: Sees | None = None
) -> dict[str, str]:
    """Return what a hold binds: `program`, `program_file` (behind links), `program_version`, and `file:<path>` and
    `link:<path>` for what argv names in the root.

    Args:
        cwd: Relative to the root, as in SpawnRequest.
        cwd_fd: That directory, open; closing stays with the caller.
        bound_of: Asked for each path that argv may name.
        sees: Whether a real path is there for the command, as its sandbox shows it; None where all are.
    Raises: Refusal INVALID_COMMAND, PROCESS_SPAWN_FAILED, TIMEOUT.
    """
    environment.check_argv(argv)
    path = workspace.env.get("PATH", environment.PATH)
    bind = partial(_bind, argv[0], path, sees)
    try:
        program, file, version = await _hashing.run_in(workspace, bind, cwd_fd, "the program")
    except OSError as error:
        raise unprepared("The program could not be looked at", error) from error
    bound = {"program": program, "program_file": file, "program_version": version}
    for path in _named(workspace.root, argv, cwd):
        bound |= await bound_of(path)
    return bound


def _bind(argv0: str, path: str, sees: Sees | None, cwd_fd: int) -> tuple[str, str, str]:
    program = find(argv0, path, cwd_fd, sees)
    # Not through `beneath`: execve follows links too, and what it will run is what must be bound.
    held = os.open(program, os.O_PATH | os.O_CLOEXEC, dir_fd=cwd_fd)
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise failed(argv0, "it is not a regular file.", None)
        file = os.readlink(f"/proc/self/fd/{held}")
        descriptor = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return program, file, "unreadable"  # may be run but not read (mode 0711); the path is all there is to bind
    finally:
        os.close(held)
    digest = Digest()
    with open(descriptor, "rb", buffering=0) as content:
        while block := content.read(_READ_BYTES):
            digest.update(block)
    return program, file, digest.version


_OWN: Final = re.compile(r"/+proc/+(?:thread-)?self/+(cwd|root)(?![^/])")


def _named(root: str, argv: Sequence[str], cwd: str) -> list[str]:
    """Return the paths that argv may name in the root, also as `--option=path`; lexical only, with each `..` as it is
    said, since behind a link it leads elsewhere."""
    home = posixpath.normpath(posixpath.join(root, cwd))
    found: dict[str, None] = {}
    for item in argv:
        for text in (item, item.partition("=")[2]):
            if not text or len(text) > limits.PATH_CHARACTERS:
                continue
            said = _OWN.sub(lambda own: home if own[1] == "cwd" else "/", text, count=1) if _OWN.match(text) else text
            whole = re.sub("^/+", "/", posixpath.join(home, said))
            if not posixpath.isabs(said) or plan.within(posixpath.normpath(whole), root):
                found[whole] = None
    return list(found)
