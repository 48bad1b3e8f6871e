"""Starts one worker: a fresh directory for its socket, a secret on an inherited pipe, and the first words.

The worker listens and the gateway connects, so that the kernel can tell each who the other is. Its
stderr is its log and, inherited by the monitors of its processes, a lifeline the other way round: where it
ends, nothing that the worker had started runs any more.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from io import FileIO
from typing import Any, Final

import trio

from codespace import limits, watches
from codespace.errors import Refusal
from codespace.runner.ownfolder import OwnFolder
from codespace.runner.pipes import Pipes
from codespace.runner.worker.frames import BadFrame
from codespace.runner.worker.greeting import SECRET_BYTES, SOCKET, check_hello, hello, peer
from codespace.runner.worker.line import Line

PROGRAM: Final = (sys.executable, "-I", "-X", "utf8", "-m", "helper.worker")


class NotHired(Exception):
    """The worker could not be started, or is not what it should be. The text says why."""


class Place:
    """The leaf directory of one daemon's sockets, 0700. All methods touch the disk: call them in a thread."""

    def __init__(self, above: str) -> None:
        """Make it below `above`/runner. Raises: Refusal where others could put something in its way."""
        own = os.path.join(above, "runner")
        try:
            os.makedirs(above, mode=0o700, exist_ok=True)
            _refuse_open(above, sticky_will_do=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(own, 0o700)
            _refuse_open(own, sticky_will_do=False)
            self._folder = OwnFolder(own)
        except OSError as error:
            raise _unfit(above, f"cannot be used ({error.strerror})") from error
        for left in self._folder.abandoned():
            shutil.rmtree(left, ignore_errors=True)

    @property
    def path(self) -> str:
        return self._folder.path

    def close(self) -> None:
        shutil.rmtree(self._folder.path, ignore_errors=True)
        self._folder.let_go()


def _refuse_open(path: str, *, sticky_will_do: bool) -> None:
    found = os.lstat(path) if not sticky_will_do else os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise _unfit(path, "is no directory")
    shared = found.st_mode & 0o022
    if shared and not (sticky_will_do and found.st_mode & stat.S_ISVTX):
        raise _unfit(path, "can be written to by others")
    if found.st_uid != os.geteuid() and not (sticky_will_do and found.st_uid == 0):
        raise _unfit(path, "belongs to another user")


def _unfit(path: str, problem: str) -> Refusal:
    return Refusal(
        "INTERNAL",
        f"The runner's directory {path} {problem}. Nothing was started.",
        next_step="Set CODESPACE_RUNNER_DIR to a directory that only this account can write to.",
    )


class Worker:
    """A worker process that was started: to be greeted, and in any case to be buried."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int, pipes: Pipes) -> None:
        """Take over the process and what leads to it."""
        self._process = process
        self._pidfd = pidfd
        self._stdout = FileIO(pipes.outputs.pop("stdout"))
        self._stderr = FileIO(pipes.outputs.pop("stderr"))
        self.silent = trio.Event()
        """Set once its stderr has ended: it and its monitors are gone."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_listening(self) -> None:
        """Return once it listens. Raises: NotHired."""
        if await watches.read(self._stdout, 64) != b"listening\n":
            raise NotHired("it ended before it listened")

    async def said(self) -> bytes | None:
        """Return what came on its stderr since; None once that has ended, or was closed by us."""
        try:
            if not self._stderr.closed:
                await watches.wait_readable(self._stderr.fileno())
        except trio.ClosedResourceError:  # closed while this waited
            return None
        if self._stderr.closed:  # in the turn in which it became readable: no notice reaches who has waited
            return None
        try:
            data = os.read(self._stderr.fileno(), limits.WORKER_LOG_BYTES)
        except BlockingIOError:  # it could not be watched
            return b""
        if not data:
            self.silent.set()
            return None
        return data

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Return its exit code once it has ended; bounded by whoever calls."""
        while (code := self._process.poll()) is None:
            await watches.wait_readable(self._pidfd)
        return code

    def close(self) -> None:
        """Let go of it; it has ended, or is a thing of the kernel."""
        for pipe in (self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                trio.lowlevel.notify_closing(pipe.fileno())
            pipe.close()
        os.close(self._pidfd)


def start(leaf: str, secret: bytes) -> Worker:
    """Start the program. Called in the event loop's own thread: PDEATHSIG follows the thread that started it, and
    a worker thread of trio's ends when it has been idle. It takes some milliseconds, once. Raises: NotHired."""
    with contextlib.ExitStack() as held:
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            held.callback(os.close, read_end)
            with open(write_end, "wb", 0) as told:
                told.write(secret)  # far below what a pipe holds
            pipes = Pipes(stdin=False)  # our own: where one cannot be had, older subprocess modules keep the others
            held.callback(pipes.close)
            process = subprocess.Popen(
                [*PROGRAM, leaf, str(os.getpid())],
                stdin=read_end,
                stdout=pipes.theirs[1],
                stderr=pipes.theirs[2],
                env={},
                cwd="/",
                start_new_session=True,  # a Ctrl-C in the daemon's terminal is not meant for it
            )
        except OSError as error:
            raise NotHired(f"it could not be started ({error.strerror})") from error
        try:
            return Worker(process, os.pidfd_open(process.pid), pipes)
        except OSError as error:
            process.kill()
            process.wait()
            raise NotHired(f"it could not be watched ({error.strerror})") from error


def connect(leaf: str, worker: Worker) -> socket.socket:
    """Connect to a worker that listens. Raises: NotHired where it is not the one that was started."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        directory = os.open(leaf, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By a short name: the address of a socket holds 108 bytes.
            connection.connect(f"/proc/self/fd/{directory}/{SOCKET}")
        finally:
            os.close(directory)
        if peer(connection) != (worker.pid, os.geteuid()):
            raise NotHired("another process answers on its socket")
    except OSError as error:
        connection.close()
        raise NotHired(f"its socket cannot be reached ({error.strerror})") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def greet(line: Line, secret: bytes, orders: Mapping[str, Any]) -> None:
    """Exchange hellos and give the worker its orders. Raises: NotHired."""
    line.send_nowait(hello(secret, "gateway", orders=dict(orders)))
    try:
        check_hello(await line.receive(), secret, "worker")
    except BadFrame as bad:
        raise NotHired(str(bad)) from None
    line.open_up()


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)
