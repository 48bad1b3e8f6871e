"""Folders of supervisors that share a state directory: those of the living stay, also while they are made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from codespace.runner.ownfolder import OwnFolder
from codespace.testing.shortage import descriptors


def test_a_folder_that_a_sweep_takes_away_in_its_first_moments_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OwnFolder(str(tmp_path))
    swept: list[str] = []
    mkdir = os.mkdir

    def mkdir_and_sweep(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if not swept:
            for folder in other.abandoned():
                swept.append(folder)
                shutil.rmtree(folder)

    with monkeypatch.context() as between:
        between.setattr(os, "mkdir", mkdir_and_sweep)
        own = OwnFolder(str(tmp_path))
    assert len(swept) == 1
    assert own.path not in swept
    assert Path(own.path).is_dir()
    assert list(other.abandoned()) == []
    own.let_go()
    other.let_go()


def test_a_folder_that_is_being_swept_is_nobody_else_s_meanwhile(tmp_path: Path) -> None:
    one, two, dead = (OwnFolder(str(tmp_path)) for _ in range(3))
    dead.let_go()
    sweeping = iter(one.abandoned())
    assert next(sweeping) == dead.path
    assert list(two.abandoned()) == []
    assert list(sweeping) == []
    assert list(two.abandoned()) == [dead.path]
    one.let_go()
    two.let_go()


def test_a_file_beside_the_folders_and_a_link_to_one_are_not_swept(tmp_path: Path) -> None:
    one = OwnFolder(str(tmp_path / "folders"))
    (tmp_path / "folders" / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folders" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(one.abandoned()) == []
    one.let_go()


def test_a_sweep_that_cannot_look_finds_nothing_and_raises_nothing(tmp_path: Path) -> None:
    above = tmp_path / "folders"
    one, dead = OwnFolder(str(above)), OwnFolder(str(above))
    dead.let_go()
    with descriptors(0):
        assert list(one.abandoned()) == []
    assert list(one.abandoned()) == [dead.path]
    shutil.rmtree(above)
    assert list(one.abandoned()) == []
    one.let_go()
