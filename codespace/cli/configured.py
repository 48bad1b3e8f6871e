"""The settings for a command, or the message and exit code for a person."""

from __future__ import annotations

import os
import stat
import sys

from codespace.settings import Settings, SettingsError, load


def settings(config: str | None) -> Settings | None:
    """Return the settings; None after saying on stderr what is wrong with them.

    Args:
        config: The file of `--config`, relative to the current directory or absolute.
    """
    try:
        return load(os.environ, config_path=None if config is None else os.path.abspath(config))
    except SettingsError as error:
        print(explain(error), file=sys.stderr)
        return None


def is_begun(database: str) -> bool:
    """Return whether there is a database at this path; a start that failed on a full disk leaves an empty file.

    Of what cannot be looked at it is taken for granted: whoever opens it says what is in the way.
    """
    try:
        found = os.stat(database)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return found.st_size > 0 or not stat.S_ISREG(found.st_mode)


def cause(error: Exception) -> str:
    """Return what an error of the system says, in the words of a message: without its number, with its file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def explain(error: SettingsError) -> str:
    """Return the error in the lines of a message."""
    return f"codespace: {error.key}\n  {error.problem}\n  {error.fix}"
