"""One process that serves: a daemon, its doors, the signals that end it, and the watchdog behind them.

The doors run in one nursery. The first end of input on stdio, or a signal, begins the stop; a stop
that hangs is cut off by the watchdog, since a daemon that cannot be ended is worse than a hard end:
the journal and the next start settle what was under way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar

import structlog
import trio

from codespace import __version__, limits
from codespace.daemon import Daemon, open_daemon
from codespace.display import display
from codespace.errors import Refusal
from codespace.protocol.server import McpServer, Transport, build_server
from codespace.settings import Settings, SettingsError
from codespace.stdio.claim import Claimed, claim
from codespace.stdio.serve import serve_stdio

log = structlog.get_logger("codespace.service")

E = TypeVar("E", bound=Exception)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CUT_OFF_EXIT_CODE = 70  # EX_SOFTWARE: the stop itself failed


async def run(settings: Settings, *, stdio: bool, http: bool, no_auth: bool) -> int:
    """Serve until the stdio client leaves or a signal comes; return the exit code.

    Args:
        stdio: Speak MCP on descriptors 0 and 1, which are taken for the wire before anything else.
        http: Speak MCP over HTTP.
        no_auth: HTTP without a token, loopback only.
    """
    claimed = claim() if stdio else None
    watchdog = _Watchdog()
    problems: list[str] = []
    try:
        await _live(settings, watchdog, claimed, http=http, no_auth=no_auth)
    except* Refusal as refusals:
        problems += [f"{each.message} {each.next_step}" for each in _flat(refusals)]
    except* SettingsError as errors:
        problems += [str(each) for each in _flat(errors)]
    finally:
        watchdog.stop()
    for problem in problems:
        print(f"codespace: {display(problem)}", file=sys.stderr)
    return 1 if problems else 0


async def _live(settings: Settings, watchdog: _Watchdog, claimed: Claimed | None, *, http: bool, no_auth: bool) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            ending = _Ending(watchdog)
            nursery.start_soon(ending.on_signal, signals)
            async with open_daemon(settings) as daemon:
                await _serve(daemon, ending, claimed, http=http, no_auth=no_auth)
            nursery.cancel_scope.cancel()


class _Ending:
    """Begins the stop, once: of the daemon where it runs, else of the start."""

    def __init__(self, watchdog: _Watchdog) -> None:
        self.asked = trio.Event()
        self._watchdog = watchdog

    def begin(self, why: str) -> None:
        if not self.asked.is_set():
            log.info("stopping", why=why)
            self._watchdog.start()
            self.asked.set()

    async def on_signal(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self.begin(signal.Signals(number).name)


async def _serve(daemon: Daemon, ending: _Ending, claimed: Claimed | None, *, http: bool, no_auth: bool) -> None:
    async with trio.open_nursery() as doors:
        doors.start_soon(_stop_when_asked, daemon, ending)
        if http:
            await _open_http(doors, daemon, no_auth=no_auth)
        if claimed is not None:
            daemon.transports.append("stdio")
            doors.start_soon(_stdio_door, daemon, claimed, ending)


async def _stop_when_asked(daemon: Daemon, ending: _Ending) -> None:
    await ending.asked.wait()
    daemon.begin_stop()


async def _stdio_door(daemon: Daemon, claimed: Claimed, ending: _Ending) -> None:
    await serve_stdio(_server(daemon, "stdio"), claimed, stop=daemon.stopping)
    ending.begin("the stdio client left")


async def _open_http(doors: trio.Nursery, daemon: Daemon, *, no_auth: bool) -> None:
    from codespace.http.serve import serve_http  # Quart and Hypercorn: only a daemon that listens pays for them

    settings = daemon.settings
    address = await doors.start(
        partial(
            serve_http,
            partial(_server, daemon, "http"),
            host=settings.http_host,
            port=settings.http_port,
            token=settings.http_token,
            token_file=settings.http_token_file,
            stop=daemon.stopping,
            allowed_hosts=settings.allowed_hosts,
            no_auth=no_auth,
            operator_token=settings.operator_token,
            inbox=daemon.inbox,
        )
    )
    daemon.transports.append("http")
    log.info("listening", url=address.url, auth=not no_auth)


def _server(daemon: Daemon, transport: Transport) -> McpServer:
    return build_server(
        daemon.tools,
        version=__version__,
        results=daemon.settings.results,
        exposed=daemon.exposed,
        transport=transport,
    )


class _Watchdog:
    """Ends the process when an ordered stop takes longer than limits.WATCHDOG_SECONDS.

    A thread, because the event loop itself may be what hangs.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        if not self._stopped.wait(limits.WATCHDOG_SECONDS):
            os.write(2, b"codespace: the stop took too long and was cut off; the next start settles what is left\n")
            os._exit(_CUT_OFF_EXIT_CODE)


def _flat(group: BaseExceptionGroup[E]) -> list[E]:
    found: list[E] = []
    for each in group.exceptions:
        found.extend(_flat(each) if isinstance(each, BaseExceptionGroup) else [each])
    return found
