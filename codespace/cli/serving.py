"""`codespace serve`: settings, logs, then the daemon."""

from __future__ import annotations

import argparse
import sys

from codespace import cli, log
from codespace.cli import configured
from codespace.settings import Settings, notices


def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until its client goes away or a signal ends it."""
    stdio = arguments.stdio or not (arguments.http or arguments.console)
    http = arguments.http or not stdio  # a console alone comes with MCP over HTTP: a daemon without a door is of no use
    if arguments.no_auth and not http:
        print("codespace: --no-auth is about the HTTP door; use it with --http.", file=sys.stderr)
        return cli.USAGE
    if stdio and (sys.__stdin__ is None or sys.__stdout__ is None):
        # Something else would have their numbers by now, such as the event loop's own pipe.
        print("codespace: stdin or stdout is closed, and MCP is spoken on both.", file=sys.stderr)
        return cli.USAGE
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    log.hide(settings.http_token, settings.operator_token)
    log.configure(level=settings.log_level, form=settings.log_format)
    logger = log.get_logger()
    for notice in notices(settings):
        logger.warning(notice)
    if stdio and sys.stdin is not None and sys.stdin.isatty():
        logger.warning("MCP is spoken on this terminal: a client is meant to start this command. End it with Ctrl-D.")
    return _serve(settings, stdio=stdio, http=http, console=arguments.console, no_auth=arguments.no_auth)


def _serve(settings: Settings, *, stdio: bool, http: bool, console: bool, no_auth: bool) -> int:
    import functools
    import gc

    # What is imported stays: looking through it for garbage costs a tenth of the start, and again at each
    # full collection for as long as the daemon lives.
    gc.disable()
    import trio

    from codespace import service

    gc.freeze()
    gc.enable()
    # Cancelled by nothing but its own signals: what a stop leaves behind is the daemon's promise.
    return trio.run(functools.partial(service.run, settings, stdio=stdio, http=http, console=console, no_auth=no_auth))
