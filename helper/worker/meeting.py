"""How the worker comes to its one connection: a socket in the leaf directory, and only the parent behind it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Final

import trio

from codespace import limits
from codespace.runner.worker.frames import BadFrame
from codespace.runner.worker.greeting import SECRET_BYTES, SOCKET, check_hello, peer
from codespace.runner.worker.line import Line

_LISTENING: Final = b"listening\n"


def take_secret() -> bytes:
    """Return what the inherited pipe on descriptor 0 carries; /dev/null is there afterwards. Raises: BadFrame."""
    secret = b""
    while part := os.read(0, SECRET_BYTES + 1 - len(secret)):
        secret += part
    _replace(0, os.O_RDONLY)
    if len(secret) != SECRET_BYTES:
        raise BadFrame("the pipe carries no secret")
    return secret


def listen(leaf: str) -> socket.socket:
    """Return a listening socket in `leaf`, and say on descriptor 1 that it is there. Raises: OSError.

    One that a worker left which was killed, or came to grief, before its parent had come is taken away.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(leaf, SOCKET))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    directory = os.open(leaf, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By a short name: the address of a socket holds 108 bytes.
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    listener.listen(1)
    told = os.dup(1)
    _replace(1, os.O_WRONLY)
    os.write(told, _LISTENING)
    os.close(told)
    return listener


async def accept(listener: socket.socket, leaf: str, parent: int) -> Line:
    """Return the connection of the parent, the only one there will be; strangers are turned away.

    Raises: BadFrame where it does not come in time.
    """
    listener.setblocking(False)
    try:
        with listener, trio.move_on_after(limits.WORKER_START_SECONDS):
            while True:
                await trio.lowlevel.wait_readable(listener)
                connection, _ = listener.accept()
                if peer(connection) == (parent, os.geteuid()):
                    return Line(connection, limits.WORKER_HELLO_BYTES)
                connection.close()
        raise BadFrame("nobody came who may")
    finally:
        os.unlink(os.path.join(leaf, SOCKET))


async def read_orders(line: Line, secret: bytes) -> dict[str, Any]:
    """Return what the gateway's hello asks for. Raises: BadFrame."""
    with trio.move_on_after(limits.WORKER_HELLO_SECONDS):
        message = check_hello(await line.receive(), secret, "gateway")
        orders = message.get("orders")
        if not isinstance(orders, dict):
            raise BadFrame("the hello has no orders")
        line.open_up()
        return orders
    raise BadFrame("the hello did not come in time")


def _replace(descriptor: int, flags: int) -> None:
    empty = os.open(os.devnull, flags | os.O_CLOEXEC)
    os.dup2(empty, descriptor)
    os.close(empty)
