"""The pages that code prints are the pages in docs/, and they are complete."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from codespace import docs, limits
from codespace.errors import CODES
from codespace.settings import environment, keys

DIRECTORY = Path(__file__).parent.parent / "docs"


def test_the_tour_names_every_module_of_the_ladder_and_of_the_floors_of_the_gateway() -> None:
    lint = tomllib.loads((DIRECTORY.parent / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {each["id"]: each.get("layers", []) for each in lint["contracts"]}
    tour = (DIRECTORY / "tour.md").read_text()
    package = Path(inspect.getfile(docs)).parent
    modules = {each.stem for each in package.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()}
    kept = {name.removeprefix("codespace.") for layer in layers["ladder"] for name in re.split(r"[ |:]+", layer)}
    assert kept == {name for name in modules if not name.startswith("__")} | {"statemachines"}
    assert kept <= set(re.findall(r"[a-z0-9]+", tour.split("```")[1]))
    told = [set(re.findall(r"`(\w+)`", point)) for point in re.split(r"\n\* |\n\n", tour)]
    for floor in layers["gateway"]:
        assert set(floor.split(" : ")) in told


def test_the_printed_pages_are_current() -> None:
    assert list(docs.stale(DIRECTORY)) == [], "run `python -m codespace.docs`"


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_page_that_was_changed_by_hand_is_noticed(tmp_path: Path, name: str) -> None:
    docs.write(tmp_path)
    assert docs.main(["--check", "--directory", str(tmp_path)]) == 0
    with (tmp_path / name).open("a") as page:
        page.write("by hand\n")
    assert list(docs.stale(tmp_path)) == [name]
    assert docs.main(["--check", "--directory", str(tmp_path)]) == 1
    (tmp_path / name).unlink()
    assert list(docs.stale(tmp_path)) == [name]


def test_every_code_key_variable_and_number_is_on_its_page() -> None:
    assert all(f"| `{name}` |" in docs.errors() for name in CODES)
    written = docs.settings()
    for name in (*keys.TOP, *keys.WORKSPACE, *keys.LIMITS, *keys.ENVIRONMENT, *environment.VARIABLES):
        assert f"| `{name}` |" in written
    numbers = [name for name in vars(limits) if name.isupper()]
    assert all(f"| `{name}` |" in docs.numbers() for name in numbers)


def test_every_number_stands_once_and_has_its_reason() -> None:
    names = [
        node.target.id
        for node in ast.parse(inspect.getsource(limits)).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert sorted(names) == sorted(set(names))
    assert "| |" not in docs.numbers().replace("  ", " ")
