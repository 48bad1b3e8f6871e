"""A file over the default limit, where the operator has raised it: patched, undone and thrown away like any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespace import limits
from helper.patch.session import Session

PATCH = "*** Begin Patch\n*** Update File: large\n@@\n-last\n+end\n*** End Patch"
BEFORE = b"a line\n" * 1000 + b"last\n"


def test_a_file_that_the_operator_s_own_limit_allows_is_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILE_BYTES", 100)  # the default; as if the file were of some hundred megabytes
    root = tmp_path / "root"
    root.mkdir()
    (root / "large").write_bytes(BEFORE)
    opening = {"root": str(root), "journal": str(tmp_path / "journal"), "umask": 0o022, "allow_submounts": False}
    policy = {"hidden": [], "protected": [], "git_protected": True, "file_bytes": 1_000_000, "patch_bytes": 1_000_000}
    mask = os.umask(0o022)
    session = Session.open(opening | policy)
    try:
        session.call({"verb": "plan", "operation": "op-1", "patch": PATCH, "expected_versions": {}})
        session.call({"verb": "stage", "operation": "op-1"})
        assert session.call({"verb": "install", "operation": "op-1"})["refusal"] is None
        assert (root / "large").read_bytes() == BEFORE.replace(b"last", b"end")
        assert session.call({"verb": "restore", "operation": "op-1"})["clean"]
        assert session.call({"verb": "finish", "operation": "op-1"})["clean"]
    finally:
        session.close()
        os.umask(mask)
    assert os.listdir(root) == ["large"]
    assert (root / "large").read_bytes() == BEFORE
