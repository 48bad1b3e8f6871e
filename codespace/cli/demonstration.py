"""`codespace demo`: hands over to the demonstration, which plays the client itself."""

from __future__ import annotations

import argparse


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; 0 only if each of its steps was right."""
    from codespace.demo import main

    return main()
