"""The control socket of a monitor."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

REQUEST_BYTES: Final = 80 * 1_048_576
# Above two times what execve takes (6 MiB) even when JSON escapes each byte with six.
DESCRIPTORS: Final = 4
# stdin, stdout, stderr, directory.
INHERITED: Final = 8
# Most that a program is given beside those; bubblewrap takes three.


class Line:
    """The control socket of a monitor: JSON lines, and descriptors with the first of them."""

    def __init__(self, control: socket.socket) -> None:
        self.socket = control
        self.cut = False
        self.passed: list[int] = []
        """Descriptors that came with verbs."""
        self._unread = b""

    def receive_request(self) -> tuple[dict[str, Any], list[int]]:
        """Return the request and its descriptors; raises EOFError where the daemon is gone."""
        most = DESCRIPTORS + INHERITED
        data, descriptors, _, _ = socket.recv_fds(self.socket, 65_536, most, socket.MSG_CMSG_CLOEXEC)
        while not data.endswith(b"\n"):  # the only newline is the one behind the request
            more = self.socket.recv(1_048_576)
            if not more or len(data) > REQUEST_BYTES:
                raise EOFError
            data += more
        request = json.loads(data)
        if len(descriptors) != DESCRIPTORS + request.get("inherited", 0):  # cut short by a limit of ours
            for descriptor in descriptors:
                os.close(descriptor)
            raise EOFError
        return request, descriptors

    def verbs(self) -> list[dict[str, Any]]:
        """Return the verbs that arrived; call it when the socket is readable. EOF sets `cut`."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 65_536, 1, socket.MSG_CMSG_CLOEXEC)
            self.passed.extend(descriptors)
        except OSError:
            data = b""
        self.cut = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def tell(self, **event: Any) -> None:
        try:
            self.socket.sendall(json.dumps(event).encode() + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            self.cut = True  # nobody listens any more: the same as EOF
