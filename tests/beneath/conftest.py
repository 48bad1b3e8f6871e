"""Every test of the primitive runs twice: on openat2 and on the walk that stands in for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from codespace.beneath import Root


@pytest.fixture(params=["openat2", "openat"])
def primitive(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the root, with a file that must never be reached."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "file").write_bytes(b"SECRET")
    return directory


@pytest.fixture
def tree(tmp_path: Path, outside: Path) -> Path:
    """A root with a file two levels down."""
    directory = tmp_path / "root"
    (directory / "a" / "b").mkdir(parents=True)
    (directory / "a" / "b" / "file").write_bytes(b"content\n")
    return directory


@pytest.fixture
def root(tree: Path, primitive: str) -> Iterator[Root]:
    with Root.open(str(tree), primitive=primitive) as opened:  # type: ignore[arg-type]
        yield opened
