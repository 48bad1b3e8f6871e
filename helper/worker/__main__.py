"""`python -I -X utf8 -m helper.worker LEAF PARENT`: started by the gateway, ended by closing its connection.

Descriptor 0 is a pipe with the secret of this start, 1 says when the socket is there, 2 is the log.
"""

import os
import sys

from helper.worker.harden import Orphaned, harden


def main() -> int:
    """Run the worker; the exit code is 0 where the gateway ended the connection in order."""
    leaf, parent = sys.argv[1], int(sys.argv[2])
    try:
        harden(parent)
    except Orphaned:
        return 1
    # Not before: everything that these load is loaded by a process that nobody can look into.
    from helper.worker.life import live

    return live(leaf, parent)


if __name__ == "__main__":
    # Without the interpreter's own goodbye: threads that hang in the kernel are not waited for.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
