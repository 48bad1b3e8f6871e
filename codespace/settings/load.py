"""From environment and configuration file to `Settings`, or to one error that names key and fix."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from codespace import limits
from codespace.settings import document, environment, keys, kinds, roots, workspaces
from codespace.settings.fault import SettingsError, unknown_key, whole
from codespace.settings.model import MEMORY_DATABASE, Settings
from codespace.settings.roots import Guarded


def load(environ: Mapping[str, str], *, config_path: str | None = None) -> Settings:
    """Return the operator's settings; make the state directory (0700) if it is not there.

    Args:
        environ: The environment; nothing else of the process is read but its user and home.
        config_path: A configuration file, instead of CODESPACE_CONFIG.
    Raises: SettingsError, before anything was made.
    """
    settings = check(environ, config_path=config_path)
    _make_state_dir(settings.state_dir)
    return settings


def check(environ: Mapping[str, str], *, config_path: str | None = None) -> Settings:
    """Return what `load` would, and make nothing."""
    home = environment.home(environ)
    values = environment.read(environ)
    default_timeout = values.pop("process_timeout_seconds", None)
    path = _config_path(environ, config_path or values.pop("config_path", None), home)
    values.pop("config_path", None)
    written = document.read(path) if path else {}
    values["state_dir"] = os.path.realpath(values.get("state_dir") or default_state_dir(environ, home))
    kinds.refuse_undecodable("CODESPACE_STATE_DIR", values["state_dir"])
    values["database"] = _database(values)
    values.update(_top(written))
    values["workspaces"] = workspaces.workspaces(
        written.get("workspaces", {}), workspaces.environments(written.get("environments", {})), default_timeout
    )
    settings = Settings(config_path=path, **values)
    roots.check(settings.workspaces, list(_guarded(settings)), home)
    _refuse_forgetful_holds(settings)
    _refuse_open_door(settings)
    _refuse_common_runner_dir(settings, home)
    _refuse_missing_programs(settings)
    return settings


def notices(settings: Settings) -> Iterator[str]:
    """Yield what an operator should hear at every start: what was asked for and is not in force, or may get in the way
    of another workspace."""
    if not settings.workspaces:
        where = settings.config_path or "no configuration file was found"
        yield f"No workspace is registered ({where}). Write one with `codespace init DIR`."
    if settings.database == MEMORY_DATABASE:
        yield "The database is in memory: operations, keys and the audit chain are gone when this daemon ends."
    for workspace in settings.workspaces.values():
        where = f"workspaces.{workspace.id}"
        if workspace.network == "enabled" and not workspace.allowed_domains:
            yield f"{where}: network is `enabled` and allowed_domains names no host: nothing can be reached."
        if workspace.allow_degraded and workspace.sandbox == "required":
            yield f"{where}: allow_degraded has no effect: sandbox `required` accepts nothing less."
        for path in workspace.readable_paths:
            for other in settings.workspaces.values():
                if other is not workspace and roots.within(other.root, path):
                    may_lock = f"its commands may read {whole(path)}, and one that locks it (flock)"
                    yield f"{where}: {may_lock} keeps workspace {other.id} busy for as long as it runs."


def default_state_dir(environ: Mapping[str, str], home: str) -> str:
    """Return the state directory where CODESPACE_STATE_DIR names none."""
    base = environ.get("XDG_STATE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".local", "state"), "codespace")


def _config_path(environ: Mapping[str, str], named: str | None, home: str) -> str | None:
    default = document.default_path(environ, home)
    path = default if named is None else os.path.abspath(named)
    if named is None and not os.path.lexists(path):
        return None
    kinds.refuse_undecodable(document.KEY, path)
    return path


def _database(values: Mapping[str, Any]) -> str:
    named: str | None = values.get("database")
    if named == MEMORY_DATABASE:
        return MEMORY_DATABASE
    if named is None:
        return os.path.join(str(values["state_dir"]), "operations.sqlite")
    real = os.path.realpath(named)
    kinds.refuse_undecodable("CODESPACE_OPERATIONS_DB", real)
    if os.path.isdir(real) or not os.path.isdir(os.path.dirname(real)):
        raise SettingsError(
            "CODESPACE_OPERATIONS_DB", f"{whole(named)} cannot be a file.", "Name a file in a directory that exists."
        )
    return real


def _top(written: Mapping[str, Any]) -> dict[str, Any]:
    sections = ("workspaces", "environments")
    for name in written:
        if name not in keys.TOP and name not in sections:
            raise unknown_key("", name, (*keys.TOP, *sections))
    plain = {name: value for name, value in written.items() if name not in sections}
    for name in sections:
        kinds.table(name, written.get(name, {}))
    return keys.fields("", plain, keys.TOP)


def _guarded(settings: Settings) -> Iterator[Guarded]:
    fix = "Set CODESPACE_STATE_DIR to a directory elsewhere."
    yield Guarded("The state directory", settings.state_dir, fix, whole=True)
    if settings.database != MEMORY_DATABASE:
        yield Guarded("The database", settings.database, "Set CODESPACE_OPERATIONS_DB to a file elsewhere.")
    if settings.config_path is not None:
        for path in {settings.config_path, os.path.realpath(settings.config_path)}:
            yield Guarded("The configuration file", path, "Move it elsewhere and set CODESPACE_CONFIG.")
    if settings.runner_dir is not None:
        path = os.path.realpath(settings.runner_dir)
        yield Guarded("The runner's directory", path, "Set CODESPACE_RUNNER_DIR.", whole=True)
    for key in ("bwrap_path", "rg_path"):
        path = getattr(settings, key)
        if path is not None:
            yield Guarded(f"The program of {key}", os.path.realpath(path), f"Set {key} to a program elsewhere.")
    yield from roots.installation()


def _refuse_open_door(settings: Settings) -> None:
    """A daemon that others can reach never relies on a token that nobody chose to give out, or that is soon guessed."""
    names = {host: host if host.endswith("]") else host.rpartition(":")[0] or host for host in settings.allowed_hosts}
    if not environment.is_loopback(settings.http_host):
        key, host = "CODESPACE_HTTP_HOST", settings.http_host
    elif others := [host for host, name in names.items() if not environment.is_loopback(name)]:
        key, host = "CODESPACE_ALLOWED_HOSTS", others[0]
    else:
        return
    if settings.http_token is None:
        fix = "Set CODESPACE_HTTP_TOKEN to a long random text."
        raise SettingsError(key, f"{host} is not this machine alone.", fix)
    least, tokens = limits.PUBLIC_TOKEN_CHARACTERS, (settings.http_token, settings.operator_token)
    for name, token in zip(("CODESPACE_HTTP_TOKEN", "CODESPACE_OPERATOR_TOKEN"), tokens, strict=True):
        if token is not None and len(token) < least:
            problem = f"It has under {least} characters, and {host} is not this machine alone."
            raise SettingsError(name, problem, "Set it to a long random text.")


def _refuse_common_runner_dir(settings: Settings, home: str) -> None:
    """A socket's directory must be one where nobody else puts things, and that can be removed as a whole."""
    if settings.runner_dir is None:
        return
    real = os.path.realpath(settings.runner_dir)
    if real in {os.path.realpath(each) for each in ("/", "/tmp", "/var/tmp", home)}:  # noqa: S108 - refused, not used
        raise SettingsError(
            "CODESPACE_RUNNER_DIR",
            f"{whole(settings.runner_dir)} is a directory for everything.",
            "Name one that is for this alone, or leave it out.",
        )


