"""`read` and `versions` on real files."""

from __future__ import annotations

import base64
import hashlib
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codespace.contract import ReadResult, Workspace, WorkspaceLimits
from codespace.errors import Refusal
from codespace.runner.files import Files
from codespace.runner.roots import Roots

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
def roots() -> Iterator[Roots]:
    opened = Roots()
    yield opened
    opened.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    directory = tmp_path / "root"
    directory.mkdir()
    return Workspace(id="w", root=str(directory), hidden_paths=(".env",))


def put(workspace: Workspace, name: str, content: bytes) -> None:
    Path(workspace.root, name).write_bytes(content)


def replace_root(workspace: Workspace) -> None:
    root = Path(workspace.root)
    root.rename(root.with_name("moved"))
    root.mkdir()
    put(workspace, "f", b"another's")


async def read(roots: Roots, workspace: Workspace, path: str, **changed: Any) -> ReadResult:
    asked: dict[str, Any] = {"start_line": None, "line_count": None, "encoding": "text", "limit_bytes": 1 << 20}
    return await Files(roots).read(workspace, path, **(asked | changed))


async def refused(roots: Roots, workspace: Workspace, path: str, **changed: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        await read(roots, workspace, path, **changed)
    return raised.value


async def test_a_whole_file_is_read_with_all_that_is_true_of_it(roots: Roots, workspace: Workspace) -> None:
    content = "eins\r\nzwei\r\ndr\u00fci"
    put(workspace, "f", content.encode())
    result = await read(roots, workspace, "./f")
    assert result == ReadResult(
        path="f",
        content=content,
        encoding="text",
        version="sha256:" + hashlib.sha256(content.encode()).hexdigest(),
        size_bytes=len(content.encode()),
        total_lines=3,
        start_line=1,
        end_line=3,
        line_ending="crlf",
        final_newline=False,
        truncated=False,
    )


async def test_a_range_has_its_lines_and_the_whole_file_s_version(roots: Roots, workspace: Workspace) -> None:
    content = "".join(f"line {number}\n" for number in range(1, 101))
    put(workspace, "f", content.encode())
    result = await read(roots, workspace, "f", start_line=10, line_count=2)
    assert result.content == "line 10\nline 11\n"
    assert (result.start_line, result.end_line, result.total_lines, result.truncated) == (10, 11, 100, False)
    assert result.version == "sha256:" + hashlib.sha256(content.encode()).hexdigest()
    behind = await read(roots, workspace, "f", start_line=101)
    assert (behind.content, behind.start_line, behind.end_line, behind.total_lines) == ("", None, None, 100)


async def test_a_cut_comes_behind_a_whole_line_and_is_said(roots: Roots, workspace: Workspace) -> None:
    put(workspace, "f", (b"aaaa\nbbbb\ncccc\n"))
    result = await read(roots, workspace, "f", limit_bytes=12)
    assert (result.content, result.end_line, result.truncated) == ("aaaa\nbbbb\n", 2, True)


async def test_a_cut_inside_one_long_line_keeps_whole_characters(roots: Roots, workspace: Workspace) -> None:
    put(workspace, "f", ("\u65e5" * 10).encode())
    result = await read(roots, workspace, "f", limit_bytes=8)
    assert (result.content, result.truncated) == ("\u65e5" * 2, True)


async def test_the_workspace_s_own_limit_holds_too(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\n" * 100)
    workspace = Workspace(id="w", root=str(tmp_path), limits=WorkspaceLimits(read_bytes=10))
    assert len((await read(roots, workspace, "f")).content) == 10


async def test_bytes_that_are_no_text_are_refused_as_text_and_given_as_base64(
    roots: Roots, workspace: Workspace
) -> None:
    put(workspace, "f", b"fine\n\xff\xfe")
    assert (await refused(roots, workspace, "f")).code == "NOT_TEXT"
    assert (await refused(roots, workspace, "f", line_count=1)).code == "NOT_TEXT"
    result = await read(roots, workspace, "f", encoding="base64")
    assert base64.b64decode(result.content) == b"fine\n\xff\xfe"
    assert (result.total_lines, result.line_ending) == (None, None)


@pytest.mark.parametrize(
    ("content", "media"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg"),
        (b"GIF89a and so on", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
        (b"plain", None),
    ],
)
async def test_an_image_is_known_by_its_first_bytes(
    roots: Roots, workspace: Workspace, content: bytes, media: str | None
) -> None:
    put(workspace, "no-extension", content)
    assert (await read(roots, workspace, "no-extension", encoding="base64")).media_type == media


async def test_a_cut_image_is_no_image(roots: Roots, workspace: Workspace) -> None:
    put(workspace, "f", PNG)
    assert (await read(roots, workspace, "f", encoding="base64", limit_bytes=20)).media_type is None


async def test_a_range_of_a_huge_file_needs_little_memory(roots: Roots, workspace: Workspace) -> None:
    put(workspace, "huge", (b"x" * 1023 + b"\n" + (b"y" * 99 + b"\n") * 10_230) * 64)
    tracemalloc.start()
    result = await read(roots, workspace, "huge", start_line=400_000, line_count=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.total_lines == 64 * 10_231
    assert result.content.count("\n") == 3
    assert peak < 4_000_000


async def test_a_file_over_the_workspace_s_limit_is_too_large(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 101)
    workspace = Workspace(id="w", root=str(tmp_path), limits=WorkspaceLimits(file_bytes=100))
    assert (await refused(roots, workspace, "f", line_count=1)).code == "FILE_TOO_LARGE"


@pytest.mark.parametrize("changed", [{"start_line": 0}, {"line_count": 0}, {"start_line": -1}])
async def test_lines_count_from_one(roots: Roots, workspace: Workspace, changed: dict[str, int]) -> None:
    assert (await refused(roots, workspace, "f", **changed)).code == "INVALID_ARGUMENT"


async def test_what_may_not_be_read_is_refused_by_its_code(roots: Roots, workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("SECRET")
    root = Path(workspace.root)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / ".env").write_text("TOKEN")
    (root / ".codespace-x.staged").write_text("staged")
    os.mkfifo(root / "fifo")
    codes = {
        "link": "SYMLINK_REJECTED",
        ".env": "FILE_NOT_FOUND",
        ".codespace-x.staged": "FILE_NOT_FOUND",
        "fifo": "SPECIAL_FILE_REJECTED",
        ".": "SPECIAL_FILE_REJECTED",
        "none": "FILE_NOT_FOUND",
        "../outside": "PATH_ESCAPE",
        str(tmp_path / "outside"): "PATH_ESCAPE",
        "a\0b": "INVALID_ARGUMENT",
    }
    assert {path: (await refused(roots, workspace, path)).code for path in codes} == codes


async def test_versions_are_absent_wherever_no_regular_file_is(roots: Roots, workspace: Workspace) -> None:
    root = Path(workspace.root)
    (root / "f").write_bytes(b"x")
    (root / "link").symlink_to("f")
    (root / ".env").write_text("TOKEN")
    os.mkfifo(root / "fifo")
    paths = ["f", "link", "fifo", ".", "f/below", "none", ".env"]
    versions = await Files(roots).versions(workspace, paths)
    assert versions == dict.fromkeys(paths, "absent") | {"f": "sha256:" + hashlib.sha256(b"x").hexdigest()}


async def test_a_replaced_root_is_refused(roots: Roots, workspace: Workspace) -> None:
    put(workspace, "f", b"mine")
    await read(roots, workspace, "f")
    replace_root(workspace)
    assert (await refused(roots, workspace, "f")).code == "FILE_OPERATION_FAILED"
