"""The listening socket: what a connection has from it."""

from __future__ import annotations

import socket

from codespace import limits
from codespace.http.listener import address_of, listen


def test_the_kernel_ends_a_connection_whose_client_takes_nothing_of_what_is_sent() -> None:
    with listen("127.0.0.1", 0) as listening:
        there = ("127.0.0.1", address_of(listening, "127.0.0.1").port)
        with socket.create_connection(there), listening.accept()[0] as accepted:
            milliseconds = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert milliseconds == limits.HTTP_USER_TIMEOUT_SECONDS * 1000
