"""The words on the command line of codespace-linux-sandbox.

    python -I -m helper.sandbox probe [--bwrap PATH]             what is in force, as JSON on stdout
    python -I -m helper.sandbox prepare --plan FILE [--bwrap PATH]   a request on stdin becomes a plan file
    python -I -m helper.sandbox run --plan FILE                  runs it once; exits as its command does

Exit codes of its own: 125 nothing was run (stderr says why), 75 nothing could be concluded now, 1 `probe` found
no whole sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Final

from codespace.display import display
from codespace.errors import Refusal
from codespace.sandbox import binaries, foreground, planfile, seccomp, spawn
from codespace.sandbox import limits as mechanisms
from codespace.sandbox.box import HOME, Sandbox
from codespace.sandbox.plan import Plan

NOT_RUN: Final = 125
TRY_AGAIN: Final = 75
_TERMINATING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Do what the command line says; returns the exit code."""
    words = _parser().parse_args()
    try:
        match words.verb:
            case "probe":
                return _probe(words.bwrap)
            case "prepare":
                return _prepare(words.bwrap, words.plan)
            case _:
                return _run(words.plan)
    except (planfile.BadPlan, spawn.NotStarted, seccomp.Missing, OSError) as problem:
        return _complain(str(problem))
    except Refusal as refusal:
        return _complain(refusal.message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="codespace-linux-sandbox", description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("probe", "prepare", "run"):
        verb = verbs.add_parser(name)
        if name != "run":
            verb.add_argument("--bwrap", help="the bubblewrap to use, instead of the newest found")
        if name != "probe":
            verb.add_argument("--plan", required=True, help="absolute path of the plan file")
    return parser


def _complain(problem: str) -> int:
    print(f"codespace-linux-sandbox: {display(problem, limit=4000)}", file=sys.stderr)
    return NOT_RUN


def _probe(bwrap: str | None) -> int:
    try:
        standing = Sandbox(bwrap).standing()
    except Refusal as refusal:
        print(f"codespace-linux-sandbox: {display(refusal.message, limit=4000)}", file=sys.stderr)
        return TRY_AGAIN
    print(json.dumps(asdict(standing), indent=2))
    return 0 if standing.rung == "linux-sandbox" else 1


def _prepare(bwrap: str | None, path: str) -> int:
    order = planfile.order_from(sys.stdin.buffer.read())
    prepared = Sandbox(bwrap).prepare(
        order.workspace,
        command=order.command,
        cwd=order.cwd,
        env={"HOME": HOME, **order.env},
        protected=order.protected,
    )
    planfile.write(path, prepared.plan, prepared.equipment.bubblewrap)
    return 0


def _run(path: str) -> int:
    plan, bubblewrap = planfile.take(path)
    if not (binaries.trusted(bubblewrap) or bubblewrap in {found.path for found in binaries.bubblewraps()}):
        return _complain(f"{bubblewrap} is not a bubblewrap that may be used")
    outcome = _run_until_told(plan, bubblewrap)
    if outcome.cut:
        return 128 + signal.SIGTERM
    return outcome.code if outcome.code >= 0 else 128 - outcome.code


def _run_until_told(plan: Plan, bubblewrap: str) -> foreground.Outcome:
    told, telling = os.pipe()
    os.set_blocking(telling, False)
    signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    for number in _TERMINATING:
        signal.signal(number, lambda *_: None)
    return foreground.run(spawn.Equipment(bubblewrap, mechanisms.look()), plan, until=told)


if __name__ == "__main__":
    sys.exit(main())
