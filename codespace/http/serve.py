"""Running the HTTP door: check, listen, serve, and end within a deadline whatever clients do."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import hypercorn.trio
import trio
from hypercorn.config import Config

from codespace import limits, log
from codespace.contract import Inbox
from codespace.gateway.operator import Operator
from codespace.http import connection, exposure, listener
from codespace.http.app import build_app
from codespace.http.console import Console
from codespace.http.exposure import Address
from codespace.http.guard import Guard, Rules
from codespace.http.token import load_or_create
from codespace.protocol.server import McpServer
from codespace.protocol.sessions import Sessions, open_sessions
from codespace.settings.fault import SettingsError

_start_limiter: Final = trio.CapacityLimiter(1)
# Names and files of the start, which a slow resolver or disk may hold up.


async def serve_http(
    server_factory: Callable[[], McpServer] | None,
    *,
    host: str,
    port: int,
    token: str | None,
    stop: trio.Event,
    allowed_hosts: Sequence[str] = (),
    no_auth: bool = False,
    token_file: str | None = None,
    operator_token: str | None = None,
    inbox: Inbox | None = None,
    operator: Operator | None = None,
    console: Console | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set; report the address once connections are accepted.

    Args:
        server_factory: Makes what answers at /mcp; None: nothing does.
        port: 0 for any free one.
        token: What clients must present, if the operator chose one.
        allowed_hosts: Names beside this machine's own under which the door may be called.
        operator_token: Opens /inbox; without one it is not there.
        inbox: What is behind it.
        operator: Decides approvals behind /inbox.
        console: What is behind /console.
        token_file: Where else a token is kept, made there (0600) at the first start; for loopback only.
    Raises: SettingsError before anything is served.
    Cancel: connections are cut.
    Source: limits.HTTP_DRAIN_SECONDS.
    """
    exposure.check(host, token=token, allowed_hosts=allowed_hosts, no_auth=no_auth)
    if token is None and not no_auth:
        token = await _kept_token(token_file)
    log.hide(token, operator_token)
    if token is not None and token == operator_token:  # a generated token that was copied: settings cannot see it
        raise SettingsError("CODESPACE_OPERATOR_TOKEN", "It is the HTTP token.", "Use two different tokens.")
    sock = await trio.to_thread.run_sync(listener.listen, host, port, limiter=_start_limiter)
    with sock:
        address = listener.address_of(sock, host)
        if console is not None:
            exposure.require_findable(sock.getsockname()[0])
        rules = Rules(
            exposure.hosts(address, allowed_hosts),
            exposure.origins(address, allowed_hosts),
            None if no_auth else token,
            operator_token if inbox is not None else None,
            exposure.console_host(address) if console is not None else None,
        )
        async with _open_mcp(server_factory) as sessions, trio.open_nursery() as nursery:
            app = build_app(sessions, rules, inbox, operator, console)
            running = partial(_run, app, sock, stop)
            await nursery.start(running)
            task_status.started(address)
            nursery.start_soon(_bound, stop, sessions, nursery.cancel_scope)


async def _kept_token(path: str | None) -> str:
    if path is None:
        raise ValueError("a token or a file to keep one in is needed unless no_auth is said")
    return await trio.to_thread.run_sync(load_or_create, path, limiter=_start_limiter)


@asynccontextmanager
async def _open_mcp(server_factory: Callable[[], McpServer] | None) -> AsyncIterator[Sessions | None]:
    if server_factory is None:
        yield None
        return
    async with open_sessions(server_factory()) as sessions:
        yield sessions


async def _run(guard: Guard, sock: socket.socket, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    connection.install()
    bind, keep_private = listener.hand_over(sock)
    async with trio.open_nursery() as nursery:
        app = cast(Any, guard)  # ASGI, spelt with our own types of messages
        serve = partial(hypercorn.trio.serve, app, _config(bind), shutdown_trigger=stop.wait)
        await nursery.start(serve)
        keep_private()
        task_status.started()


async def _bound(stop: trio.Event, sessions: Sessions | None, scope: trio.CancelScope) -> None:
    """End listening streams once a stop is ordered, and everything else a little after Hypercorn's own deadline."""
    await stop.wait()
    if sessions is not None:
        sessions.close_streams()
    scope.deadline = trio.current_time() + 2 * limits.HTTP_DRAIN_SECONDS


def _config(bind: str) -> Config:
    config = Config()
    config.bind = [bind]
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")  # the program's own log, not a stream of its own
    config.include_server_header = False
    config.keep_alive_timeout = limits.HTTP_IDLE_SECONDS
    config.graceful_timeout = limits.HTTP_DRAIN_SECONDS
    config.startup_timeout = config.shutdown_timeout = limits.HTTP_DRAIN_SECONDS
    config.websocket_max_message_size = 0
    return config
