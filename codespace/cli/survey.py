"""What `init` finds in a directory: toolchains, git, and files that look like secrets.

It looks at names, and into two kinds of files: `.npmrc`, which is a secret only if a token is in it, and git's index.
It follows no link, opens nothing that is not a regular file, and looks at a bounded number of entries.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from codespace import limits

_TOOLCHAINS: Final = {
    "pyproject.toml": ("Python", "python3"),
    "setup.py": ("Python", "python3"),
    "requirements.txt": ("Python", "python3"),
    "package.json": ("Node.js", "node"),
    "deno.json": ("Deno", "deno"),
    "Cargo.toml": ("Rust", "cargo"),
    "go.mod": ("Go", "go"),
    "pom.xml": ("Java (Maven)", "mvn"),
    "build.gradle": ("Java (Gradle)", "gradle"),
    "build.gradle.kts": ("Kotlin (Gradle)", "gradle"),
    "Gemfile": ("Ruby", "ruby"),
    "composer.json": ("PHP", "php"),
    "mix.exs": ("Elixir", "mix"),
    "CMakeLists.txt": ("C/C++ (CMake)", "cmake"),
    "meson.build": ("C/C++ (Meson)", "meson"),
    "Makefile": ("Make", "make"),
    "flake.nix": ("Nix", "nix"),
}
_SECRETS: Final = (
    (re.compile(r"\.env"), ".env"),
    (re.compile(r"\.env\.(?!(example|sample|template|dist|defaults)$).+"), ".env.{name}"),
    (re.compile(r".+\.pem"), "*.pem"),
    (re.compile(r".+\.key"), "*.key"),
    (re.compile(r".+\.(p12|pfx|jks|keystore)"), "*.{suffix}"),
    (re.compile(r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?"), "{name}"),
    (re.compile(r"\.(netrc|pgpass|htpasswd|pypirc|git-credentials|vault-password|vault_pass)"), "{name}"),
    (re.compile(r"(credentials|secrets?|service[-_]account)\.(json|ya?ml|toml|ini)"), "{name}"),
    (re.compile(r"terraform\.tfstate(\.backup)?"), "terraform.tfstate*"),
    (re.compile(r".+\.tfvars"), "*.tfvars"),
)
_MANY: Final = "**/.env."
"""How those patterns begin of which there can be one for each file."""
_GROUPS: Final = ((re.compile(r"[0-9]+\*?"), "[0-9]*"), (re.compile(r"(?<=\.env\.).+"), "*"))
# First what differs in its numbers alone becomes one; only if that is not enough, `.env.example` is hidden too.
_SECRET_DIRECTORIES: Final = frozenset({".aws", ".ssh", ".gnupg", ".kube", ".secrets"})
_PASSED_BY: Final = frozenset({".git", "node_modules", ".venv", "venv", "target", "__pycache__", ".tox", "vendor"})
# Large, and made by tools: a certificate of a package's test suite in them is not the operator's secret.
_NPM_TOKEN: Final = re.compile(rb"(?i)(_authToken|_auth|_password)\s*=\s*(?!\$\{)\S")
_NPMRC_BYTES: Final = 65_536  # an .npmrc has a few lines


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. `hidden` are patterns for hidden_paths; `complete` is False where a bound was met."""

    toolchains: tuple[tuple[str, str], ...]
    """Name, and the program that it needs."""
    git: bool
    hidden: tuple[str, ...]
    examples: tuple[str, ...]
    """One path for each pattern, relative to the directory."""
    committed: tuple[str, ...]
    """Files that are hidden and that git looks at: in its index, and not marked to be passed by."""
    complete: bool


def look(directory: str) -> Survey:
    """Survey `directory`.

    Raises: OSError if it cannot be listed.
    """
    names = frozenset(os.listdir(directory))
    chains = dict.fromkeys(chain for name, chain in _TOOLCHAINS.items() if name in names)
    found: dict[str, str] = {}
    files = list[str]()
    seen = 0
    for seen, (path, name, is_directory) in enumerate(_entries(directory), start=1):
        pattern = _secret(os.path.join(directory, path), name, is_directory)
        if pattern is not None:
            found.setdefault(pattern, path)
            files += [] if is_directory else [path]
        if seen >= limits.INIT_ENTRIES:
            break
    found = _grouped(found)
    return Survey(
        toolchains=tuple(chains),
        git=".git" in names,
        hidden=tuple(found),
        examples=tuple(found.values()),
        committed=_committed(directory, files),
        complete=seen < limits.INIT_ENTRIES,
    )


def _committed(directory: str, files: Sequence[str]) -> tuple[str, ...]:
    """Return those of the files that git's index names, unless it shortens names (version 4).

    Source: gitformat-index(5); in front of a name stands its length, with bits for what git passes by and conflicts.
    """
    git = os.path.join(directory, ".git")
    index = b"" if not files or os.path.islink(git) else _start(os.path.join(git, "index"), limits.SANDBOX_INDEX_BYTES)
    names = [(path, os.fsencode(path)) for path in files]
    return tuple(path for path, name in names if min(len(name), 0xFFF).to_bytes(2, "big") + name + b"\0" in index)


def _grouped(found: dict[str, str]) -> dict[str, str]:
    """Say it with fewer patterns where they are too many to be read, which hide at least the same."""
    for whole, fewer in _GROUPS:
        if sum(pattern.startswith(_MANY) for pattern in found) <= limits.INIT_PATTERNS:
            break
        grouped: dict[str, str] = {}
        for pattern, example in found.items():
            grouped.setdefault(whole.sub(fewer, pattern) if pattern.startswith(_MANY) else pattern, example)
        found = grouped
    return found


def _entries(directory: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (relative path, name, is it a directory), the nearest first."""
    waiting = [("", 0)]
    for prefix, depth in waiting:
        try:
            entries = sorted(os.scandir(os.path.join(directory, prefix)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            path = os.path.join(prefix, entry.name)
            yield path, entry.name, is_directory
            if is_directory and depth < limits.INIT_DEPTH and entry.name not in (_PASSED_BY | _SECRET_DIRECTORIES):
                waiting.append((path, depth + 1))


def _secret(path: str, name: str, is_directory: bool) -> str | None:
    if is_directory:
        return f"**/{name}" if name in _SECRET_DIRECTORIES else None
    if name == ".npmrc":
        return "**/.npmrc" if _holds_npm_token(path) else None
    for expression, pattern in _SECRETS:
        if expression.fullmatch(name.replace("\n", " ")):  # which `.` would not match
            suffix = name.rpartition(".")[2]
            shown = pattern.format(
                name=name.removeprefix(".env.") if pattern.startswith(".env.") else name, suffix=suffix
            )
            return f"**/{_literal(shown, pattern)}"
    return None


def _literal(shown: str, pattern: str) -> str:
    """Quote what a name brought in: what means more than itself, or is refused in a pattern because it might.

    What no pattern can say, or no person see (bytes that are no text, line ends, a blank at the end), becomes `*`.
    """
    if "{name}" not in pattern:
        return shown
    said = "".join(character if character.isprintable() else "\n" for character in shown)
    quoted = re.sub(r"([\\*?\[{(|,;:])", r"\\\1", re.sub(r"\s+$", "\n", said))
    return re.sub(r"\n+", "*", quoted)


def _holds_npm_token(path: str) -> bool:
    return bool(_NPM_TOKEN.search(_start(path, _NPMRC_BYTES)))


def _start(path: str, most_bytes: int) -> bytes:
    """Return what a regular file begins with; nothing where it is none, or cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read(most_bytes) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
