"""`codespace console`: sign the operator's browser in. The only place where a sign-in link comes from.

The link is good once and for a short time, and is nowhere but in a file of the operator's own (0600), which
the browser is given: neither in the arguments of a process, which others can see, nor on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import http.client
import os
import socket
import sys
import time
import webbrowser
from typing import Final
from urllib.parse import urlsplit

from codespace import cli
from codespace.cli import configured
from codespace.display import display
from codespace.http import signin
from codespace.settings import Settings

_LOOK_SECONDS: Final = 3.0  # a daemon of this machine answers in milliseconds
_LISTENING: Final = "0A"
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={link}"><title>CodeSpace</title>
<p><a href="{link}">Sign in to the CodeSpace console</a></p></html>
"""


def run(arguments: argparse.Namespace) -> int:
    """Make a link, put it into a file, and have a browser open that."""
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    url = signin.announced(settings.state_dir)
    if url is None or not _answers(url):
        print("codespace: no console is served. Start one with `codespace serve --console`.", file=sys.stderr)
        return cli.USAGE
    try:
        path = write_link(settings, url)
    except OSError as error:
        print(f"codespace: the link cannot be written: {display(configured.cause(error))}", file=sys.stderr)
        return cli.USAGE
    if arguments.no_browser or not webbrowser.open(f"file://{path}"):
        print(f"Open this file in your browser, soon: {display(path)}")
    else:
        print("Your browser opens the console. If it does not, open this file in it, soon:")
        print(display(path))
    return 0


def write_link(settings: Settings, url: str) -> str:
    """Make a ticket for the console at `url` and return the file with its link. Raises: OSError."""
    ticket = signin.Tickets(settings.state_dir, time.time).issue()
    path = os.path.join(settings.state_dir, signin.FOLDER, "sign-in.html")
    link = html.escape(f"{url}sign-in?ticket={ticket}")
    signin.write_private(path, _PAGE.format(link=link))
    return path


def _answers(url: str) -> bool:
    """Return whether a console of ours answers there: an address may be older than its daemon.

    Another account of the machine may have taken the port since then, and would be handed a ticket.
    """
    host = urlsplit(url)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=_LOOK_SECONDS)
        connection.request("GET", f"{host.path}sign-in", headers={"Host": host.netloc})
        return connection.getresponse().status == 200 and _listeners(connection.port) == {os.geteuid()}
    except (OSError, http.client.HTTPException):
        return False


def _listeners(port: int) -> set[int]:
    """Return the accounts that take connections to this port of 127.0.0.1. Source: /proc/net/tcp in proc(5)."""
    loopback = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"
    places = {f"{address}:{port:04X}" for address in (loopback, "0" * 8, "0" * 32)}
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            rows = [line.split() for line in lines]
            found |= {int(row[7]) for row in rows if row[1] in places and row[3] == _LISTENING}
    return found
