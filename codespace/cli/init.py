"""`codespace init DIR`: registers a directory, in a new configuration or in the one that is there."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from codespace import cli, limits
from codespace.cli import configured, tomltext, userfile
from codespace.cli.survey import Survey, look
from codespace.display import display
from codespace.settings import SettingsError, check, kinds, roots
from codespace.settings.document import KEY, default_path, parser
from codespace.settings.environment import home
from codespace.settings.fault import whole

_HEADING: Final = "# The directories that an agent may use; each key is explained in docs/settings.md."


def run(arguments: argparse.Namespace) -> int:
    """Write the configuration; print what was found, what was written, and the next steps."""
    try:
        directory, path = _directory(arguments.directory), _path(arguments.config)
        found = look(directory)
        present = None if arguments.force else userfile.read(path)
        name = arguments.id or _name(directory)
        holds = _sandbox_holds(_bubblewrap(path, present))
        text = _text(path, present, name, _table(arguments, directory, found, holds))
        _try_out(path, text)
        copied = None if text == present else userfile.replace(path, text, private=present is None)
    except SettingsError as error:
        print(configured.explain(error) + "\n  Nothing was written.", file=sys.stderr)
        return cli.USAGE
    except (OSError, UnicodeError) as error:
        if cli.is_nowhere(error):
            raise
        print(f"codespace: {display(configured.cause(error))}. Nothing was written.", file=sys.stderr)
        return cli.USAGE
    _report(found, directory)
    _offer(found, directory)
    _next_steps(path, name, arguments.profile, copied, holds)
    return 0


def _directory(named: str) -> str:
    if not named:  # as of a variable that was never set, and it would be the directory that this runs in
        raise SettingsError("DIR", "It is empty.", "Name a directory; this one is `.`.")
    directory = os.path.realpath(named)
    kinds.refuse_undecodable("DIR", directory)
    return directory


def _path(named: str | None) -> str:
    """Return the file to write. Raises: SettingsError for one that would never be read."""
    chosen = os.environ.get("CODESPACE_CONFIG") or default_path(os.environ, home(os.environ))
    path = chosen if named is None else os.path.abspath(named)
    kinds.refuse_undecodable(KEY, path)
    parser(path)
    return path


def _name(directory: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", os.path.basename(directory).lower()).strip("-._")
    return name[:64] or "workspace"


def _bubblewrap(path: str, present: str | None) -> str | None:
    """Return the bubblewrap that the operator chose in the configuration that is there."""
    try:
        chosen = (json.loads if path.endswith(".json") else tomllib.loads)(present or "")["bwrap_path"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None  # what is wrong with it is told by what tries to add to it
    return chosen if isinstance(chosen, str) else None


def _sandbox_holds(bubblewrap: str | None) -> bool:
    """Try it here and now: what is written as `required` must not refuse every command tomorrow."""
    from codespace.errors import Refusal
    from codespace.sandbox.box import Sandbox

    try:
        return Sandbox(bubblewrap).standing().rung == "linux-sandbox"
    except Refusal:
        return False


def _table(arguments: argparse.Namespace, directory: str, found: Survey, holds: bool) -> dict[str, Any]:
    table: dict[str, Any] = {"root": directory, "profile": arguments.profile, "approvals": arguments.approvals}
    if holds:
        table["sandbox"] = "required"
    if found.hidden:
        table["hidden_paths"] = list(found.hidden)
    return table


def _text(path: str, present: str | None, name: str, table: dict[str, Any]) -> str:
    """Return the file's new text: the old one is kept, to the letter in TOML."""
    if present is not None:
        _refuse_changes(path, present, name, table)
    if path.endswith(".json"):
        return _json_text(path, present, name, table)
    where = ("workspaces", name)
    if present is None:
        return f"{_HEADING}\n\n{tomltext.section(where, table)}\n"
    try:
        return tomltext.append(present, where, table)
    except tomltext.NotSafe as error:
        raise _by_hand(path, name, str(error), tomltext.section(where, table)) from None


def _refuse_changes(path: str, present: str, name: str, table: dict[str, Any]) -> None:
    """Refuse the same directory under the same id where the operator, or an earlier `init`, set it up otherwise."""
    try:
        entry = (json.loads if path.endswith(".json") else tomllib.loads)(present)["workspaces"][name]
        same = os.path.realpath(entry["root"]) == table["root"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # whatever else is there is told by what tries to add to it
    if same and entry != table:
        raise SettingsError(
            f"workspaces.{name}",
            f"It is in {display(path)} already, with other settings than these.",
            "Change it there. Nothing is missing.",
        )


def _json_text(path: str, present: str | None, name: str, table: dict[str, Any]) -> str:
    snippet = json.dumps({name: table}, indent=2, ensure_ascii=False)
    try:
        document = parser(path)(present) if present is not None else {}
        registered = document.setdefault("workspaces", {})
        if registered.setdefault(name, table) != table:
            raise _by_hand(path, name, f"it has another `{name}` already", snippet)
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    except (AttributeError, TypeError):
        raise _by_hand(path, name, "it is not a JSON object with workspaces", snippet) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            KEY, f"{display(path)} cannot be parsed: {display(str(error))}.", "Correct it there."
        ) from None


