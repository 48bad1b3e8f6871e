"""The text of a git configuration: its settings, and which of them name a file or directory that decides what git runs.

It reads no file and looks nothing up. What a setting names is found as carefully as text alone allows: a program that
another one starts in turn is not known here.

Source: git-config(1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["configuration", "hooks", "top", "program"]
"""More configuration; a directory of hooks; the top of the working tree; what is run, or copied to be run."""


@dataclass(frozen=True, slots=True)
class Named:
    """A path as a setting spells it: `~` is a home, and what is relative begins where its kind has it begin."""

    kind: Kind
    path: str


_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_COMMENT: Final = re.compile(r"[#;][^\n]*+")
_LINE: Final = re.compile(r"[^\n]*+\n?+")
_SECTION: Final = re.compile(r'\[[ \t]*+([A-Za-z0-9.-]++)[ \t]*+("(?:[^"\\\n]|\\.)*+")?+[ \t]*+\]')
_SETTING: Final = re.compile(
    r'([A-Za-z][A-Za-z0-9-]*+)[ \t]*+(?:=[ \t]*+((?:[^\\"#;\n]++|\\[\s\S]?|"(?:[^\\"\n]++|\\[\s\S]?)*+"?)*+))?+'
)
# None ever goes back: a command can have made the configuration that is read.
_PART: Final = re.compile(r'\\([\s\S]?)|(")|([ \t\r]++)|(.)')
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", "\n": ""}
_BYTE_ORDER_MARK: Final = "\ufeff"
_OPTIONAL: Final = ":(optional)"
_PREFIX: Final = "%(prefix)/"

_PATHS: Final[dict[tuple[str, str], Kind]] = {
    ("include", "path"): "configuration",
    ("includeif", "path"): "configuration",
    ("core", "hookspath"): "hooks",
    ("core", "worktree"): "top",
    ("init", "templatedir"): "program",
    ("core", "askpass"): "program",
    ("gpg", "program"): "program",
    ("instaweb", "gitwebdir"): "program",
    ("instaweb", "modulepath"): "program",
    ("browser", "path"): "program",
    ("difftool", "path"): "program",
    ("lfs", "path"): "program",
    ("man", "path"): "program",
    ("mergetool", "path"): "program",
    ("sendemail", "smtpserver"): "program",
}
"""Settings that are a path as a whole; those of hooks that are copied into a new repository are among them."""

_COMMANDS: Final = frozenset(
    {
        ("browser", "cmd"),
        ("core", "alternaterefscommand"),
        ("core", "editor"),
        ("core", "fsmonitor"),
        ("core", "gitproxy"),
        ("core", "pager"),
        ("core", "sshcommand"),
        ("credential", "helper"),
        ("diff", "command"),
        ("diff", "external"),
        ("diff", "textconv"),
        ("difftool", "cmd"),
        ("filter", "clean"),
        ("filter", "process"),
        ("filter", "smudge"),
        ("gc", "recentobjectshook"),
        ("gpg", "defaultkeycommand"),
        ("guitool", "cmd"),
        ("hook", "command"),
        ("imap", "tunnel"),
        ("instaweb", "httpd"),
        ("interactive", "difffilter"),
        ("lfs", "clean"),
        ("lfs", "smudge"),
        ("man", "cmd"),
        ("merge", "driver"),
        ("mergetool", "cmd"),
        ("remote", "receivepack"),
        ("remote", "uploadpack"),
        ("sendemail", "cccmd"),
        ("sendemail", "headercmd"),
        ("sendemail", "sendmailcmd"),
        ("sendemail", "tocmd"),
        ("sequence", "editor"),
        ("svn", "authorsprog"),
        ("tar", "command"),
        ("trailer", "cmd"),
        ("trailer", "command"),
        ("uploadpack", "packobjectshook"),
    }
)
"""Settings that a shell runs."""
_ADDRESSES: Final = frozenset({("remote", "url"), ("remote", "pushurl")})
_EXTERNAL: Final = "ext::"
"""How an address begins that is a program (gitremote-ext)."""
_OF_ANY_KEY: Final = frozenset({"alias", "pager"})
_MARKED: Final = frozenset({"alias", "submodule"})
"""Sections whose values are commands of the shell only behind an exclamation mark."""

_EXPANSION: Final = re.compile(r"\$\([^()]*+\)(?=/)|`[^`]*+`(?=/)|\$\{\w++\}(?=/)|\$\w++(?=/)")
# The way to the top of the working tree, as `$(git rev-parse --show-toplevel)/tools/x` spells it.
_OF_THE_HOME: Final = re.compile(r"\$HOME(?=/)|\$\{HOME\}(?=/)")
_ASSIGNMENT: Final = re.compile(r"\w+=")
_BEGINS: Final = frozenset({"!", "{", "do", "else", "elif", "if", "then", "until", "while"})
_WRAPPERS: Final = frozenset({"command", "env", "exec", "nice", "nohup", "setsid", "sudo", "time", "timeout"})
_INTERPRETERS: Final = re.compile(
    r"(?:(?:[bd]?a|z|k|fi|tc|c)?sh|pypy[\d.]*|python[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|deno|bun|php[\d.]*"
    r"|lua[\d.]*|tclsh[\d.]*|Rscript|source|\.)"
)
_LOADING: Final = frozenset({"-I", "-d", "-r", "--import", "--loader", "--rcfile", "--require"})
"""Options of interpreters with a value that may look like a script, and behind which that still comes."""
_PARTING: Final = "();&|<>"
_NESTED: Final = 4
# Commands within commands that are looked at: a shell in a shell is as much as anybody writes.
_COMMAND_CHARACTERS: Final = 16_384
# Longest command that is taken apart as a shell would, at some microsecond a character.


def named(text: str) -> Iterator[Named]:
    """Yield what the settings in a configuration name, in their order."""
    for section, key, said in _settings(text):
        kind = _PATHS.get((section, key))
        if kind is not None:
            path = _path(_plain(said))
            if path:  # an empty one takes no hooks from anywhere
                yield Named(kind, path)
        elif (section, key) in _COMMANDS or section in _OF_ANY_KEY or (section, key) == ("submodule", "update"):
            yield from (Named("program", path) for path in _programs(section, _plain(said)))
        elif (section, key) in _ADDRESSES and (address := _plain(said)).startswith(_EXTERNAL):
            yield from (Named("program", path) for path in _programs(section, address.removeprefix(_EXTERNAL)))


def object_bytes(text: str) -> int:
    """Return how long the name of an object is by the configuration of a repository: 20 for SHA-1, 32 for SHA-256."""
    found = [said for section, key, said in _settings(text) if (section, key) == ("extensions", "objectformat")]
    return 32 if found and _plain(found[-1]) == "sha256" else 20


def _path(value: str) -> str:
    value = value.removeprefix(_OPTIONAL)
    return f"/usr/{value.removeprefix(_PREFIX)}" if value.startswith(_PREFIX) else value


def _programs(section: str, value: str) -> Iterator[str]:
    """Yield the paths in a command that a shell is given: what it starts, and what it has an interpreter read."""
    if section in _MARKED and not value.startswith("!"):
        return
    left = [value.removeprefix("!")]
    for _ in range(_NESTED):
        if left:
            yield from _started(left.pop(), left)


def _started(command: str, nested: list[str]) -> Iterator[str]:
    """Yield the paths in one command, and add to `nested` what it has a shell run (`sh -c '...'`)."""
    expected: Literal["program", "file", "command"] | None = "program"
    before = ""
    for word in _words(command):
        if word in _BEGINS or not word.strip(_PARTING):
            expected = None if word.startswith(("<", ">")) else "program"
        elif expected == "program" and not (_ASSIGNMENT.match(word) or word.startswith("-")):
            if "/" in word:
                yield word
            expected = _behind_program(word, before)
        elif expected == "command":
            nested.append(word)
            expected = None
        elif expected == "file" and word.startswith("-"):
            expected = _behind(word)
        elif expected == "file":
            yield word
            # It may be the value of an option.
            expected = None if ("/" in word or "." in word) and before not in _LOADING else "file"
        before = word


def _behind_program(word: str, before: str) -> Literal["program", "file"] | None:
    """Return what follows a word that a program's name was expected at: of a wrapper, it may be an option's value."""
    name = word.rpartition("/")[2]
    if _INTERPRETERS.fullmatch(name):
        return "file"
    is_value = "/" not in word and (before.startswith("-") or (before in _WRAPPERS and word[:1].isdigit()))
    return "program" if name in _WRAPPERS or is_value else None


def _behind(option: str) -> Literal["file", "command"] | None:
    """Return what follows an option of an interpreter: the file that it reads as a rule."""
    if option.startswith("--"):
        return "file"
    return "command" if option.endswith("c") else None if option.endswith("m") else "file"


def _words(command: str) -> list[str]:
    """Return the words of a command and what parts its commands; of one that no shell takes, what spaces part."""
    command = _EXPANSION.sub(".", _OF_THE_HOME.sub("~", command)).replace("\n", " ; ")
    if len(command) > _COMMAND_CHARACTERS:
        return command.split()
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return command.split()


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of each setting, the value as it is written; section and key in small letters."""
    text = text.replace("\r\n", "\n").removeprefix(_BYTE_ORDER_MARK)
    section = ""
    position = 0
    while position < len(text):
        if space := _SPACE.match(text, position):
            position = space.end()
        if found := _SECTION.match(text, position):
            section = found[1].lower().partition(".")[0]
        elif found := _SETTING.match(text, position):
            if found[2] is not None:
                yield section, found[1].lower(), found[2]
        else:
            found = _COMMENT.match(text, position) or _LINE.match(text, position)
        position = found.end() if found else len(text)


def _plain(value: str) -> str:
    """Return a value without its quotes and escapes, and without what spaces stand at its ends outside of quotes.

    A NUL ends it.
    """
    kept: list[str] = []
    spaces = ""
    quoted = has_begun = False
    for escaped, quote, space, letter in _PART.findall(value):
        if space and not quoted:
            spaces += space if has_begun else ""
            continue
        if quote:
            quoted = not quoted
        part = spaces + (_ESCAPES.get(escaped, escaped) or space or letter)
        kept.append(part)
        has_begun = has_begun or part != ""
        spaces = ""
    return "".join(kept).partition("\0")[0]
