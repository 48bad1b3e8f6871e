"""An official client in a process of its own, so that a test can kill it in the middle of a call.

    python -m codespace.testing.mortal '{"door": "http", "url": ..., "token": ..., "tool": ..., "arguments": {...}}'

It says `connected` on stdout once the handshake is done, then makes the one call, and says the
answer's structured content as one line of JSON if it lives to see it.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import trio

from codespace.testing.installed import Visit, over_http, over_stdio
from codespace.testing.site import Site


def _door(order: dict[str, Any], site: Site) -> AbstractAsyncContextManager[Visit]:
    if order["door"] == "stdio":
        return over_stdio(site)
    return over_http(site, order["url"], order["token"])


async def _visit(order: dict[str, Any]) -> None:
    site = Site(Path(order["folder"]))
    site.extra_environ.update(order["environ"])
    async with _door(order, site) as visit:
        print("connected", flush=True)
        answer = await visit.client.call_tool(order["tool"], order["arguments"])
        print(json.dumps(answer.structured_content), flush=True)


if __name__ == "__main__":
    trio.run(_visit, json.loads(sys.argv[1]))
