"""What a helper of ours can do no more behind its own filter, each tried without it too."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 60

ATTACK = """
import ctypes, os, sys
from codespace.sandbox import callfilter

libc = ctypes.CDLL(None, use_errno=True)
secret = ctypes.create_string_buffer(b"token", 16)
reading, writing = os.pipe()
child = os.fork()
if child == 0:  # the neighbour, with the same secret at the same place
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
neighbour = os.pidfd_open(child)
mine = ctypes.create_string_buffer(16)


class Part(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def crossed(call):
    here, there = Part(ctypes.addressof(mine), 5), Part(ctypes.addressof(secret), 5)
    long = ctypes.c_ulong
    return call(child, ctypes.byref(here), long(1), ctypes.byref(there), long(1), long(0))


ATTACKS = {
    "memory is read": lambda: crossed(libc.process_vm_readv) == 5 and mine.value == b"token",
    "memory is written": lambda: crossed(libc.process_vm_writev) == 5,
    "a descriptor is taken": lambda: libc.syscall(438, neighbour, reading, 0) >= 0,
    "a program is started": lambda: os.execv("/bin/echo", ["echo", "True"]),
    "a socket is opened": lambda: libc.socket(1, 1, 0) >= 0,
}
if sys.argv[2] == "filtered":
    callfilter.deny_sockets_and_programs()
try:
    print(ATTACKS[sys.argv[1]]())
except PermissionError:
    print(False)
"""


@pytest.mark.parametrize(
    "attack",
    ["memory is read", "memory is written", "a descriptor is taken", "a program is started", "a socket is opened"],
)
def test_a_helper_behind_its_filter_reaches_into_no_process_and_opens_and_starts_nothing(attack: str) -> None:
    assert said(attack, "plain") == "True"
    assert said(attack, "filtered") == "False"


def said(attack: str, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ATTACK, attack, how], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout.strip()
