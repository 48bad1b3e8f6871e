"""Whose process is at the other end: the kernel is asked, and the console believes it before any cookie."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
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
        for told in (None, 0):
            monkeypatch.setattr(peer, "owner", lambda *_, told=told: told)
            assert not peer.is_stranger(*ends)
        assert not peer.is_stranger(None, None)
