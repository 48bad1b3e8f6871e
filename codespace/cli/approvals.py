"""`codespace approvals list|show|grant|deny|watch`: holds, decided in a terminal."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Literal

from codespace import limits
from codespace.cli import recorded, telling
from codespace.display import display
from codespace.gateway.hold import Hold
from codespace.gateway.operator import Operator, hold_facts
from codespace.gateway.scopes import Scope

_BY = "operator on the command line"
_LOOK_SECONDS = 60.0  # a watch is woken by changes; this only bounds one wait


def run(arguments: argparse.Namespace) -> int:
    """Run one word of the command."""
    words = {"list": _list, "show": _show, "grant": _grant, "deny": _deny, "watch": _watch}
    act = words[arguments.question]
    return recorded.run(arguments.config, lambda operator: act(operator, arguments))


async def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    open_holds = await operator.holds()
    holds = [*open_holds, *(await operator.decided() if arguments.all else [])]
    if arguments.json:
        for hold in holds:
            print(recorded.as_json(hold_facts(hold)))
    elif holds:
        print(recorded.table(("ID", "STATE", "TOOL", "WORKSPACE", "ROOT", "LEFT", "WHAT"), map(_row, holds)))
    else:
        print("Nothing is held.")
    if len(open_holds) >= limits.LIST_ROWS:
        pending = await operator.count_pending()
        print(
            f"codespace: the oldest {len(open_holds)} are listed; {pending} wait for a decision. Decide some and list "
            "again: newer ones follow. `codespace approvals show ID` shows each.",
            file=sys.stderr,
        )
    return 0


async def _show(operator: Operator, arguments: argparse.Namespace) -> int:
    hold = await operator.hold(arguments.id)
    if arguments.json:
        print(recorded.as_json(hold_facts(hold)))
    else:
        _print(hold)
    return 0


async def _grant(operator: Operator, arguments: argparse.Namespace) -> int:
    hold = await operator.hold(arguments.id)
    scope: Scope | Literal["once"] = "patches" if arguments.path is not None else arguments.scope
    if arguments.seconds is not None and scope == "once":
        return recorded.refused("--for belongs to --exact, --program or --patches; nothing was granted.")
    fingerprint = hold.fingerprint if arguments.fingerprint is None else arguments.fingerprint
    if not (arguments.yes or arguments.fingerprint):
        _print(hold)
        if not _can_be_asked():
            return recorded.refused("nothing was granted. Say --yes where nobody can be asked.")
        if not _wanted():
            return recorded.refused("nothing was granted.")
    granted, grant = await operator.grant(
        hold.id,
        by=_BY,
        fingerprint=fingerprint,
        scope=scope,
        path=arguments.path,
        seconds=arguments.seconds,
    )
    print(f"{granted.id} is {granted.state}.")
    if grant is not None:
        until = "until its daemon ends" if grant.expires_at is None else f"for {recorded.ago(arguments.seconds)}"
        print(f"{grant.id} grants what is like it, {until}. Take it back: codespace grants revoke {grant.id}")
    return 0


async def _deny(operator: Operator, arguments: argparse.Namespace) -> int:
    hold = await operator.deny(arguments.id, by=_BY)
    print(f"{hold.id} is {hold.state}.")
    return 0


async def _watch(operator: Operator, arguments: argparse.Namespace) -> int:
    told: dict[str, str] = {}
    while True:
        version = await operator.version()  # before the look, so that what changes in between is seen next
        for hold in await operator.holds():
            if told.get(hold.id) != hold.state:
                told[hold.id] = hold.state
                line = recorded.as_json(hold_facts(hold)) if arguments.json else "  ".join(_row(hold))
                print(line, flush=True)
        await operator.wait_changed(version, _LOOK_SECONDS)


def _print(hold: Hold) -> None:
    for line in telling.lines(hold, time.time()):
        print(line)


def _row(hold: Hold) -> tuple[str, ...]:
    left = recorded.ago(hold.expires_at - time.time()) if hold.state in ("pending", "granted") else "-"
    place = display(hold.workspace_id), display(hold.root or "-")  # several daemons may give one id to two directories
    return hold.id, hold.state, hold.tool, *place, left, telling.summary(hold)


def _can_be_asked() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _wanted() -> bool:
    try:
        return input("Grant this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D, or a terminal that is gone
        print()
        return False
