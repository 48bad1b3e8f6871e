"""The words of the command line. Each command's work is in a module of its own, imported when it runs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from codespace import __version__

CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode", "codex", "generic")


def build() -> argparse.ArgumentParser:
    """Return the parser; each command sets `run(arguments) -> exit code`."""
    parser = argparse.ArgumentParser(
        prog="codespace",
        description="Give an outside agent (any MCP client) a safe pair of hands on directories that you choose.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"codespace {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _init(_command(commands, "init", "init", "register a directory: write a configuration or add to it"))
    _serve(_command(commands, "serve", "serving", "run the daemon"))
    _command(commands, "demo", "demonstration", "show the whole story on a throw-away workspace")
    _config(_command(commands, "doctor", "doctor", "say what is in force, and the exact fix for what is not"))
    _client(_command(commands, "client-config", "clients", "print (or write) what an MCP client needs to find this"))
    _console(_command(commands, "console", "console", "sign your browser in to the console of a running daemon"))
    _approvals(_command(commands, "approvals", "approvals", "show what is held, and decide it"))
    _grants(_command(commands, "grants", "grants", "show what is granted for more than one request, and take it back"))
    _operations(_command(commands, "operations", "operations", "show what was done, and decide what waits for you"))
    _processes(_command(commands, "processes", "processes", "show the commands that run"))
    _sandbox(_command(commands, "sandbox", "sandbox", "run a command in the sandbox yourself, to see what it keeps"))
    _audit(_command(commands, "audit", "audit", "check the chain of recorded events"))
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
    parser.set_defaults(run=_late(module))
    return parser


def _late(module: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        return int(importlib.import_module(f"codespace.cli.{module}").run(arguments))

    return run


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration file, instead of CODESPACE_CONFIG")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory to register; nothing in it is changed")
    parser.add_argument("--id", metavar="ID", type=_text, help="id of the workspace (default: the directory's name)")
    parser.add_argument(
        "--profile",
        choices=("read-only", "workspace-write"),
        default="read-only",
        help="read-only (default): read, find, search; workspace-write: also patches and commands",
    )
    parser.add_argument(
        "--approvals",
        choices=("off", "confirm", "operator"),
        default="off",
        help="hold patches and commands; confirm: the client may grant, operator: only you (default: off)",
    )
    parser.add_argument("--force", action="store_true", help="write a new file over an existing one (a copy is kept)")
    _config(parser)


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stdio", action="store_true", help="speak MCP on stdin and stdout (the default without --http and --console)"
    )
    parser.add_argument("--http", action="store_true", help="speak MCP over HTTP at /mcp")
    parser.add_argument(
        "--console",
        action="store_true",
        help="serve the console for your browser (see `codespace console`): beside stdio, or else beside HTTP",
    )
    parser.add_argument(
        "--no-auth", action="store_true", help="HTTP without a token: loopback only; any local program can then use it"
    )
    _config(parser)


def _client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--http", action="store_true", help="connect to a running `codespace serve --http`")
    parser.add_argument(
        "--write", action="store_true", help="merge it into the client's file of this user (a copy is kept)"
    )
    _config(parser)


def _console(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-browser", action="store_true", help="only say which file to open")
    _config(parser)


def _approvals(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(dest="question", required=True, metavar="WORD")
    listing = _word(words, "list", "what is held")
    listing.add_argument("--all", action="store_true", help="also what was decided")
    show = _word(words, "show", "the whole of one hold, with its diff")
    grant = _word(words, "grant", "let it run, once", json=False)
    deny = _word(words, "deny", "refuse it, or take back a grant that was not used", json=False)
    for each in (show, grant, deny):
        each.add_argument("id", metavar="ID", type=_text, help="the approval_id")
    grant.add_argument("--yes", action="store_true", help="do not show it and ask; you have seen it")
    grant.add_argument(
        "--fingerprint", metavar="F", type=_text, help="of what you have seen (`show --json`); another one is refused"
    )
    scope = grant.add_mutually_exclusive_group()
    scope.set_defaults(scope="once")
    scope.add_argument(
        "--exact", dest="scope", action="store_const", const="exact", help="grant this exact command again, too"
    )
    scope.add_argument(
        "--program", dest="scope", action="store_const", const="program", help="grant this program with any arguments"
    )
    scope.add_argument("--patches", dest="path", metavar="PATH", type=_text, help="grant patches that stay under PATH")
    grant.add_argument(
        "--for",
        dest="seconds",
        type=float,
        metavar="SECONDS",
        help="how long such a grant is good (default: until the daemon that holds the request ends)",
    )
    _word(words, "watch", "print holds as they come, until interrupted")


def _grants(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(dest="question", required=True, metavar="WORD")
    _word(words, "list", "what is granted, and what was")
    revoke = _word(words, "revoke", "end one", json=False)
    revoke.add_argument("id", metavar="ID", type=_text, help="the grant_id")


def _operations(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(dest="question", required=True, metavar="WORD")
    _word(words, "list", "what was done").add_argument("--open", action="store_true", help="only what has no end yet")
    show = _word(words, "show", "the whole of one operation")
    show.add_argument("--diff", action="store_true", help="the whole diff of a patch, as long as it is kept")
    settle = _word(words, "settle", "give a patch its end that a daemon left without one", json=False)
    settle.add_argument(
        "--accept", action="store_true", help="leave its files as they are (default: put them back where possible)"
    )
    forget = _word(words, "forget", "remove what undo needs, and the diff", json=False)
    forget.add_argument(
        "--rescued", action="store_true", help="also the bytes of others that it found, which are nowhere else"
    )
    for each in (show, settle, forget):
        each.add_argument("id", metavar="ID", type=_text, help="the operation_id")


def _processes(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(dest="question", required=True, metavar="WORD")
    _word(words, "list", "commands that run").add_argument("--all", action="store_true", help="also those that ended")


def _word(
    words: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, *, json: bool = True
) -> argparse.ArgumentParser:
    parser = words.add_parser(name, help=summary, description=summary[0].upper() + summary[1:], allow_abbrev=False)
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object a line, for programs")
    _config(parser)
    return parser


def _text(word: str) -> str:
    """Return a word that is looked up or kept in the database, which holds text alone."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is not UTF-8; copy it from a list, or write it anew") from None
    return word


