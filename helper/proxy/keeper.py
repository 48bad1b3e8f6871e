"""The program: stays loaded, and forks a door for each socket that the daemon sends.

A fork of a loaded interpreter takes a millisecond, a new one that imports trio and h11 takes 200.
And a process for each run means that no run's flood, fault or policy is another's.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from typing import Final

from helper.proxy.confine import confine
from helper.proxy.run import run

_CONTROL: Final = 0


def main() -> None:
    """Serve the control socket on descriptor 0 until it is closed; end when the last door has."""
    confined = confine()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the daemon's terminal is the daemon's affair
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended doors reap themselves
    gc.freeze()  # what is loaded now is shared with every door
    with socket.socket(fileno=_CONTROL) as control:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 64, 1)
            if not descriptors:
                break
            with socket.socket(fileno=descriptors[0]) as door:
                if os.fork() == 0:
                    control.close()
                    run(door, confined)
    _wait_for_doors()


def _wait_for_doors() -> None:
    """Return when no child is left: with SIGCHLD ignored, `wait` ends with the last one and has none to tell."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return
