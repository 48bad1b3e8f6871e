"""`codespace grants list|revoke`: what the operator granted for more than one request."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from codespace.cli import recorded
from codespace.display import display
from codespace.gateway.grants import Grant
from codespace.gateway.operator import Operator, grant_facts


def run(arguments: argparse.Namespace) -> int:
    """Run one word of the command."""
    act = _list if arguments.question == "list" else _revoke
    return recorded.run(arguments.config, lambda operator: act(operator, arguments))


async def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    grants = await operator.grants()
    if arguments.json:
        for grant in grants:
            print(recorded.as_json(grant_facts(grant)))
    elif grants:
        print(recorded.table(("ID", "STATE", "WORKSPACE", "ROOT", "SCOPE", "USES", "LEFT", "WHAT"), map(_row, grants)))
    else:
        print("Nothing is granted beyond single requests.")
    return 0


async def _revoke(operator: Operator, arguments: argparse.Namespace) -> int:
    grant = await operator.revoke(arguments.id)
    print(f"{grant.id} is {grant.state}.")
    return 0


def _row(grant: Grant) -> tuple[str, ...]:
    left = root = shown = "-"
    if grant.state == "active":
        root, shown = display(grant.terms["root"]), display(_what(grant.scope, grant.terms))
        left = "daemon" if grant.expires_at is None else recorded.ago(grant.expires_at - time.time())
    return grant.id, grant.state, display(grant.workspace_id), root, grant.scope, str(grant.uses), left, shown


def _what(scope: str, terms: Mapping[str, Any]) -> str:
    if scope == "patches":
        return str(terms["path"])
    if scope == "program":
        return f"{terms['program']} ... in {terms['cwd']}"
    return f"{' '.join(terms['shown']['command'])} in {terms['shown']['cwd']}"
