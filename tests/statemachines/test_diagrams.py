"""The printed pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statemachines import diagrams


def test_the_committed_pages_are_what_the_machines_say() -> None:
    assert diagrams.main(["--check"]) == 0


@pytest.mark.parametrize("name", ["patch.md", "README.md"])
def test_a_changed_page_fails_the_check_and_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diagrams.write(tmp_path)
    page = tmp_path / name
    page.write_text(page.read_text(encoding="utf-8") + "and more\n", encoding="utf-8")

    assert diagrams.main(["--check", "--directory", str(tmp_path)]) == 1
    assert name in capsys.readouterr().err
    assert page.read_text(encoding="utf-8").endswith("and more\n")


def test_a_missing_and_a_left_over_page_fail_the_check_until_they_are_written_anew(tmp_path: Path) -> None:
    diagrams.write(tmp_path)
    (tmp_path / "work.md").unlink()
    (tmp_path / "gone.md").write_text("# A machine that is no more\n", encoding="utf-8")
    assert diagrams.stale(tmp_path) == ["gone.md", "work.md"]

    assert diagrams.main(["--directory", str(tmp_path)]) == 0
    assert diagrams.stale(tmp_path) == []


@pytest.mark.parametrize("machine", diagrams.MACHINES, ids=lambda machine: machine.__name__)
def test_every_step_is_drawn_once_and_explained_once(machine: type) -> None:
    text = diagrams.pages()[f"{machine.__name__.lower()}.md"]
    drawn = re.findall(r"^    (\w+) --> (\w+) : (\w+)$", text, re.MULTILINE)
    explained = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| .+\. \|$", text, re.MULTILINE)

    assert drawn
    assert sorted((source, event, target) for source, target, event in drawn) == sorted(explained)
    assert len(set(drawn)) == len(drawn)
