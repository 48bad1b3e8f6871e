"""The helper's side of docs/helper-protocol.md, on its real pipes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from codespace import limits
from codespace.beneath import primitive_in_force
from codespace.sandbox import landlock

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/helper-protocol.md").read_text("utf-8")
HELPER = (sys.executable, "-I", "-m", "helper.patch")


def ask(lines: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(HELPER, input=lines, capture_output=True, cwd="/", env={}, timeout=60, check=False)


def opening(tmp_path: Path) -> bytes:
    (tmp_path / "root").mkdir()
    fields = {
        "root": str(tmp_path / "root"),
        "journal": str(tmp_path / "journal"),
        "readable": [],
        "umask": 0o22,
        "allow_submounts": False,
        "hidden": [],
        "protected": [],
        "git_protected": True,
        "file_bytes": 1000,
        "patch_bytes": 1000,
    }
    return json.dumps({"id": 1, "verb": "open", **fields}).encode() + b"\n"


def test_the_examples_of_the_page_are_what_the_helper_says(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").write_text("one\n")
    known = {"ROOT": tmp_path / "root", "JOURNAL": tmp_path / "journal", "PRIMITIVE": primitive_in_force()}
    page = re.sub(r'"(ROOT|JOURNAL|PRIMITIVE)"', lambda found: json.dumps(str(known[found[1]])), PAGE)
    page = page.replace('"LANDLOCK"', str(landlock.version()))
    requests = re.findall(r"^→ (.*)$", page, re.MULTILINE)
    replies = [json.loads(line) for line in re.findall(r"^← (.*)$", page, re.MULTILINE)]
    answered = ask("".join(f"{line}\n" for line in requests).encode())
    assert [json.loads(line) for line in answered.stdout.splitlines()] == replies
    assert len(replies) == 12
    assert answered.returncode == 0
    assert answered.stderr == b""


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b'{"verb": "plan"}\n', b'{"id": 1', b"\xff\n"])
def test_a_line_that_is_no_request_ends_the_helper_without_an_answer(line: bytes) -> None:
    ended = ask(line)
    assert ended.returncode != 0
    assert ended.stdout == b""


def test_a_line_without_end_is_not_read_without_end() -> None:
    ended = ask(b'{"id": 1, "verb": "' + b"x" * (limits.HELPER_LINE_BYTES + 10))
    assert ended.returncode != 0
    assert b"bound" in ended.stderr


def test_a_request_with_fields_missing_is_a_fault_and_the_next_one_is_answered(tmp_path: Path) -> None:
    request = b'{"id": 2, "verb": "plan"}\n{"id": 3, "verb": "settle", "operation": "op-1"}\n'
    ended = ask(opening(tmp_path) + request)
    first, second, third = (json.loads(line) for line in ended.stdout.splitlines())
    assert "ok" in first
    assert second["refusal"]["code"] == "INTERNAL"
    assert "KeyError" not in second["refusal"]["message"]
    assert third == {"id": 3, "ok": {"outcome": None}}


@pytest.mark.parametrize("operation", ["../x", "", ".", "a/b", "a\x00b", "x" * 100])
def test_an_operation_that_cannot_name_a_folder_is_refused(tmp_path: Path, operation: str) -> None:
    request = json.dumps({"id": 2, "verb": "settle", "operation": operation}).encode() + b"\n"
    ended = ask(opening(tmp_path) + request)
    assert json.loads(ended.stdout.splitlines()[1])["refusal"]["code"] == "INVALID_ARGUMENT"


def test_a_root_that_is_not_there_is_refused(tmp_path: Path) -> None:
    line = opening(tmp_path)
    (tmp_path / "root").rmdir()
    ended = ask(line)
    assert json.loads(ended.stdout)["refusal"]["code"] == "FILE_NOT_FOUND"
