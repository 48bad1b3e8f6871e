"""A port that a test is given is nobody else's, though nothing listens there yet."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from codespace.testing import ports

SEEN = "import sys; from codespace.testing.ports import free_port; print(*{free_port() for _ in range(300)})"


def given(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_two_processes_are_never_given_the_same_port() -> None:
    mine = {ports.free_port() for _ in range(300)}
    assert mine
    others = [set(map(int, given(SEEN).split())) for _ in range(3)]
    assert all(others)
    assert not any(mine & theirs for theirs in others)


def test_one_process_is_given_each_of_its_ports_in_turn() -> None:
    found = [ports.free_port() for _ in range(10)]
    assert len(set(found)) == 10


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    following = ports.free_port() + 1
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # where somebody has it already, that is as good
            taken.bind(("127.0.0.1", following))
        assert ports.free_port() != following
