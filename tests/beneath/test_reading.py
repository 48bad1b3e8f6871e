"""The read side: what is reached, what is refused, and with which code."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from codespace.beneath import Root
from codespace.errors import Refusal


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as refused:
        action()
    return refused.value.code


def test_a_file_is_read_with_its_status(root: Root) -> None:
    content, status = root.read("a/./b//file", 100)
    assert content == b"content\n"
    assert status.st_size == 8


def test_a_link_is_refused_at_each_position(root: Root, tree: Path, outside: Path) -> None:
    (tree / "link").symlink_to(outside)
    (tree / "a" / "link").symlink_to("b")
    (tree / "a" / "b" / "link").symlink_to("file")
    for path in ("link", "link/file", "a/link/file", "a/b/link", "a/b/link/deeper"):
        assert code_of(lambda path=path: root.read(path, 100)) == "SYMLINK_REJECTED", path
        assert code_of(lambda path=path: root.version(path)) == "SYMLINK_REJECTED", path
    assert code_of(lambda: root.open_directory("link")) == "SYMLINK_REJECTED"
    assert code_of(lambda: root.look("link/file")) == "SYMLINK_REJECTED"


def test_a_link_itself_can_be_looked_at(root: Root, tree: Path) -> None:
    (tree / "link").symlink_to("nowhere")
    status = root.look("link")
    assert status is not None
    assert status.st_size == len("nowhere")


def test_nothing_special_is_ever_opened(root: Root, tree: Path) -> None:
    os.mkfifo(tree / "fifo")  # opening it would hang here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
        for path in ("fifo", "socket", "a", "."):
            assert code_of(lambda path=path: root.read(path, 100)) == "SPECIAL_FILE_REJECTED", path
            assert code_of(lambda path=path: root.version(path)) == "SPECIAL_FILE_REJECTED", path


def test_a_device_is_never_opened(primitive: str) -> None:
    with Root.open("/dev", allow_submounts=True, primitive=primitive) as devices:  # type: ignore[arg-type]
        assert code_of(lambda: devices.read("zero", 100)) == "SPECIAL_FILE_REJECTED"


def test_a_magic_link_is_refused(primitive: str) -> None:
    with Root.open("/proc/self", allow_submounts=True, primitive=primitive) as own:  # type: ignore[arg-type]
        assert code_of(lambda: own.read("root/etc/passwd", 100)) == "SYMLINK_REJECTED"
        assert code_of(lambda: own.read("cwd/x", 100)) == "SYMLINK_REJECTED"


def test_what_is_missing_is_none_and_not_found_and_absent(root: Root) -> None:
    assert root.look("a/none") is None
    assert root.version("a/none") == "absent"
    assert root.version("a/b/file/below") == "absent"
    assert code_of(lambda: root.read("a/none", 1)) == "FILE_NOT_FOUND"
    assert code_of(lambda: root.read("a/b/file/below", 1)) == "PATH_NOT_DIRECTORY"
    assert code_of(lambda: root.open_directory("a/b/file")) == "PATH_NOT_DIRECTORY"


def test_the_kernel_s_own_refusal_names_its_errno(root: Root) -> None:
    with pytest.raises(Refusal) as refused:
        root.read("x" * 300, 1)
    assert refused.value.code == "FILE_OPERATION_FAILED"
    assert refused.value.details is not None
    assert refused.value.details["errno"] == "ENAMETOOLONG"


def test_a_file_over_the_limit_is_too_large_and_one_at_it_is_not(root: Root) -> None:
    assert code_of(lambda: root.read("a/b/file", 7)) == "FILE_TOO_LARGE"
    assert code_of(lambda: root.version("a/b/file", 7)) == "FILE_TOO_LARGE"
    assert root.read("a/b/file", 8)[0] == b"content\n"


def test_a_version_is_the_hash_of_all_bytes(root: Root, tree: Path) -> None:
    content = os.urandom(3_000_001)
    (tree / "large").write_bytes(content)
    assert root.version("large") == "sha256:" + hashlib.sha256(content).hexdigest()


def test_no_descriptor_is_left_open(root: Root, tree: Path) -> None:
    (tree / "link").symlink_to("a")
    os.mkfifo(tree / "fifo")
    before = os.listdir("/proc/self/fd")
    for path in ("a/b/file", "link", "link/b/file", "fifo", "none", "a/b/file/x", "../x", "a"):
        for verb in (root.look, root.version, lambda path: root.read(path, 3), root.open_directory):
            try:
                result = verb(path)
            except Refusal:
                continue
            if isinstance(result, int):
                os.close(result)
    list(root.walk())
    assert os.listdir("/proc/self/fd") == before


def test_a_root_without_its_veil_sees_what_is_hidden_and_ends_with_the_first(tree: Path) -> None:
    (tree / ".hidden").write_text("x")
    with Root.open(str(tree), hidden=[".*"]) as root:
        with root.unveiled() as whole:
            assert whole.read(".hidden", 1)[0] == b"x"
        assert root.look(".hidden") is None
        assert whole.look(".hidden") is not None
    with pytest.raises(Refusal):
        whole.look(".hidden")


def test_hidden_names_exist_for_no_verb(tree: Path, primitive: str) -> None:
    (tree / ".env").write_text("TOKEN=1")
    (tree / "a" / "keys").mkdir()
    (tree / "a" / "keys" / "one").write_text("key")
    with Root.open(str(tree), hidden=[".env", "a/keys"], primitive=primitive) as root:  # type: ignore[arg-type]
        for path in (".env", "a/keys", "a/keys/one", "a/b/../keys/one", "a/keys/none"):
            assert root.look(path) is None, path
            assert root.version(path) == "absent"
            assert code_of(lambda path=path: root.read(path, 100)) == "FILE_NOT_FOUND"
            assert code_of(lambda path=path: root.remove(path)) == "PROTECTED_PATH"
        assert code_of(lambda: root.create(".env", b"", 0o600)) == "PROTECTED_PATH"
        assert [entry.path for entry in root.walk()] == ["a", "a/b", "a/b/file"]


def test_another_letter_case_is_another_file_where_the_filesystem_says_so(tree: Path, primitive: str) -> None:
    (tree / "secret").write_text("hidden")
    (tree / "SECRET").write_text("public")
    with Root.open(str(tree), hidden=["secret"], primitive=primitive) as root:  # type: ignore[arg-type]
        assert root.read("SECRET", 100)[0] == b"public"


def test_a_spelling_that_reaches_the_hidden_inode_is_hidden_too(tree: Path, primitive: str) -> None:
    """A hard link stands in for a filesystem that folds letter case: both names reach one inode."""
    (tree / "secret").write_text("hidden")
    os.link(tree / "secret", tree / "SECRET")
    with Root.open(str(tree), hidden=["secret"], primitive=primitive) as root:  # type: ignore[arg-type]
        assert root.look("SECRET") is None
        assert "SECRET" not in [entry.path for entry in root.walk()]


def test_a_replaced_root_is_refused(root: Root, tree: Path) -> None:
    root.check_in_place()
    tree.rename(tree.with_name("elsewhere"))
    assert code_of(root.check_in_place) == "FILE_OPERATION_FAILED"
    tree.mkdir()
    assert code_of(root.check_in_place) == "FILE_OPERATION_FAILED"
    tree.rmdir()
    tree.symlink_to("elsewhere/a")
    assert code_of(root.check_in_place) == "FILE_OPERATION_FAILED"


def test_a_root_that_is_no_directory_is_refused(tree: Path) -> None:
    assert code_of(lambda: Root.open(str(tree / "none"))) == "FILE_NOT_FOUND"
    with pytest.raises(Refusal) as caught:
        Root.open(str(tree / "none"))
    assert "operator" in caught.value.next_step  # find would look in the same place
    assert code_of(lambda: Root.open(str(tree / "a" / "b" / "file"))) == "PATH_NOT_DIRECTORY"


def test_a_walk_names_everything_once_and_follows_nothing(root: Root, tree: Path, outside: Path) -> None:
    (tree / "link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    found = [(entry.path, entry.kind) for entry in root.walk()]
    assert found == [
        ("a", "directory"),
        ("fifo", "special"),
        ("link", "link"),
        ("a/b", "directory"),
        ("a/b/file", "file"),
    ]


def test_a_walk_survives_a_directory_that_is_gone_or_too_deep(root: Root, tree: Path) -> None:
    deep = os.open(tree, os.O_RDONLY)
    for _ in range(25):  # 25 names of 200 bytes are over PATH_MAX
        os.mkdir("d" * 200, dir_fd=deep)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    walk = root.walk()
    names = [entry.path for entry in walk]
    assert "a/b/file" in names
    assert walk.unreadable == 1


def test_a_name_that_is_no_text_can_be_opened_from_a_walk(root: Root, tree: Path) -> None:
    with open(os.path.join(os.fsencode(tree), b"bad\xff\n"), "wb") as made:
        made.write(b"x")
    entry = next(entry for entry in root.walk() if entry.path.startswith("bad"))
    descriptor = root.open_entry(entry)
    assert os.read(descriptor, 10) == b"x"
    os.close(descriptor)