def _by_hand(path: str, name: str, reason: str, section: str) -> SettingsError:
    lines = "\n    ".join(display(section, newlines=True).splitlines())
    return SettingsError(
        f"workspaces.{name}",
        f"It cannot be added to {display(path)}: {display(reason)}.",
        f"Choose another --id, or add by hand:\n    {lines}",
    )


def _try_out(path: str, text: str) -> None:
    """Load the new text as the daemon would, before it takes the place of the old one."""
    from codespace.sandbox.probefolder import open_folder

    with open_folder("codespace-init-") as folder:
        trial = os.path.join(folder, f"config{os.path.splitext(path)[1]}")
        with open(trial, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            settings = check(os.environ, config_path=trial)
        except SettingsError as error:  # about what is to be there; the trial is gone by the time that it is read
            raise SettingsError(error.key, error.problem.replace(trial, whole(path)), error.fix) from None
    for workspace in settings.workspaces.values():
        if os.path.realpath(path).startswith(workspace.root + "/"):
            raise SettingsError(
                "--config", f"{display(path)} lies inside the root of `{workspace.id}`.", "Write it elsewhere."
            )


def _report(found: Survey, directory: str) -> None:
    import shutil

    print(f"Registered {display(directory)}")
    if not found.toolchains:
        print("  toolchain  none is seen at its top")
    for name, program in found.toolchains:
        note = "" if shutil.which(program) else f" (but `{program}` is not on the PATH)"
        print(f"  toolchain  {name}{note}")
    print(f"  git        {'yes; patches to git directories are refused' if found.git else 'no repository at its top'}")
    for pattern, example in zip(found.hidden, found.examples, strict=True):
        print(f"  hidden     {display(pattern)}  (for example {display(example)})")
    if found.committed:
        _say_committed(found.committed, directory)
    if not found.complete:
        print("  note       The directory is large; only its nearest part was looked at. Check hidden_paths yourself.")


def _say_committed(files: Sequence[str], directory: str) -> None:
    """Name the way to let commands use git although files of the repository are hidden from them."""
    shown, left = files[: limits.INIT_PATTERNS], len(files[limits.INIT_PATTERNS :])
    command = ["git", "-C", directory, "update-index", "--skip-worktree", "--", *shown]
    print("  note       Some hidden files are committed: `git diff` and `git add` of commands fail on them. Git passes")
    print("             them by, also where you change them, after (`--no-skip-worktree` takes it back):")
    print(f"             {display(shlex.join(command))}")
    if left:
        print(f"             and so for {left} more")


def _offer(found: Survey, directory: str) -> None:
    """Print what commands could be let have: the operator decides, so nothing of it is written."""
    from codespace.cli import sources

    programs = [program for _, program in found.toolchains]
    readable = sources.readable_paths(programs, home(os.environ), directory)
    domains = sources.domains(programs, os.environ, home(os.environ))
    if readable:
        print(
            f"  offer      readable_paths = {_listed(readable)}  (a toolchain that the sandbox does not show; and PATH)"
        )
        if any(roots.within(os.path.realpath(sys.base_prefix), path) for path in readable):
            print(f"             CodeSpace runs on that Python itself. {roots.ANOTHER_PYTHON}")
    if domains:
        print(
            f'  offer      network = "enabled" and allowed_domains = {_listed(domains)}  (where your tools fetch from)'
        )


def _listed(entries: Sequence[object]) -> str:
    return display(json.dumps(entries, ensure_ascii=False))


def _next_steps(path: str, name: str, profile: str, copied: str | None, holds: bool) -> None:
    print(f"Wrote {display(path)}" + (f" (what was there before: {display(copied)})" if copied else ""))
    print("\nNext:")
    if path != default_path(os.environ, home(os.environ)):
        print(f"  export CODESPACE_CONFIG={shlex.quote(display(path))}")
    print("  codespace doctor                     what is in force, and what is not")
    print("  codespace client-config claude-code  or claude-desktop, cursor, vscode, codex, generic")
    if profile == "read-only":
        print(
            f"\n`{name}` is read-only: read, find, search. To let an agent patch and run commands, set\n"
            '`profile = "workspace-write"` there.'
        )
    if holds:
        print(
            "\nCommands run in a sandbox, which holds here: they see the workspace, /usr and /etc, and have no\n"
            "network. docs/sandbox.md says what else you can let them have."
        )
    else:
        print(
            "\nThe sandbox for commands does not hold here (`codespace doctor` says why, and the remedy): they\n"
            "would run with all rights of your account."
        )
