"""`codespace processes list`: commands that run or ran, as the database tells of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Container

from codespace.cli import recorded
from codespace.display import display
from codespace.gateway.operation import Operation
from codespace.gateway.operator import Operator


def run(arguments: argparse.Namespace) -> int:
    """Run one word of the command."""
    return recorded.run(arguments.config, lambda operator: _list(operator, arguments))


async def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    dead = await operator.dead_ids()  # before the look: what another daemon settles meanwhile is told as settled
    total = await operator.count("exec")  # first, so that none which begins meanwhile is told as left out
    listed = await operator.operations(kind="exec")
    found = [each for each in listed if arguments.all or each.finished_at is None]
    if arguments.json:
        for operation in found:
            print(recorded.as_json(recorded.facts(operation, dead)))
    elif found:
        heads = ("PROCESS", "STATE", "WORKSPACE", "SINCE", "OPERATION", "END")
        print(recorded.table(heads, (_row(each, dead) for each in found)))
    else:
        print("No command has run yet." if arguments.all else "No command runs.")
    if arguments.all:
        recorded.tell_unlisted(len(listed), total)
    return 0


def _row(operation: Operation, dead: Container[str]) -> tuple[str, ...]:
    outcome = operation.outcome or {}
    end = outcome.get("termination", "-")
    if end == "exited" and outcome.get("signal") is not None:
        end = f"signal {outcome['signal']}"
    if outcome.get("exit_code") is not None:
        end = f"exit code {outcome['exit_code']}"
    since = recorded.ago(time.time() - operation.created_at)
    place = display(operation.workspace_id)
    return operation.process_id or "-", recorded.state(operation, dead), place, since, operation.id, display(str(end))
