"""The table of tools. What a model is told here is all that it knows: short, and what to do next.

A new tool is a row in the module of its group, a shape in `shapes`, a writer in `prose`, and a method of
`contract.Tools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from codespace.protocol.tool import Group, Tool
from codespace.protocol.tools.approvals import APPROVALS
from codespace.protocol.tools.commands import COMMANDS
from codespace.protocol.tools.files import FILES
from codespace.protocol.tools.vocabulary import WORK
from codespace.protocol.tools.works import WORKS

TABLE: Final[Mapping[str, Tool]] = {tool.name: tool for tool in (*FILES, *COMMANDS, *APPROVALS, *WORKS)}
GROUPS: Final[tuple[Group, ...]] = ("files", "exec", "approvals", "work")


def offered(groups: Iterable[str]) -> tuple[Tool, ...]:
    """Return the tools of these groups in the table's order; without `work` none of the others takes a `work_id`.

    Raises: ValueError for a group that does not exist.
    """
    wanted = set(groups)
    if unknown := wanted - set(GROUPS):
        raise ValueError(f"no such group of tools: {', '.join(sorted(unknown))}")
    hidden = () if "work" in wanted else (WORK.name,)
    return tuple(tool.without(*hidden) for tool in TABLE.values() if tool.group in wanted)
