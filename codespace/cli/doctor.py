"""`codespace doctor`: what is in force here, and the exact fix for what is not."""

from __future__ import annotations

import argparse

from codespace import cli
from codespace.cli import configured
from codespace.cli.finding import Finding
from codespace.cli.findings import everything
from codespace.display import display


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each finding; 1 if any of them is a failure."""
    settings = configured.settings(arguments.config)
    if settings is None:
        return cli.USAGE
    failures = limits = 0
    for finding in everything(settings):
        print(line(finding), flush=True)  # a slow probe must not hide what is known already
        failures += finding.verdict == "fail"
        limits += finding.verdict == "limit"
    print(f"\n{_count(failures, 'failure')}, {_count(limits, 'limit')}.")
    return 1 if failures else 0


def line(finding: Finding) -> str:
    """Return the finding as a person reads it."""
    text = f"{finding.verdict:<6}{finding.subject:<17} {display(finding.found)}"
    return f"{text}\n{'':<24}fix: {display(finding.fix)}" if finding.fix else text


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
