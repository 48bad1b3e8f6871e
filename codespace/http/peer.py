"""Whose process is at the other end of a connection of this machine: the kernel's table of sockets tells.

Source: sock_diag(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_LISTENING: Final = 10
_EVERY_STATE: Final = 0xFFFF_FFFF
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS: Final = struct.Struct("!HH")
_ANY: Final = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)  # interface, cookie
_ANSWER: Final = struct.Struct("=BBxx4s44xIIIII")  # family, state, ports, ..., expires, queues, uid, inode


def owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the account whose socket is bound to `client` and connected to `server`, or half closed by now.

    Takes microseconds: the kernel answers within the call that asks.

    Returns: None where it knows no such socket that somebody holds: of another machine, of another network
        namespace, or closed since.
    """
    told = _ask(client, server)
    if told is None:
        return None
    state, ports, uid, inode = told
    # Where there is no such connection, the kernel may name who listens there; of a closed one, nobody as root.
    return uid if state != _LISTENING and inode and ports == _PORTS.pack(client[1], server[1]) else None


def is_stranger(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Return whether a connection is another account's of this machine, which is neither ours nor root's.

    Who has closed its socket behind a request is taken for one: the request would be carried out all the same.
    A daemon of root's cannot tell: its operator sits at another account as a rule.
    """
    own = os.geteuid()
    if own == 0 or client is None or server is None:
        return False
    who = owner(client, server)
    if who is None:
        return _is_here(client[0]) and _ask(server, (server[0], 0)) is not None  # our listener: the kernel can tell
    return who not in (0, own)


def _ask(near: tuple[str, int], far: tuple[str, int]) -> tuple[int, bytes, int, int] | None:
    """Return state, ports, account and inode of the socket that is bound to `near`, None where there is none."""
    family = socket.AF_INET6 if ":" in near[0] else socket.AF_INET
    ports = _PORTS.pack(near[1], far[1])
    try:
        ends = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (near, far))
        question = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _EVERY_STATE) + ports + ends + _ANY
        header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as diagnosis:
            diagnosis.send(header + question)
            answer = diagnosis.recv(4096)
    except (OSError, ValueError):
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(answer) < _HEADER.size + _ANSWER.size:
        return None
    _, state, found, *_, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return state, found, uid, inode


def _is_here(host: str) -> bool:
    """Return whether an address is this machine's own: only such a one can be bound."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
