"""The program's start: `-I -S` keeps every path but the standard library's away, so it says where it lies itself."""

import os
import sys

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(_HERE)  # last: no name there stands in front of the standard library's

from helper.monitor.keeper import main  # noqa: E402 - the path comes first

sys.path.remove(_HERE)

if __name__ == "__main__":
    main()
