"""Parts of the product exchanged for a test, in whichever process the runner is.

As a program, `exchanged.py {"module:name": {"part": value}} LEAF PARENT`, it is the runner's own process: the
same first steps as the product's, in the same order, and then the exchange.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helper.worker.harden import Orphaned, harden

if TYPE_CHECKING:
    import pytest


def exchange(monkeypatch: pytest.MonkeyPatch, where: str, part: str, value: Any) -> None:
    """Exchange one part of a module, or of a dict in it, here and in every worker that is started from now on.

    Args:
        where: `package.module`, or `package.module:name.name` for what is in it.
        value: What JSON can carry; it arrives as lists and dicts.
    """
    from codespace.runner.worker import hire

    owner = pkgutil.resolve_name(where)
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, part, value)
    else:
        monkeypatch.setattr(owner, part, value)
    program = (sys.executable, "-I", "-X", "utf8", str(Path(__file__)), json.dumps({where: {part: value}}))
    monkeypatch.setattr(hire, "PROGRAM", program)


def _apply(exchanged: Mapping[str, Mapping[str, Any]]) -> None:
    for where, parts in exchanged.items():
        owner = pkgutil.resolve_name(where)
        for part, value in parts.items():
            if isinstance(owner, dict):
                owner[part] = value
            else:
                setattr(owner, part, value)


def _main() -> int:
    exchanged, leaf, parent = sys.argv[1:]
    try:
        harden(int(parent))
    except Orphaned:
        return 1
    from helper.worker.life import live

    _apply(json.loads(exchanged))
    return live(leaf, int(parent))


if __name__ == "__main__":
    code = _main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
