"""The listening socket, made by ourselves for the one option that Hypercorn does not set."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from codespace import limits
from codespace.http.exposure import Address
from codespace.settings.fault import SettingsError

_TAKEN: Final = ("CODESPACE_HTTP_PORT", "Stop what listens there, or choose another port.")
_WAYS: Final = {
    errno.EADDRNOTAVAIL: ("CODESPACE_HTTP_HOST", "Use an address of this machine, such as 127.0.0.1."),
    errno.EACCES: ("CODESPACE_HTTP_PORT", "Choose a port that this account may have, from 1024 on as a rule."),
}


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; accepted connections inherit its TCP_USER_TIMEOUT. Blocking; for the start.

    A client that stops reading would otherwise hold its answer for ever: no idle time runs while one is sent.

    Raises: SettingsError if the address cannot be had.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (OSError, UnicodeError) as error:  # the latter for a name that DNS cannot spell, such as `a..b`
        why = error.strerror if isinstance(error, OSError) else "it is no name either"
        raise SettingsError("CODESPACE_HTTP_HOST", f"`{host}` is no address: {why}.", "Use 127.0.0.1.") from error
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        milliseconds = int(limits.HTTP_USER_TIMEOUT_SECONDS * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        sock.bind(address)
        sock.listen(limits.HTTP_BACKLOG)
    except OSError as error:
        sock.close()
        key, fix = _WAYS.get(error.errno or 0, _TAKEN)
        raise SettingsError(key, f"Cannot listen on {host} port {port}: {error.strerror}.", fix) from error
    return sock


def address_of(sock: socket.socket, host: str) -> Address:
    """Return where `sock` listens, under the name that the operator used."""
    return Address(host, sock.getsockname()[1])


def hand_over(sock: socket.socket) -> tuple[str, Callable[[], None]]:
    """Return (the bind for Hypercorn, a function to call once it has taken the socket).

    Hypercorn makes its sockets inheritable; a command of a workspace must not get this one.
    """
    fd = sock.detach()

    def keep_private() -> None:
        with suppress(OSError):
            os.set_inheritable(fd, False)

    return f"fd://{fd}", keep_private