def _refuse_forgetful_holds(settings: Settings) -> None:
    """The operator decides from another program, which meets the daemon in the database's file."""
    holding = [each.id for each in settings.workspaces.values() if each.approvals == "operator"]
    if holding and settings.database == MEMORY_DATABASE:
        raise SettingsError(
            "CODESPACE_OPERATIONS_DB",
            f"Approvals of workspace `{holding[0]}` are `operator`, and the database is in memory.",
            "Unset it, or name a file.",
        )


def _refuse_missing_programs(settings: Settings) -> None:
    for key in ("bwrap_path", "rg_path"):
        path = getattr(settings, key)
        if path is not None and not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise SettingsError(key, f"{whole(path)} is not a program.", "Correct the path, or leave the key out.")


def _make_state_dir(path: str) -> None:
    key = "CODESPACE_STATE_DIR"
    try:
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with suppress(FileExistsError):  # another daemon was faster
                os.mkdir(path, 0o700)
    except OSError as error:
        raise SettingsError(
            key, f"{whole(path)} cannot be made: {os.strerror(error.errno or 0)}.", "Name a directory of your own."
        ) from None
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise SettingsError(key, f"{whole(path)} is not a directory.", "Name a directory of your own.")
    if found.st_uid != os.geteuid():
        raise SettingsError(key, f"{whole(path)} belongs to user {found.st_uid}.", "Name a directory of your own.")
    document.refuse_foreign(key, path, found, fix="chmod 700")
