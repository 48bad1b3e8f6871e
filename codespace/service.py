"""One process that serves: a daemon, its doors, the signals that end it, and the watchdog behind them.

The doors run in one nursery. The first end of input on stdio, or a signal, begins the stop; a stop
that hangs is cut off by the watchdog, since a daemon that cannot be ended is worse than a hard end:
the journal and the next start settle what was under way.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from codespace import __version__, interrupts, limits
from codespace.daemon import Daemon, open_daemon
from codespace.display import display
from codespace.errors import Refusal
from codespace.log.sink import Sink
from codespace.protocol.server import McpServer, Transport, build_server
from codespace.settings import Settings, SettingsError
from codespace.settings.environment import is_loopback
from codespace.stdio.claim import Claimed, claim
from codespace.stdio.serve import serve_stdio

if TYPE_CHECKING:
    from codespace.http.console import Console

log = structlog.get_logger("codespace.service")

E = TypeVar("E", bound=Exception)

_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
_CUT_OFF_EXIT_CODE = 70  # EX_SOFTWARE: the stop itself failed


async def run(settings: Settings, *, stdio: bool, http: bool, console: bool, no_auth: bool) -> int:
    """Serve until the stdio client leaves or a signal comes; return the exit code.

    Args:
        stdio: Speak MCP on descriptors 0 and 1, which are taken for the wire before anything else.
        http: Speak MCP over HTTP.
        console: Serve the operator's console, beside whatever speaks MCP.
        no_auth: HTTP without a token, loopback only.
    """
    claimed = claim() if stdio else None
    watchdog = _Watchdog()
    problems: list[str] = []
    try:
        doors = Doors(claimed, http, console, no_auth)
        await _live(settings, watchdog, doors)
    except* Refusal as refusals:
        problems += [f"{each.message} {each.next_step}" for each in _flat(refusals)]
    except* SettingsError as errors:
        problems += [str(each) for each in _flat(errors)]
    finally:
        interrupts.cease()
        watchdog.stop()
    for problem in problems:
        Sink(2).msg(f"codespace: {display(problem)}")  # a client that does not read it must not hold up the end
    return 1 if problems else 0


def _heard() -> list[signal.Signals]:
    """Return the signals that begin the stop: those of a terminal only where they were not ignored at the start.

    As `nohup` has a hang-up, and a script the Ctrl-C of what it starts in its background.
    """
    return [signal.SIGTERM, *(each for each in _OF_TERMINALS if signal.getsignal(each) is not signal.SIG_IGN)]


@dataclass(frozen=True, slots=True)
class Doors:
    """The doors to open."""

    claimed: Claimed | None
    """The descriptors that MCP is spoken on; None: no stdio."""
    http: bool
    console: bool
    no_auth: bool


async def _live(settings: Settings, watchdog: _Watchdog, doors: Doors) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as start:
            ending = _Ending(watchdog, start)
            ending.hear()
            nursery.start_soon(ending.begin_at_signal)
            async with open_daemon(settings, console=doors.console) as daemon:
                ending.started()
                try:
                    await _serve(daemon, ending, doors)
                finally:
                    ending.begin("no door is open any more")  # also where one failed: the watchdog is for any stop
        nursery.cancel_scope.cancel()


class _Ending:
    """Begins the stop, once: of the daemon where it runs, else of the start.

    Args:
        start: Cancelled where the stop begins before `started` was said.
    """

    def __init__(self, watchdog: _Watchdog, start: trio.CancelScope) -> None:
        self.asked = trio.Event()
        self._watchdog = watchdog
        self._start: trio.CancelScope | None = start
        self._number: int | None = None
        self._signalled = trio.Event()

    def hear(self) -> None:
        """Take signals until `run` ends, the first alone: trio's receiver would give them back to what interrupts.

        A second one would break into what is left, and the exit code tell of it instead of the stop.
        """
        token = trio.lowlevel.current_trio_token()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._number is None:
                self._number = number
                token.run_sync_soon(self._signalled.set)

        for number in _heard():
            signal.signal(number, on_signal)

    def started(self) -> None:
        """Say that the daemon runs: from here on it stops in its own order."""
        self._start = None

    def begin(self, why: str) -> None:
        if not self.asked.is_set():
            log.info("stopping", why=why)
            self._watchdog.start()
            self.asked.set()
            if self._start is not None:
                self._start.cancel()

    async def begin_at_signal(self) -> None:
        await self._signalled.wait()
        assert self._number is not None
        self.begin(signal.Signals(self._number).name)


async def _serve(daemon: Daemon, ending: _Ending, doors: Doors) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_when_asked, daemon, ending)
        if doors.http:
            await _open_http(nursery, daemon, doors)
        elif doors.console:
            await _open_console_beside_stdio(nursery, daemon, doors)
        if doors.claimed is not None:
            daemon.transports.append("stdio")
            nursery.start_soon(_stdio_door, daemon, doors.claimed, ending)


async def _stop_when_asked(daemon: Daemon, ending: _Ending) -> None:
    await ending.asked.wait()
    daemon.begin_stop()


async def _stdio_door(daemon: Daemon, claimed: Claimed, ending: _Ending) -> None:
    await serve_stdio(_server(daemon, "stdio"), claimed, stop=daemon.stopping)
    ending.begin("the stdio client left")


async def _open_console_beside_stdio(nursery: trio.Nursery, daemon: Daemon, doors: Doors) -> None:
    """Serve the console where the port is free: a client that starts a second daemon needs no second console,
    which would show the same database."""
    try:
        await _open_http(nursery, daemon, doors)
    except* SettingsError as errors:
        log.warning("the console is not served by this daemon", why=str(_flat(errors)[0]))


async def _open_http(nursery: trio.Nursery, daemon: Daemon, doors: Doors) -> None:
    from codespace.http.serve import serve_http  # Quart and Hypercorn: only a daemon that listens pays for them

    settings = daemon.settings
    address = await nursery.start(
        partial(
            serve_http,
            partial(_server, daemon, "http") if doors.http else None,
            host=settings.http_host,
            port=settings.http_port,
            token=settings.http_token,
            token_file=settings.http_token_file,
            stop=daemon.stopping,
            allowed_hosts=settings.allowed_hosts,
            no_auth=doors.no_auth,
            operator_token=settings.operator_token,
            inbox=daemon.inbox if doors.http else None,
            operator=daemon.operator if doors.http else None,
            console=_console(daemon) if doors.console else None,
        )
    )
    if doors.http:
        daemon.transports.append("http")
        log.info("listening", url=address.url, bound=address.authority, auth=not doors.no_auth)
    if not is_loopback(address.host):
        log.warning(
            "other machines can connect, without TLS: put a proxy in front, or set CODESPACE_HTTP_HOST to 127.0.0.1",
            bound=address.authority,
        )
    if doors.console:
        await nursery.start(_announce, daemon, address.console_url)


def _console(daemon: Daemon) -> Console:
    from codespace.http.console import Console
    from codespace.http.signin import Tickets

    settings = daemon.settings
    return Console(
        operator=daemon.operator,
        inbox=daemon.inbox,
        tools=daemon.tools,
        kept_diff=daemon.kept_diff,
        tickets=Tickets(settings.state_dir, time.time),
        operator_token=settings.operator_token,
        stopping=daemon.stopping,
    )


async def _announce(daemon: Daemon, url: str, task_status: trio.TaskStatus[None]) -> None:
    """Leave word for `codespace console` where the console is, as long as it is there."""
    from codespace.http import signin

    try:
        word = await trio.to_thread.run_sync(signin.Word, daemon.settings.state_dir, url)
    except OSError as error:
        log.warning("`codespace console` will not find this console", why=str(error))
        task_status.started()
        return
    try:
        log.info("console", url=url, open_with="codespace console")
        task_status.started()
        await daemon.stopping.wait()
    finally:
        word.withdraw()


def _server(daemon: Daemon, transport: Transport) -> McpServer:
    return build_server(
        daemon.tools,
        version=__version__,
        results=daemon.settings.results,
        exposed=daemon.exposed,
        transport=transport,
        wait=daemon.polls.wait,
    )


class _Watchdog:
    """Ends the process when an ordered stop takes longer than limits.WATCHDOG_SECONDS.

    A thread, because the event loop itself may be what hangs; there from the beginning, because at the stop the
    account may have no more of them.
    """

    def __init__(self) -> None:
        self._started, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Count from now on."""
        self._started.set()

    def stop(self) -> None:
        """End it, started or not."""
        self._stopped.set()
        self._started.set()
        self._thread.join()

    def _watch(self) -> None:
        self._started.wait()
        if not self._stopped.wait(limits.WATCHDOG_SECONDS):
            # Not by os.write: a client that does not read its end of stderr would hold up the very end.
            Sink(2).msg("codespace: the stop took too long and was cut off; the next start settles what is left")
            os._exit(_CUT_OFF_EXIT_CODE)


def _flat(group: BaseExceptionGroup[E]) -> list[E]:
    found: list[E] = []
    for each in group.exceptions:
        found.extend(_flat(each) if isinstance(each, BaseExceptionGroup) else [each])
    return found