def _sandbox(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(dest="verb", required=True, metavar="WORD")
    run = words.add_parser(
        "run",
        help="run a command locked in as an agent's would be; exits as it does",
        description="Run a command locked in as an agent's would be; exits as it does, and with 125 where nothing was "
        "run. No configuration is read: what yours says of DIR is said here by options.",
        usage="codespace sandbox run DIR [options] -- COMMAND [ARGUMENT ...]",
        allow_abbrev=False,
    )
    run.add_argument("directory", metavar="DIR", help="the workspace: all that it can write")
    run.add_argument("--network", choices=("restricted", "enabled"), default="restricted")
    run.add_argument(
        "--allow", action="append", default=[], metavar="HOST[:PORT][=ADDRESS]", help="as in allowed_domains; repeat it"
    )
    run.add_argument("--git", choices=("read_only", "commit", "unprotected"), default="read_only")
    run.add_argument("--hidden", action="append", default=[], metavar="PATTERN", help="as in hidden_paths; repeat it")
    run.add_argument("--readable", action="append", default=[], metavar="DIR", help="as in readable_paths; repeat it")
    run.add_argument("command", nargs="+", metavar="COMMAND", help="the program and its arguments, behind `--`")


def _audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question",
        choices=("verify", "head"),
        help="verify: find edits, gaps and reorderings; head: print the last number and hash, to keep elsewhere",
    )
    parser.add_argument("--head", metavar="N:HASH", help="with verify: a head printed before, so that a cut tail shows")
    _config(parser)
