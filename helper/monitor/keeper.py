"""The program that stays: it forks a monitor for each socket, and ends what a killed monitor left."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from typing import Final

from helper.monitor.bell import Bell
from helper.monitor.kernel import adopt_orphans
from helper.monitor.line import Line
from helper.monitor.owner import SWEEP_SECONDS, monitor
from helper.monitor.tree import children, send, sweep

SURVIVED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)
# Meant for the daemon, or harmless to us: whoever owns a tree must outlive it.


def settle_signals() -> None:
    """Set every signal to its default, but for those that we outlive. Monitors inherit it."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # A handler, not SIG_IGN: execve puts handled signals back to default, ignored ones stay ignored.
        signal.signal(number, (lambda *_: None) if number in SURVIVED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep(control: socket.socket) -> None:
    """Fork a monitor for each socket that arrives; end when the daemon and all monitors have."""
    adopt_orphans()
    settle_signals()
    gc.disable()  # short lives that make no cycles; a collection would copy every page that forks share
    gc.freeze()
    bell = Bell()
    monitors: set[int] = set()
    open_for_more = True
    while True:
        alone = reap_monitors(monitors)
        if alone and not open_for_more:
            return
        strays = set(children(os.getpid())) - monitors if not alone else set()
        sweep(strays)
        wanted = {control.fileno(): select.POLLIN} if open_for_more else {}
        if bell.wait(wanted, SWEEP_SECONDS if strays else None):
            open_for_more = admit(control, monitors)


def reap_monitors(monitors: set[int]) -> bool:
    """Reap what ended; returns whether no child is left.

    A monitor that was stopped, which only its own command or a stranger does, is woken: a tree must not outlive
    its time limit or the daemon so.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if not os.WIFSTOPPED(status):
            monitors.discard(pid)
        elif pid in monitors:
            send(pid, signal.SIGCONT)


def admit(control: socket.socket, monitors: set[int]) -> bool:
    """Fork the monitor of one request; returns False once the daemon has closed the keeper."""
    message, descriptors, _, _ = socket.recv_fds(control, 16, 1, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return False
    for descriptor in descriptors:
        line = socket.socket(fileno=descriptor)
        try:
            pid = os.fork()
        except OSError as error:  # no process left for us: said to the one who asked
            Line(line).tell(event="failed", stage="monitor", errno=error.errno)
        else:
            if pid == 0:
                control.close()
                monitor(line)
            monitors.add(pid)
        line.close()
    return True


def main() -> None:
    """Run as the keeper; fd 0 is a SOCK_SEQPACKET socket from the daemon."""
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:  # one of the three came closed, and would be the number of what is opened next
        null = os.dup(null)
    control = socket.socket(fileno=os.dup(0))
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    keep(control)
