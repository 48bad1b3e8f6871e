"""The trio test harness, shipped: a whole daemon on temporary folders, and real MCP clients for it.

`open_bench` runs a daemon inside the test's own event loop with an official client attached in
memory; `installed` drives the installed command over stdio and HTTP; `leaks` compares what a test
left behind. Real rooms only: nothing here stands in for a part of the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codespace.testing.bench import Bench, open_bench

__all__ = ["Bench", "open_bench"]


def __getattr__(name: str) -> Any:
    """Import the bench when it is asked for: the leak guard of a pure test needs neither daemon nor SDK."""
    if name in __all__:
        from codespace.testing import bench

        return getattr(bench, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
