"""The V4A engine: patch text to planned bytes. Pure: it reads through a `Tree` and writes nothing.

changes = plan(parse(text), tree).changes
text, truncated = unified_diff(changes, limit_bytes)
"""

from codespace.v4a.diff import unified_diff
from codespace.v4a.parse import Add, Chunk, Delete, Patch, Update, parse
from codespace.v4a.plan import Directory, Edit, File, NetChange, Plan, Tree, plan

__all__ = [
    "Add",
    "Chunk",
    "Delete",
    "Directory",
    "Edit",
    "File",
    "NetChange",
    "Patch",
    "Plan",
    "Tree",
    "Update",
    "parse",
    "plan",
    "unified_diff",
]
