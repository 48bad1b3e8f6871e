"""`codespace audit verify|head`: the chain of recorded events, read without a daemon and never changed."""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys

from codespace import cli
from codespace.cli import configured
from codespace.display import display
from codespace.errors import Refusal
from codespace.gateway import audit
from codespace.gateway.database import check_secrets, connect, damage, refusal
from codespace.settings import MEMORY_DATABASE

_UNCHANGED = "Nothing was changed."


def run(arguments: argparse.Namespace) -> int:
    """Answer one question about the chain; 1 if it is not sound."""
    exported = _exported(arguments.head)
    if arguments.head is not None and (exported is None or arguments.question == "head"):
        print("codespace: --head is for verify, and looks like `12:<64 hex digits>`.", file=sys.stderr)
        return cli.USAGE
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    if settings.database == MEMORY_DATABASE:
        print("codespace: the database is in memory; its chain ends with the daemon.", file=sys.stderr)
        return cli.USAGE
    if not configured.is_begun(settings.database):
        print(
            f"codespace: nothing has been recorded yet: there is no database at {display(settings.database)}.",
            file=sys.stderr,
        )
        if exported is None or exported.seq == 0:
            return cli.USAGE
        return _tell(audit.verify_nothing(exported))
    try:
        if arguments.question == "head":
            print(_written(head(settings.database)))
            return 0
        return _tell(verify(settings.database, exported))
    except Refusal as error:
        print(f"codespace: {display(error.message)}\n  {display(error.next_step)}", file=sys.stderr)
        return cli.USAGE


def head(path: str) -> audit.Head:
    """Return the last event of the chain. Raises: Refusal STORE_UNAVAILABLE."""
    try:
        with connect(path) as db:
            return audit.head(db)
    except sqlite3.Error as error:
        raise refusal(error, _UNCHANGED, path) from error


def verify(path: str, exported: audit.Head | None = None) -> audit.Verdict:
    """Return the verdict on the whole chain. Raises: Refusal STORE_UNAVAILABLE."""
    try:
        with connect(path) as db:
            return audit.verify(db, exported)
    except sqlite3.Error as error:
        raise refusal(error, _UNCHANGED, path) from error


def problem(path: str) -> str | None:
    """Return what is wrong with the database file or its chain, None if nothing is.

    Raises: Refusal STORE_UNAVAILABLE.
    """
    try:
        with connect(path) as db:
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
            found = damage(db) if answer == "ok" else answer
            if found is None:
                check_secrets(db)
    except sqlite3.Error as error:
        raise refusal(error, _UNCHANGED, path) from error
    if found is not None:
        return f"the database is damaged: {found}"
    verdict = verify(path)
    return None if verdict.ok else verdict.problems[0].message


def _tell(verdict: audit.Verdict) -> int:
    for found in verdict.problems:
        print(f"{found.fault:<10} {display(found.message)}")
    if verdict.problems_total > len(verdict.problems):
        print(f"... and {verdict.problems_total - len(verdict.problems)} more")
    print(f"{verdict.events} events, head {_written(verdict.head)}: {'sound' if verdict.ok else 'NOT SOUND'}")
    return 0 if verdict.ok else 1


def _written(last: audit.Head) -> str:
    return display(f"{last.seq}:{last.hash}")  # of a chain that somebody touched it may be any text


def _exported(text: str | None) -> audit.Head | None:
    found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text or "", re.ASCII)
    return audit.Head(int(found[1]), found[2]) if found else None
