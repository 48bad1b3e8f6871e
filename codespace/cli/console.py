"""`codespace console`: sign the operator's browser in. The only place where a sign-in link comes from.

The link is good once and for a short time, and is nowhere but in a file of the operator's own (0600), which
the browser is given: neither in the arguments of a process, which others can see, nor on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import ipaddress
import os
import socket
import sys
import time
import webbrowser
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from codespace import cli
from codespace.cli import configured
from codespace.display import display
from codespace.http import signin
from codespace.settings import Settings

_LOOK_SECONDS: Final = 3.0  # a daemon of this machine answers in milliseconds
_LISTENING: Final = "0A"
_PLACES: Final = ("127.0.0.1", "::1")
# Where a name of `.localhost` leads a browser: to either.
_HTTP_PORT: Final = 80  # where a URL says none
_STATUS_BYTES: Final = len("HTTP/1.1 200")
_NONE: Final = "no console is served. Start one with `codespace serve --console`."
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
    troubles: list[str] = []
    for url in signin.announced(settings.state_dir):
        trouble = _trouble(url)
        if trouble is None:
            break
        troubles.append(trouble)
    else:
        print(f"codespace: {troubles[0] if troubles else _NONE}", file=sys.stderr)  # of several, the newest's
        return cli.USAGE
    try:
        path = write_link(settings, url)
    except OSError as error:
        print(f"codespace: the link cannot be written: {display(configured.cause(error))}", file=sys.stderr)
        return cli.USAGE
    if arguments.no_browser or not _opens(path):
        print(f"Open this file in your browser, soon: {display(path)}")
    else:
        print("Your browser opens the console. If it does not, open this file in it, soon:")
        print(display(path))
    return 0


def _opens(path: str) -> bool:
    try:
        return webbrowser.open(Path(path).as_uri())
    except (ValueError, webbrowser.Error, OSError):  # what BROWSER says is no command
        return False


def write_link(settings: Settings, url: str) -> str:
    """Make a ticket for the console at `url` and return the file with its link. Raises: OSError."""
    ticket = signin.Tickets(settings.state_dir, time.time).issue()
    path = os.path.join(settings.state_dir, signin.FOLDER, "sign-in.html")
    link = html.escape(f"{url}sign-in?ticket={ticket}")
    signin.write_private(path, _PAGE.format(link=link))
    return path


def _trouble(url: str) -> str | None:
    """Return why no browser is sent there, None where a console of ours answers.

    Another account of the machine may take the same port, of the other loopback address too, and would be handed a
    ticket. Whose the port is, is asked before anything is said to it.
    """
    host = urlsplit(url)
    port = host.port or _HTTP_PORT
    listeners = _listeners(port)
    if not listeners:
        return _NONE
    if listeners != {os.geteuid()}:
        return (
            f"another account of this machine takes connections at port {port} too: your browser may end up there. "
            "Give the console another port (CODESPACE_HTTP_PORT)."
        )
    if not any(_answers(place, port, host) for place in _PLACES):
        return f"the console at {url} does not answer. Call again; if it stays so, start its daemon again."
    return None


def _answers(place: str, port: int, host: SplitResult) -> bool:
    deadline = time.monotonic() + _LOOK_SECONDS
    asked = f"GET {host.path}sign-in HTTP/1.1\r\nHost: {host.netloc}\r\nConnection: close\r\n\r\n"
    said = b""
    try:
        with socket.create_connection((place, port), _LOOK_SECONDS) as connection:
            connection.sendall(asked.encode())
            while len(said) < _STATUS_BYTES and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)  # for the whole: a timeout alone is one for each piece
                more = connection.recv(_STATUS_BYTES - len(said))
                if not more:
                    break
                said += more
    except OSError:
        return False
    return said.startswith(b"HTTP/1.") and said.endswith(b" 200")


def _listeners(port: int) -> set[int]:
    """Return the accounts that take connections to this port of this machine itself.

    Source: /proc/net/tcp and tcp6 in proc(5).
    """
    addresses = (*map(_written, _PLACES), "0" * 8, "0" * 32)
    places = {f"{address}:{port:04X}" for address in addresses}
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            rows = [line.split() for line in lines]
            found |= {int(row[7]) for row in rows if row[1] in places and row[3] == _LISTENING}
    return found


def _written(address: str) -> str:
    """Return an address as those tables write it: words of 32 bits, in the machine's own order."""
    packed = ipaddress.ip_address(address).packed
    return "".join(f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}" for at in range(0, len(packed), 4))
