"""The patch helper on a filesystem that knows no flags of rename: every use of one gets what such a filesystem says.

Nothing of the product can be told to behave so; this program of the tests replaces the one system call.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from codespace.beneath import kernel
from helper.patch.wire import claim, serve


def renameat2(*names: Any) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


if __name__ == "__main__":
    kernel.renameat2 = renameat2
    serve(*claim())
