"""What a test tells is shown at the end of a run, in order, also by workers and whether or not output is captured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
CONFTEST = "from tests.told import pytest_terminal_summary, tell\n"
FIRST = """
import pytest

@pytest.mark.parametrize("number", [2, 1])
def test_that_passes(tell, number):
    tell(f"first {number}")

def test_that_fails(tell):
    tell("before it failed")
    assert not "told"
"""
SECOND = """
def test_that_tells_nothing():
    pass

def test_that_passes(tell):
    tell("second")
    tell("and last")
"""


@pytest.mark.parametrize("words", [[], ["-s"], ["-q"], ["-n", "2"]], ids=" ".join)
def test_every_line_is_shown_once_in_the_order_of_the_tests(tmp_path: Path, words: list[str]) -> None:
    for name, text in {"conftest": CONFTEST, "test_a": FIRST, "test_b": SECOND}.items():
        (tmp_path / f"{name}.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    argv = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", *words, str(tmp_path)]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    _, _, behind = done.stdout.partition(" told by tests ")
    lines = behind.splitlines()[1:6]
    assert lines == ["first 2", "first 1", "before it failed", "second", "and last"], done.stdout
