"""`python -m codespace`: the same as the command `codespace`."""

from __future__ import annotations

import sys

from codespace.cli import main

if __name__ == "__main__":
    sys.exit(main())
