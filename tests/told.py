"""What tests tell whoever runs them, such as how much was tried: printed at the end, with and without workers.

A line travels in the report of its test, as what a worker process prints itself is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

_TOLD = "told"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say one line to whoever runs the suite, also where the test passes."""

    def say(line: str) -> None:
        request.node.user_properties.append((_TOLD, line))

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print all that was told, in the order of files and lines, and not in that in which workers were done."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    lines = [
        line
        for report in sorted(reports, key=lambda report: (report.location[0], report.location[1] or 0))
        for name, line in report.user_properties
        if name == _TOLD
    ]
    if lines:
        terminalreporter.section("told by tests")
        for line in map(str, lines):
            terminalreporter.write_line(line)
