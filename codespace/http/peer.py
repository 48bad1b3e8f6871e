"""Whose process is at the other end of a connection of this machine: the kernel's table of sockets tells.

Source: sock_diag(7).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_ESTABLISHED: Final = 1
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS: Final = struct.Struct("!HH")
_ANY: Final = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)  # interface, cookie
_ANSWER: Final = struct.Struct("=BBxx4s44xIIIII")  # family, state, ports, ..., expires, queues, uid, inode


def owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the account whose socket is bound to `client` and connected to `server`.

    Takes microseconds: the kernel answers within the call that asks.

    Returns: None where it knows no such socket: of another machine, or of another network namespace.
    """
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    ports = _PORTS.pack(client[1], server[1])
    try:
        ends = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (client, server))
        question = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED) + ports + ends + _ANY
        header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as diagnosis:
            diagnosis.send(header + question)
            answer = diagnosis.recv(4096)
    except (OSError, ValueError):
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(answer) < _HEADER.size + _ANSWER.size:
        return None
    _, state, found, *_, uid, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    # Where there is no such connection, the kernel may name who listens there.
    return int(uid) if state == _ESTABLISHED and found == ports else None


def is_stranger(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    """Return whether it is certain that a connection is another account's, which is neither ours nor root's.

    A daemon of root's cannot tell: its operator sits at another account as a rule.
    """
    own = os.geteuid()
    if own == 0 or client is None or server is None:
        return False
    return owner(client, server) not in (None, 0, own)
