"""Every promise has a test that exists, or says that it is open; and the check itself finds what is amiss."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def requirements() -> ModuleType:
    """The table; it is a script beside the tests, not an installed module."""
    spec = importlib.util.spec_from_file_location("requirements", Path(__file__).with_name("requirements.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["requirements"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_promise_is_tested_or_marked_open_and_every_named_test_exists(requirements: ModuleType) -> None:
    assert requirements.faults() == []


def test_the_page_of_evidence_is_what_the_table_says(requirements: ModuleType) -> None:
    assert requirements.EVIDENCE.read_text() == requirements.evidence()


def test_a_promise_without_a_test_a_missing_test_and_a_double_id_are_found(
    requirements: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "test_here.py").write_text("async def test_it_holds(): ...\ndef helper(): ...\n")
    wanted = requirements.Requirement
    table = (
        wanted("A", "kept", ("test_here.py::test_it_holds",)),
        wanted("B", "no test"),
        wanted("C", "not there", ("test_here.py::test_gone", "test_nowhere.py::test_it", "test_here.py::helper")),
        wanted("D", "open", open="later"),
        wanted("A", "again", open="later"),
    )
    assert requirements.faults(table, tmp_path) == [
        "A: listed twice",
        "B: neither open nor tested",
        "C: no such test: test_here.py::test_gone",
        "C: no such test: test_nowhere.py::test_it",
        "C: no such test: test_here.py::helper",
    ]
