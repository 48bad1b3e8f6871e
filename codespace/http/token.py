"""The static Bearer token: the operator's, or one made once and kept where only the operator reads."""

from __future__ import annotations

import os
import secrets
import stat
from typing import Final

from codespace import limits
from codespace.settings.fault import SettingsError

_READ_BYTES: Final = 4_096  # far over a token; a file that is larger is something else


def load_or_create(path: str) -> str:
    """Return the token in `path`, made (0600) if there is none. Blocking; for the start.

    Two daemons that start at once end up with the same one.

    Raises: SettingsError if the file is not ours alone, is empty, or cannot be made.
    """
    try:
        return load(path)
    except FileNotFoundError:
        pass
    try:
        _create(path, secrets.token_urlsafe(limits.TOKEN_BYTES))
        return load(path)
    except OSError as error:
        raise SettingsError(
            path, f"The token cannot be stored: {error.strerror}.", "Make the directory writable."
        ) from error


def _create(path: str, token: str) -> None:
    """Put a whole file under `path` at once; the first of several writers wins."""
    staged = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(staged, path)
        except FileExistsError:
            return
    finally:
        os.unlink(staged)


def load(path: str) -> str:
    """Return the token in `path`. Raises: FileNotFoundError, SettingsError as `load_or_create`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unfit(path, f"cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _unfit(path, "is no regular file")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _unfit(path, "can be read or changed by others")
        token = os.read(fd, _READ_BYTES).strip()
    finally:
        os.close(fd)
    if not token.isascii() or not token.decode("ascii").isprintable() or len(token) < limits.TOKEN_BYTES:
        raise _unfit(path, "holds no token")
    return token.decode("ascii")


def _unfit(path: str, problem: str) -> SettingsError:
    return SettingsError(path, f"The token file {problem}.", "Remove it; a new one is made at the next start.")
