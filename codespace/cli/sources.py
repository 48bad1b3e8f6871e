"""What `init` can offer for commands: where the operator's own tools fetch packages from, and where toolchains lie.

It reads the user's configuration of pip, uv, npm and cargo for names of hosts, and for nothing else: what
else stands in an address (an account, a token) is never shown. An offer is printed, not written.
"""

from __future__ import annotations

import configparser
import ipaddress
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from codespace.cli.userfile import at_once

_USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "python3": ("pypi.org", "files.pythonhosted.org"),
    "node": ("registry.npmjs.org",),
    "cargo": ("index.crates.io", "static.crates.io"),
    "go": ("proxy.golang.org", "sum.golang.org"),
}
"""By the program that a toolchain needs."""
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "python3": ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL"),
    "node": ("NPM_CONFIG_REGISTRY", "npm_config_registry"),
    "cargo": (),
    "go": ("GOPROXY",),
}
_VERSIONED: Final[Mapping[str, str]] = {"python3": "python"}
"""What a version file is named after, where that is not the program."""
_NPM: Final = re.compile(r"^\s*(?:@[^:\s]+:)?registry\s*=\s*(\S+)", re.MULTILINE)
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_CONFIGURATION_BYTES: Final = 262_144  # a person writes less


def domains(programs: Iterable[str], environ: Mapping[str, str], home: str) -> list[str | dict[str, Any]]:
    """Return entries for allowed_domains: the operator's own sources, the public ones where none is configured."""
    found: dict[str, None] = {}
    for program in programs:
        if program in _USUAL:
            own = [entry for url in _configured(program, environ, home) if (entry := _entry(url)) is not None]
            found |= dict.fromkeys(own or _USUAL[program])
    return [_pinned(entry) for entry in found]


def readable_paths(programs: Iterable[str], home: str, directory: str) -> list[str]:
    """Return directories of toolchains that the sandbox would not show.

    Args:
        directory: The project's; the Python of its virtual environment is looked for too.
    """
    found: dict[str, None] = {}
    for program in programs:
        where = shutil.which(program)
        if where is not None and _is_shim(where):
            where = _behind_shim(where, program, directory)
        if where is not None:
            found |= dict.fromkeys(_outside(os.path.realpath(where), home))
    for name in (".venv", "venv"):
        base = os.path.realpath(os.path.join(directory, name, "bin", "python"))
        if _is_python(base):
            found |= dict.fromkeys(_outside(base, home))
    return list(found)


def _is_shim(program: str) -> bool:
    """Return whether it only starts what lies elsewhere (of pyenv, asdf, mise and the like), and needs its settings."""
    return any(os.path.basename(os.path.dirname(path)) == "shims" for path in (program, os.path.realpath(program)))


def _behind_shim(shim: str, program: str, directory: str) -> str | None:
    """Return what a shim of pyenv, rbenv or nodenv would run in `directory`, by the files that name the version.

    None where they name none that is there. Nothing is run; a name is only compared with those of what is installed.
    """
    root = os.path.dirname(os.path.dirname(shim))
    try:
        installed = sorted(
            os.listdir(f"{root}/versions"), key=lambda name: list(map(int, re.findall(r"\d{1,9}", name)))
        )
    except OSError:
        return None
    language = _VERSIONED.get(program, program)
    for path in (os.path.join(directory, f".{language}-version"), f"{root}/version"):
        for said in _text(path).split():
            # As those do, `3.12` stands for the newest of it.
            for version in reversed([each for each in installed if f"{each}.".startswith(f"{said}.")]):
                if os.access(found := f"{root}/versions/{version}/bin/{program}", os.X_OK):
                    return found
    return None


def _is_python(program: str) -> bool:
    """Return whether it belongs to a whole Python: a repository may have a link to anything for its environment's."""
    folder, name = os.path.split(program)
    return os.path.isfile(os.path.join(os.path.dirname(folder), "lib", name, "os.py"))


def _outside(program: str, home: str) -> Iterator[str]:
    folder = os.path.dirname(program)
    if program.startswith(("/usr/", "/bin/", "/sbin/", "/nix/store/", "/gnu/store/")):
        return
    above = os.path.dirname(folder)
    if os.path.basename(folder) == "bin" and _is_cargos(above, home):
        yield folder  # not what is above it: credentials lie there
        rustup = os.environ.get("RUSTUP_HOME") or os.path.join(home, ".rustup")
        if os.path.isdir(toolchains := os.path.join(os.path.realpath(rustup), "toolchains")):
            yield toolchains
        return
    whole = os.path.basename(folder) == "bin" and above not in ("/", "/opt", home, os.path.join(home, ".local"))
    yield above if whole else folder


def _is_cargos(folder: str, home: str) -> bool:
    """Return whether cargo keeps its credentials there, by its settings or by what lies there."""
    own = os.environ.get("CARGO_HOME") or os.path.join(home, ".cargo")
    named = [os.path.join(folder, name) for name in ("credentials.toml", "credentials")]
    return folder == os.path.realpath(own) or any(map(os.path.lexists, named))


def _configured(program: str, environ: Mapping[str, str], home: str) -> Iterator[str]:
    for name in _VARIABLES[program]:
        yield from re.split(r"[\s,|]+", environ.get(name, ""))
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    if program == "python3":
        for path in (f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf", "/etc/pip.conf"):
            yield from _of_pip(_text(path))
        yield from _of_uv(_table(f"{config}/uv/uv.toml"))
    elif program == "node":
        yield from _NPM.findall(_text(f"{home}/.npmrc"))
    elif program == "cargo":
        yield from _of_cargo(_table(f"{environ.get('CARGO_HOME') or f'{home}/.cargo'}/config.toml"))


def _of_pip(text: str) -> Iterator[str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    for section in parser.sections():
        for key in ("index-url", "index_url", "extra-index-url", "extra_index_url"):
            yield from parser.get(section, key, fallback="").split()


def _of_uv(table: Mapping[str, Any]) -> Iterator[str]:
    for key in ("index-url", "extra-index-url", "index"):
        value = table.get(key, [])
        for each in value if isinstance(value, list) else [value]:
            yield str(each.get("url", "")) if isinstance(each, dict) else str(each)


def _of_cargo(table: Mapping[str, Any]) -> Iterator[str]:
    for section, key in (("source", "registry"), ("registries", "index")):
        entries = table.get(section, {})
        for each in entries.values() if isinstance(entries, dict) else ():
            if isinstance(each, dict) and isinstance(each.get(key), str):
                yield each[key].removeprefix("sparse+")


def _entry(url: str) -> str | None:
    """Return `host` or `host:port` of an address, and nothing else of it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or host is None or not _HOST.fullmatch(host):
        return None
    return host if port in (None, 80, 443) else f"{host}:{port}"


def _pinned(entry: str) -> str | dict[str, Any]:
    """Return the entry, as a pin where it is an address: only that lets one through."""
    host, _, port = entry.partition(":")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return entry
    return {"host": host, **({"port": int(port)} if port else {}), "address": host}


def _text(path: str) -> str:
    """Return what a file says; nothing for what is no regular file, such as a pipe that somebody may write to."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=at_once) as file:
            return file.read(_CONFIGURATION_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""


def _table(path: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (ValueError, RecursionError):  # a number of thousands of digits is no decode error
        return {}
