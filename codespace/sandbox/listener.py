"""The proxy's socket inside a sandbox: bound in the sandbox's network namespace, listened to from outside.

No program runs inside for it and no bridge carries bytes: a socket belongs to the namespace in which
it was made, whoever holds it. A forked child enters the namespace, makes the socket and passes it out.
A child, because entering a user namespace is refused to a process with threads, and a process that
has entered one is of no more use outside.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import warnings
from typing import Final, NoReturn

from codespace import limits

HOST: Final = "127.0.0.1"
PORT: Final = 3128

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_NS_GET_USERNS: Final = 0xB701
_IP_FREEBIND: Final = 15
# The sandbox's loopback may not be up yet when bubblewrap has said that it is there.

_libc = ctypes.CDLL(None, use_errno=True)


def listen(pid: int) -> socket.socket:
    """Return a listening socket that is reached at HOST:PORT inside the network namespace of process `pid`.

    The caller must know that `pid` still is that process: hold a pidfd, or its parent waiting.
    Blocking, 2 ms, at most limits.LISTENER_SECONDS. Works for root and for who made the namespaces.
    Raises: OSError, naming the step that was refused. No child is left either way.
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return listen_in(network)
    finally:
        os.close(network)


def listen_in(network: int) -> socket.socket:
    """As `listen`, for the descriptor of a network namespace."""
    if _same_namespace(network):
        raise OSError(0, "the process is in no network namespace of its own")
    # The namespace that owns the network, which need not be the one that the process is in now.
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                child = _fork(theirs, owner, network)
            try:
                return _receive(ours)
            finally:
                # It has spoken, or is waited for no longer: whatever it would still do is not wanted.
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    finally:
        os.close(owner)


def _same_namespace(network: int) -> bool:
    return os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net"))


def _fork(passing: socket.socket, owner: int, network: int) -> int:
    with warnings.catch_warnings():
        # Since 3.12 Python warns of forks beside threads. This child makes a few system calls and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _bind_and_pass(passing, owner, network)
    return child


def _bind_and_pass(passing: socket.socket, owner: int, network: int) -> NoReturn:
    step = "user namespace"
    try:
        # Who is in it already, as root of a namespace that root made without one, is refused to enter again.
        if _libc.setns(owner, _CLONE_NEWUSER) and ctypes.get_errno() != 22:
            raise OSError(ctypes.get_errno(), step)
        step = "network namespace"
        if _libc.setns(network, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), step)
        step = "socket"
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        step = "bind"
        listener.bind((HOST, PORT))
        listener.listen(limits.LISTENER_BACKLOG)
        socket.send_fds(passing, [b"bound"], [listener.fileno()])
    except OSError as error:
        passing.send(f"{error.errno or 0} {step}".encode())
    finally:
        os._exit(0)


def _receive(ours: socket.socket) -> socket.socket:
    ready = select.poll()
    ready.register(ours, select.POLLIN)
    if not ready.poll(limits.LISTENER_SECONDS * 1000):
        raise TimeoutError("the sandbox's network namespace could not be entered in time")
    said, descriptors, flags, _ = socket.recv_fds(ours, 256, 1, socket.MSG_CMSG_CLOEXEC)
    if descriptors:
        return socket.socket(fileno=descriptors[0])
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    number, _, step = said.decode().partition(" ")
    raise OSError(int(number or 0), f"{step or 'child'}: {os.strerror(int(number or 0))}")
