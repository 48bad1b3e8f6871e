"""The environment of a command: made from nothing, so that nothing of the daemon's leaks in.

Three layers, later ones win: the clean base, the caller's variables, the operator's. The caller may
set what a program reads as input, not what decides which code runs before the program's first line
or which agent, proxy or display it talks to: a person who granted `argv` looked at argv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from codespace import limits
from codespace.display import display
from codespace.errors import Refusal

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for unless the operator's `env` sets PATH: fixed, so that it is the same
under a desktop client, a service and a login shell."""

REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "the dynamic loader would load other code into the program": (
        "LD_*",
        "DYLD_*",
        "GCONV_PATH",
        "GLIBC_TUNABLES",
        "OPENSSL_CONF",
        "OPENSSL_MODULES",
    ),
    "the interpreter would run other code before the program": (
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
        "NODE_OPTIONS",
        "BASH_ENV",
        "BASH_FUNC_*",
        "SHELLOPTS",
        "BASHOPTS",
        "ENV",
        "ZDOTDIR",
        "PERL5OPT",
        "PERL5LIB",
        "PERL5DB",
        "PERLLIB",
        "RUBYOPT",
        "RUBYLIB",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "_JAVA_OPTIONS",
        "DOTNET_STARTUP_HOOKS",
        "CORECLR_*",
        "COR_*",
        "LUA_INIT*",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
    ),
    "the program would take further arguments from it, which can name programs to run": (
        "MAKEFLAGS",
        "GNUMAKEFLAGS",
        "MAKEFILES",
        "TAR_OPTIONS",
    ),
    "git would run the program that it names": (
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_CONFIG*",
        "GIT_EXEC_PATH",
        "GIT_PROXY_COMMAND",
        "GIT_ASKPASS",
        "GIT_EDITOR",
        "GIT_SEQUENCE_EDITOR",
        "GIT_PAGER",
        "GIT_TEMPLATE_DIR",
    ),
    "it leads to an agent or a service of the operator": (
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "SSH_ASKPASS",
        "GPG_AGENT_INFO",
        "DBUS_*",
        "DOCKER_HOST",
        "DOCKER_CONTEXT",
    ),
    "the way out to the network is the operator's choice": ("*_proxy", "*_PROXY"),
    "it decides which program a name means, after the name was looked at": ("PATH",),
    "commands get a private, empty home": ("HOME",),
}
"""Patterns of names that a caller may not set, by reason. The operator's `env` may set any of them."""


def check(env: Mapping[str, str]) -> None:
    """Refuse a caller's variables that may not be set, naming all of them.

    Raises: Refusal INVALID_COMMAND; details.refused maps each name to the reason.
    """
    size = sum(len(name) + len(value) for name, value in env.items())
    if len(env) > limits.ENVIRONMENT_VARIABLES or size > limits.ARGUMENT_BYTES:
        raise Refusal(
            "INVALID_COMMAND",
            f"`env` has {len(env)} variables of {size} characters; it may have {limits.ENVIRONMENT_VARIABLES} of "
            f"{limits.ARGUMENT_BYTES} at most. Nothing was started.",
            next_step="Send fewer; write what is large into a file.",
        )
    problems = {name: problem for name, value in env.items() if (problem := _problem(name, value))}
    if problems:
        shown = "; ".join(f"{display(name, limit=80)!r}: {problem}" for name, problem in list(problems.items())[:20])
        raise Refusal(
            "INVALID_COMMAND",
            f"`env` has variables that a caller may not set ({shown}). Nothing was started.",
            next_step=_next_step(problems),
            details={"refused": {display(name, limit=80): problem for name, problem in problems.items()}},
        )


def _next_step(problems: Mapping[str, str]) -> str:
    """Name `env` for what is refused for what it does: within the command everybody sees that it does."""
    named = next((name for name, problem in problems.items() if problem == refused(name)), None)
    within = "" if named is None else f'set them in the command (["env", "{display(named, limit=80)}=...", ...]), '
    return f"Leave them out, {within}or ask the operator to set them in the workspace's `env`."


def _problem(name: str, value: str) -> str | None:
    if not name or "=" in name or not name.isascii() or not name.isprintable():
        return "a name is printable ASCII without `=`"
    if not encodable(value) or "\0" in value:
        return "a value is text without NUL"
    return refused(name)


def refused(name: str) -> str | None:
    """Return why a caller may not set `name`; None where it may."""
    for reason, patterns in REFUSED.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return reason
    return None


def encodable(text: str) -> bool:
    """Return whether `text` can be handed to the operating system: no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def build(
    operator: Mapping[str, str], caller: Mapping[str, str], home: str, *, terminal: bool = False
) -> dict[str, str]:
    """Return the whole environment of a command.

    Args:
        terminal: It gets one, of the kind that every terminfo database knows.
        operator: The workspace's `env`; wins over everything.
        caller: Variables that passed `check`.
        home: The private directory; used unless the operator set HOME.
    """
    base = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", "TERM": "xterm-256color" if terminal else "dumb"}
    return {**base, **caller, **operator}


def check_argv(argv: Sequence[str]) -> None:
    """Refuse an argv that cannot be executed. Raises: Refusal INVALID_COMMAND."""
    if not argv or not argv[0]:
        raise Refusal("INVALID_COMMAND", "`command` is empty or names no program. Nothing was started.")
    if len(argv) > limits.COMMAND_ITEMS or sum(map(len, argv)) > limits.ARGUMENT_BYTES:
        raise Refusal(
            "INVALID_COMMAND",
            f"`command` has {len(argv)} items and {sum(map(len, argv))} characters; at most "
            f"{limits.COMMAND_ITEMS} and {limits.ARGUMENT_BYTES} can be passed. Nothing was started.",
            next_step="Put the arguments into a file and name that.",
        )
    for position, item in enumerate(argv):
        if "\0" in item or not encodable(item):
            raise Refusal(
                "INVALID_COMMAND",
                f"`command[{position}]` holds a NUL or half a character; no program can be given that. "
                "Nothing was started.",
                next_step="Send such bytes on stdin or in a file.",
            )
