"""The database for the length of a block, whatever ends the block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from codespace import limits
from codespace.gateway.store import Store


@asynccontextmanager
async def open_store(database: str) -> AsyncIterator[Store]:
    """Open the database at a path, or `:memory:`; close it behind the block.

    Raises: Refusal STORE_UNAVAILABLE.
    Cancel: what is in line for the database is still written.
    """
    store = await trio.to_thread.run_sync(Store.open, database)
    try:
        yield store
    finally:
        # Protects what is in line for the database; Store.close bounds itself.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.STOP_SECONDS):
            await trio.to_thread.run_sync(store.close)
