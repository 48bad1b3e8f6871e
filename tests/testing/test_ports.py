"""A port that a test is given is nobody else's, though nothing listens there yet."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from codespace.testing import ports

# Each wants the same ones first.
TELL = """
import random, sys
random.shuffle = lambda found: None
from codespace.testing.ports import free_port
print(*{free_port() for _ in range(300)}, flush=True)
sys.stdin.read()
"""


def given(process: subprocess.Popen[bytes]) -> set[int]:
    assert process.stdout is not None
    return {int(port) for port in process.stdout.readline().split()}


def test_no_two_processes_are_given_the_same_ports() -> None:
    with contextlib.ExitStack() as living:
        program = [sys.executable, "-c", TELL]
        started = [
            living.enter_context(subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(3)
        ]
        found = [given(process) for process in started]
    assert all(found)
    assert len(set.union(*found)) == sum(map(len, found))


def test_one_process_is_given_each_of_its_ports_in_turn() -> None:
    found = [ports.free_port() for _ in range(10)]
    assert len(set(found)) == 10


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    following = ports.free_port() + 1
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # where somebody has it already, that is as good
            taken.bind(("127.0.0.1", following))
        assert ports.free_port() != following
