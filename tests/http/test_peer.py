"""Whose process is at the other end: the kernel is asked, and the console believes it before any cookie."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from codespace.http import peer

ANOTHER = 61_234  # no account on any system has this number
SECONDS = 60.0
CONNECT = (
    "use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die; <STDIN>"
)


@contextmanager
def connected(host: str, family: socket.AddressFamily) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]) as client:
            accepted, _ = listening.accept()
            with accepted:
                yield client, accepted


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        pytest.param(
            "::1", socket.AF_INET6, marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
        ),
    ],
)
def test_our_own_connection_is_known_as_ours(host: str, family: socket.AddressFamily) -> None:
    with connected(host, family) as (_, accepted):
        assert peer.owner(accepted.getpeername()[:2], accepted.getsockname()[:2]) == os.geteuid()


def test_no_connection_and_a_listener_in_its_place_are_nobodys() -> None:
    with connected("127.0.0.1", socket.AF_INET) as (_, accepted):
        ours, theirs = accepted.getsockname(), accepted.getpeername()
    assert peer.owner(theirs, ours) is None
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert peer.owner(listening.getsockname(), ("127.0.0.1", 1)) is None
    assert peer.owner(("no address", 1), ours) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root plays another account")
def test_another_accounts_connection_is_known_as_that_accounts() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(SECONDS)
        host, port = listening.getsockname()
        with subprocess.Popen(
            ["/usr/bin/perl", "-e", CONNECT, host, str(port)], stdin=subprocess.PIPE, user=ANOTHER, extra_groups=[]
        ) as other:
            accepted, client = listening.accept()
            with accepted:
                assert peer.owner(client, accepted.getsockname()) == ANOTHER
            assert other.stdin is not None
            other.stdin.close()
            assert other.wait(SECONDS) == 0


def test_who_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected("127.0.0.1", socket.AF_INET) as (_, accepted):
        ends = accepted.getpeername(), accepted.getsockname()
        monkeypatch.setattr(peer, "owner", lambda *_: 1000)
        for own, stranger in ((1000, False), (1001, True), (0, False)):
            monkeypatch.setattr(os, "geteuid", lambda own=own: own)
            assert peer.is_stranger(*ends) == stranger
        monkeypatch.setattr(os, "geteuid", lambda: 1001)
        monkeypatch.setattr(peer, "owner", lambda *_: 0)
        assert not peer.is_stranger(*ends)
        assert not peer.is_stranger(None, None)


def hang_up(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", [lambda client: client.shutdown(socket.SHUT_WR), socket.socket.close, hang_up])
def test_another_account_is_a_stranger_though_it_has_closed_its_end_behind_a_request(
    leave: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected("127.0.0.1", socket.AF_INET) as (client, accepted):
        ends = accepted.getpeername(), accepted.getsockname()
        another = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: another)
        if os.getuid() != 0:
            assert peer.is_stranger(*ends)
        client.sendall(b"POST")
        leave(client)
        assert accepted.recv(4, socket.MSG_WAITALL) == b"POST"
        assert peer.owner(*ends) in (None, os.getuid())
        assert peer.is_stranger(*ends) or peer.owner(*ends) == 0  # root's is none


def test_our_own_connection_that_is_half_closed_is_still_ours() -> None:
    with connected("127.0.0.1", socket.AF_INET) as (client, accepted):
        client.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""
        assert peer.owner(accepted.getpeername(), accepted.getsockname()) == os.geteuid()


def test_who_is_at_another_machine_or_where_the_kernel_does_not_tell_is_no_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with connected("127.0.0.1", socket.AF_INET) as (_, accepted):
        ours = accepted.getsockname()
        assert not peer.is_stranger(("192.0.2.7", 40_000), ours)
        assert peer.is_stranger(("127.0.0.9", 1), ours)
        monkeypatch.setattr(peer, "_SOCK_DIAG_BY_FAMILY", 99)  # unknown to every kernel
        assert not peer.is_stranger(("127.0.0.9", 1), ours)
